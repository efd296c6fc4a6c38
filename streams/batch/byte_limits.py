"""What one group may take up in bytes: of a batch, and of the state store.

Its large rows beyond its share of a batch are refused unread. A group whose stored values would be
larger than ``muster.group.bytes.max`` stays as it was, and the batch's events become dead letters.

One key may bring a batch twenty thousand rows of a megabyte each. Holding them fills the memory of
the process, decoding them takes minutes, and all other groups wait. So a group's share of a batch
is limited while its rows come in, before any is decoded:

- of configs and deletions only the newest `CONFIGS_MAX` are in the share, and of large ones the
  newest `LARGE_CONFIGS_MAX`: each replaces the one before, and costs time for every member. What
  discovery found is counted apart, with the same limits, because it replaces no config. So are
  those whose signature is refused, so they displace no others;
- other rows of at most `LARGE_BYTES` are always in the share; `muster.batch.rows.max` limits them;
- larger rows are in the share, oldest first, until they have `bytes_max` bytes together. Those
  whose signature is refused are counted apart, up to `BYTES_MIN`.

Only the beginning of a row beyond the share is kept, for its dead letter. The rows of a batch come
in any order, and a replay may bring them in another one; the share does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate, chain
from typing import Any, NamedTuple

from muster.streams.batch.stored_values import Stored

LARGE_BYTES = 4_096
BYTES_MIN = 4 << 20
"""Bytes of large rows that every group may bring into a batch; decoding them takes 0.15 s."""
BYTES_MAX = 64 << 20
GROWTH = 16
"""A group whose snapshot is larger may bring this many times its size, up to `BYTES_MAX`."""
CONFIGS_MAX = 4
LARGE_CONFIGS_MAX = 1
BEGINNING_BYTES = 512


class TooLarge(Exception):
    """A group needs more room in the state store than a group may have."""


class Share(NamedTuple):
    """The packed rows of one lane in a batch; the first two lists are sorted.

    Attributes:
        entries: the rows within the share.
        beyond: the beginnings of the rows beyond it.
        configs: those of `entries` that are of the config topic and whose signature lets them
            count; not sorted.
    """

    entries: list[bytes]
    beyond: list[bytes]
    configs: list[bytes]


def bytes_max(snapshot: bytes | None) -> int:
    """Bytes of large rows that a group may bring into a batch, by its stored snapshot."""
    return min(max(BYTES_MIN, GROWTH * len(snapshot or b"")), BYTES_MAX)


def check_stored(stored: Stored, most: int) -> None:
    """Check that each stored value of a group has at most so many bytes.

    Raises:
        TooLarge: one has more; the message names it.
    """
    for what, value in zip(stored._fields, stored, strict=True):
        size = len(value or b"")
        if size > most:
            raise TooLarge(f"a {what} of {size} bytes; muster.group.bytes.max is {most}")


def of(
    rows: Iterable[bytes],
    most: int,
    is_config: Callable[[bytes], bool],
    may_count: Callable[[bytes], bool] = lambda row: True,
    is_found: Callable[[bytes], bool] = lambda row: False,
    is_old: Callable[[bytes], bool] = lambda row: False,
    order: Callable[[bytes], Any] = lambda row: row,
) -> Share:
    """Sort the rows of a lane and separate those beyond the share of its group.

    At most twice `most` bytes of large rows that may count are in memory at a time, and twice
    `BYTES_MIN` of others.

    Args:
        rows: packed rows, in any order.
        most: bytes that the large rows may have together.
        is_config: whether a packed row is of the config topic.
        may_count: whether the signature of a config or a large row lets it count.
        is_found: whether a row of the config topic is what discovery found.
        is_old: whether the group took in such a row before; the row is left out. Only rows of the
            config topic are asked about, because a batch may have very many heartbeats.
        order: sort key of the configs that may count; the newest comes last.
    """
    small: list[bytes] = []
    beyond: list[bytes] = []
    large, forged = _Oldest(most, beyond), _Oldest(min(most, BYTES_MIN), beyond)
    counting, found, refused = _Configs(beyond, order), _Configs(beyond, order), _Configs(beyond)
    for row in rows:
        if is_config(row):
            if is_old(row):
                continue
            (refused if not may_count(row) else found if is_found(row) else counting).add(row)
        elif len(row) <= LARGE_BYTES:
            small.append(row)
        else:
            (large if may_count(row) else forged).add(row)
    configs = counting.kept() + found.kept()
    kept = (each.kept() for each in (refused, large, forged))
    return Share(sorted(chain(small, configs, *kept)), sorted(beyond), configs)


class _Configs:
    """The newest configs; the beginnings of the others go to `beyond`."""

    def __init__(
        self, beyond: list[bytes], order: Callable[[bytes], Any] = lambda row: row
    ) -> None:
        self._beyond, self._order = beyond, order
        self._rows: list[bytes] = []

    def add(self, row: bytes) -> None:
        self._rows.append(row)
        if len(self._rows) > 2 * CONFIGS_MAX:
            self._rows = self._newest(self._rows, CONFIGS_MAX)

    def kept(self) -> list[bytes]:
        rows = self._newest(self._rows, CONFIGS_MAX)
        small = [row for row in rows if len(row) <= LARGE_BYTES]
        large = [row for row in rows if len(row) > LARGE_BYTES]
        return small + self._newest(large, LARGE_CONFIGS_MAX)

    def _newest(self, rows: list[bytes], most: int) -> list[bytes]:
        rows.sort(key=self._order)
        self._beyond += (row[:BEGINNING_BYTES] for row in rows[:-most])
        return rows[-most:]


class _Oldest:
    """The oldest rows, up to the first one with which they have more than `most` bytes."""

    def __init__(self, most: int, beyond: list[bytes]) -> None:
        self._most, self._beyond = most, beyond
        self._rows: list[bytes] = []
        self._bytes = 0
        self._end: bytes | None = None
        """The beginning of the oldest row that was refused; all behind it are refused as well."""

    def add(self, row: bytes) -> None:
        if self._end is not None and row >= self._end:
            self._beyond.append(row[:BEGINNING_BYTES])
            return
        self._rows.append(row)
        self._bytes += len(row)
        if self._bytes > 2 * self._most:
            self.kept()

    def kept(self) -> list[bytes]:
        self._rows.sort()
        fit = sum(size <= self._most for size in accumulate(map(len, self._rows)))
        fit = max(fit, 1)  # a topic may allow rows that are larger than the share
        if fit < len(self._rows):
            self._end = self._rows[fit][:BEGINNING_BYTES]
            self._beyond += (row[:BEGINNING_BYTES] for row in self._rows[fit:])
            del self._rows[fit:]
            self._bytes = sum(map(len, self._rows))
        return self._rows
