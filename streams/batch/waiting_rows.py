"""Rows of a group that wait for a later batch.

The operator stores them in place of processing them, because a child process computes a large batch
of the group (`batches_aside`), or because many groups have a config (`pace`). The group stays as
it was before them. Rows that it gets meanwhile wait behind them. A wake-up, which replaces the
group's own, brings the group back, and the group publishes its own again when the rows are
processed.

An earlier version of muster that reads the checkpoint while rows wait does not know them: it asks
the group's members for reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

from pyspark.sql.types import Row

from muster.protocol import codec
from muster.protocol.ids import GroupId
from muster.protocol.keys import parse_key
from muster.protocol.records import WakeUp
from muster.protocol.topics import TopicKind
from muster.state.group import Group
from muster.streams.batch import outbox
from muster.streams.batch.group_batch import Publisher, Rows
from muster.streams.batch.kept_rows import ROWS_BYTES_MAX, Kept
from muster.streams.batch.stored_values import WAITING_FLAG, Header, Parts, Stored
from muster.streams.source import Packing, split_lane

_MARK = b"\xfe"
"""First byte of what replaces the core's array; no version of the core's array begins with it."""
_COUNT = Struct(">I")
"""Rows that a child processes; those behind them came later."""


class Waiting(NamedTuple):
    """A group whose rows wait.

    Attributes:
        before: the stored values before these rows.
        first: the rows that a child processes, sorted; empty = a later batch processes all rows.
        later: the rows that came meanwhile, sorted.
        due_ms: when the group is due (`pace`): broker time, epoch milliseconds; 0 = at once.
    """

    before: Stored
    first: list[bytes]
    later: list[bytes]
    due_ms: int = 0


def of(lane: bytes, stored: Stored, now: Packing) -> Waiting | None:
    """The rows of a group that wait; None = none do.

    If the job does not read their topics any more, the rows are lost, and the members are asked for
    reports.

    Args:
        lane: see `source`.
        stored: what the state store has of the group.
        now: how this run packs rows.
    """
    if stored.liveness is None or not stored.liveness[1] & WAITING_FLAG:
        return None
    parts = stored.parts()
    assert parts is not None  # the flag is of this version
    at = len(_MARK) + _COUNT.size
    (count,) = _COUNT.unpack_from(parts.core, len(_MARK))
    kept = Kept.from_bytes(parts.core[at:])
    before = Stored() if kept.epoch is None else Stored(kept.core, stored.snapshot)
    rows = kept.rows_as(now, split_lane(lane)[0])
    if rows is None:
        return Waiting(before.asked_anew(), [], [])
    return Waiting(before, rows[:count], rows[count:], parts.header.clock_ms)


def may_wait(rows: Rows) -> bool:
    """Whether the rows of a group may wait."""
    stored = rows.stored
    if stored.snapshot is not None and stored.parts() is None:
        return False  # read back, or stored by another version: it has no liveness to go back to
    return sum(map(len, rows.entries)) <= ROWS_BYTES_MAX


def within_room(entries: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """The rows that may wait, oldest first, and those for which there is no room."""
    fit = sum(size <= ROWS_BYTES_MAX for size in accumulate(map(len, entries)))
    return entries[:fit], entries[fit:]


def stored_with(waiting: Waiting, now: Packing) -> Stored:
    """What the state store keeps of a group whose rows wait."""
    before = waiting.before
    snapshot = _new_snapshot() if before.snapshot is None else before.snapshot
    epoch = None if before.snapshot is None else 0
    kept = Kept(epoch, before.liveness or b"", [*waiting.first, *waiting.later], now)
    core = _MARK + _COUNT.pack(len(waiting.first)) + kept.to_bytes()
    return Stored(
        Parts(Header(WAITING_FLAG, bytes(8), waiting.due_ms), b"", core).to_bytes(), snapshot
    )


@cache
def _new_snapshot() -> bytes | None:
    """The snapshot of a new group, because no group is stored without one; it has no name in it."""
    return codec.encode(Group.new(GroupId("any")).snapshot()).value


def wakes(rows: Iterable[Row]) -> bool:
    """Whether one of these rows is a wake-up."""
    return any(row.topic.endswith(f".{TopicKind.CLOCK}") for row in rows)


def wake_up(lane: bytes, at_ms: int, publisher: Publisher, after: Stored) -> list[Row]:
    """The row that wakes a group, or, if it is not stored, lets it sleep.

    Args:
        lane: see `source`; its key names a group.
        at_ms: when, broker time.
        publisher: facts about the job.
        after: what the state store has of the group after the batch.
    """
    prefix, key = split_lane(lane)
    at = None if after.snapshot is None else at_ms
    record = WakeUp(group=parse_key(key).group, at_ms=at)
    return outbox.rows(prefix, [record], publisher.partitions)
