"""Records of a compacted topic: split ones joined, and the newest value of every key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import TypeAlias

from muster.kafka.reader import Row
from muster.protocol.errors import DecodeError
from muster.protocol.keys import partition_of
from muster.protocol.split_records import Joiner

Place: TypeAlias = tuple[int, int]
"""Partition and timestamp (epoch milliseconds) of a record."""


class WholeRows:
    """Joins split records from their parts, however many reads bring them.

    The rows are of one topic or several, in order within a partition. All parts of a record are in
    one partition, even if partitions are added meanwhile. A part that cannot be joined is left out.
    """

    def __init__(
        self, on_fault: Callable[[Row, DecodeError], None] = lambda row, error: None
    ) -> None:
        self._joiners: defaultdict[tuple[str, int], Joiner] = defaultdict(Joiner)
        self._on_fault = on_fault

    def feed(self, row: Row) -> Row | None:
        """The whole record that this row ends; a split one has its own key. None = not yet."""
        if row.key is None:
            return row
        try:
            whole = self._joiners[row.topic, row.partition].feed(row.key, row.value)
        except DecodeError as error:
            self._on_fault(row, error)
            return None
        return None if whole is None else row._replace(key=whole.key, value=whole.value)


def joined(
    rows: Iterable[Row], on_fault: Callable[[Row, DecodeError], None] = lambda row, error: None
) -> Iterator[Row]:
    """Whole records, each in place of its last part; see `WholeRows`."""
    whole = WholeRows(on_fault)
    return (row for row in map(whole.feed, rows) if row is not None)


def in_time_order(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows of several partitions, oldest first; those of one partition stay in their order.

    So a clock that went back changes nothing within a partition.
    """
    in_partition: defaultdict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        in_partition[row.topic, row.partition].append(row)
    return merge(*in_partition.values(), key=lambda row: row.at_ms)


def newest_values(rows: Iterable[Row], partitions: int) -> dict[bytes, bytes]:
    """The newest value of every key, without tombstones.

    A topic whose partitions were increased may hold older values of a key in another partition. A
    value in the partition that the key belongs to now wins, in whatever order they are read. The
    rows are one topic's, in order within a partition; records may be split.
    """
    newest: dict[bytes, Row] = {}
    for row in joined(rows):
        if row.key is None:
            continue
        before = newest.get(row.key)
        if before is None or _replaces(row, before, partition_of(row.key, partitions)):
            newest[row.key] = row
    return {key: row.value for key, row in newest.items() if row.value is not None}


def _replaces(row: Row, before: Row, home: int) -> bool:
    """Whether a record is newer than one of the same key that was read before it."""
    if before.partition == row.partition:
        return not is_late(row, before)
    return is_newer((row.partition, row.at_ms), (before.partition, before.at_ms), home)


def is_newer(place: Place, before: Place, home: int) -> bool:
    """Whether a record is newer than one of its key that was read before it, by their places.

    `home` is the partition that the key belongs to now.
    """
    if place[0] == before[0]:
        return True
    return (place[0] == home, place[1]) >= (before[0] == home, before[1])


def is_late(row: Row, before: Row) -> bool:
    """Whether a superseded coordinator wrote a record after its successor wrote the one `before`.

    Both have one key and partition. A group's generation never goes back, so a lower one shows it.
    """
    return row.value is not None and 0 <= row.generation < before.generation
