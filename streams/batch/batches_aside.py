"""Large group batches run aside: a child process computes them while batches go on.

A config of thousands of units takes up to a second of CPU time, and so does any config of a group
with thousands of members. All other groups would wait for it. So the operator stores the group's
rows of such a batch, publishes a wake-up, and begins a child process (`asides`). Later batches ask
for the result. Rows that the group gets meanwhile are stored, too, and wait behind it.

When the child is done depends on the machine, but what is published does not. The result follows
from the stored values and the rows that wait. The batch that takes it over publishes it alone, and
leaves the rows that came meanwhile to the next batch. So a batch that Spark repeats publishes the
same, or publishes it some batches later.

The wake-up replaces the group's own, so the group publishes that again with the result.

An earlier version of muster that reads the checkpoint while rows wait does not know them: it asks
the group's members for reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

from pyspark.sql.types import Row

from muster.protocol import codec
from muster.protocol.keys import parse_key
from muster.protocol.records import WakeUp
from muster.protocol.topics import TopicKind
from muster.state.assignor_outcome import Question
from muster.state.deadlines import ASK_AGAIN_MS
from muster.state.group import Group
from muster.streams.batch import outbox
from muster.streams.batch.group_batch import Publisher, Rows
from muster.streams.batch.kept_rows import ROWS_BYTES_MAX, Kept
from muster.streams.batch.stored_values import ASIDE_FLAG, Header, Parts, Stored
from muster.streams.batch.work_limits import LARGE_CONFIG_BYTES
from muster.streams.source import HEADER, Packing, split_lane

LARGE_SNAPSHOT_BYTES = LARGE_CONFIG_BYTES
"""Any config of a group whose snapshot takes more bytes than this is computed aside."""
_MARK = b"\xfe"
"""First byte of what replaces the core's array; no version of the core's array begins with it."""
_COUNT = Struct(">I")
"""Rows that the child processes; those behind them came later."""
_QUESTION_BYTES = 8


class Waiting(NamedTuple):
    """A group whose rows wait.

    Attributes:
        before: the stored values before these rows.
        first: the rows that a child processes, sorted; empty = the next batch processes all rows.
        later: the rows that came meanwhile, sorted.
    """

    before: Stored
    first: list[bytes]
    later: list[bytes]


def of(lane: bytes, stored: Stored, now: Packing) -> Waiting | None:
    """The rows of a group that wait; None = none do.

    If the job does not read their topics any more, the rows are lost, and the members are asked for
    reports.

    Args:
        lane: see `source`.
        stored: what the state store has of the group.
        now: how this run packs rows.
    """
    if stored.liveness is None or not stored.liveness[1] & ASIDE_FLAG:
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
    return Waiting(before, rows[:count], rows[count:])


def is_large(rows: Rows) -> bool:
    """Whether a group batch is so large that a child should compute it."""
    if not rows.configs:
        return False
    stored = rows.stored
    if stored.snapshot is not None and stored.parts() is None:
        return False  # read back, or stored by another version: it has no liveness to go back to
    size = max(map(len, rows.configs))
    is_large_group = len(stored.snapshot or b"") > LARGE_SNAPSHOT_BYTES
    may_wait = sum(map(len, rows.entries)) <= ROWS_BYTES_MAX
    return may_wait and (is_large_group or size > LARGE_CONFIG_BYTES)


def within_room(entries: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """The rows that may wait, oldest first, and those for which there is no room."""
    fit = sum(size <= ROWS_BYTES_MAX for size in accumulate(map(len, entries)))
    return entries[:fit], entries[fit:]


def stored_with(lane: bytes, waiting: Waiting, now: Packing) -> Stored:
    """What the state store keeps of a group whose rows wait; its key names a group."""
    before = waiting.before
    snapshot = before.snapshot
    if snapshot is None:  # no group is stored without one
        snapshot = codec.encode(Group.new(parse_key(split_lane(lane)[1]).group).snapshot()).value
    epoch = None if before.snapshot is None else 0
    kept = Kept(epoch, before.liveness or b"", [*waiting.first, *waiting.later], now)
    core = _MARK + _COUNT.pack(len(waiting.first)) + kept.to_bytes()
    return Stored(Parts(Header(ASIDE_FLAG, bytes(8)), b"", core).to_bytes(), snapshot)


def question(lane: bytes, before: Stored, entries: Sequence[bytes]) -> Question:
    """Names a group batch: the group, and a hash of its stored values and of its rows."""
    prefix, key = split_lane(lane)
    digest = blake2b(digest_size=_QUESTION_BYTES)
    for part in (before.liveness or b"", *entries):
        digest.update(_COUNT.pack(len(part)))
        digest.update(part)
    return (f"{prefix} {parse_key(key).group}", int.from_bytes(digest.digest()), 0, 0, 0)


def wakes(rows: Iterable[Row]) -> bool:
    """Whether one of these rows is a wake-up."""
    return any(row.topic.endswith(f".{TopicKind.CLOCK}") for row in rows)


def wake_up(
    lane: bytes, entries: Sequence[bytes], publisher: Publisher, after: Stored
) -> list[Row]:
    """The row that wakes a group some moments later, or, if it is not stored, lets it sleep.

    Args:
        lane: see `source`; its key names a group.
        entries: the packed rows of the batch, sorted.
        publisher: facts about the job.
        after: what the state store has of the group after the batch.
    """
    prefix, key = split_lane(lane)
    newest_ms: int = HEADER.unpack_from(entries[-1])[0] if entries else 0
    at_ms = None if after.snapshot is None else newest_ms + ASK_AGAIN_MS
    record = WakeUp(group=parse_key(key).group, at_ms=at_ms)
    return outbox.rows(prefix, [record], publisher.partitions)
