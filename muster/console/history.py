"""The history of one group: its published records, and its generations with their figures.

Every record of ``<prefix>.groups`` is the whole public state of the group at its time, so the
console keeps these records to show the group as it was. It keeps only the newest one decoded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from muster.protocol.codec import decode_record
from muster.protocol.ids import Role
from muster.protocol.keys import key_of
from muster.protocol.records import GroupSnapshot, GroupState
from muster.protocol.topics import TopicKind
from muster.published.holdups import PendingReleases
from muster.published.snapshots import NO_MEMBER, Published

MOMENTS_MAX = 4_000
"""Most records kept of a group."""
GENERATIONS_MAX = 2_000
"""Most generations of which the figures are kept."""
PEAKS_MAX = 50_000
"""Most copies of which the largest lag is kept."""
_SETTLED = (GroupState.STABLE, GroupState.EMPTY, GroupState.DEAD)


class Moment(NamedTuple):
    """One published record of the group.

    Attributes:
        number: its place in the history, from 0 on; it stays when older ones are dropped.
        at_ms: when it was written, epoch milliseconds.
        value: the record's bytes.
        pending: since when members owe releases at that time.
    """

    number: int
    at_ms: int
    generation: int
    value: bytes
    pending: PendingReleases


@dataclass(slots=True)
class GenerationFigures:
    """A generation and its figures. Times are epoch milliseconds.

    Attributes:
        at_ms: when its first record was written.
        moves: how many tasks and copies it moves.
        moved: how many actives went from one member to another.
        first, last: numbers of its first and newest moments.
        settled_ms: when the group first had nothing left to do; None = not in this generation.
        ended_ms: when the next generation began; None = it is the newest.
        ownerless_ms: time without an owner, summed over tasks, up to its newest record.
        ownerless: tasks without an owner in its newest record.
        seen_ms: when its newest record was written.
    """

    generation: int
    at_ms: int
    cause: str
    moves: int
    moved: int
    members: int
    first: int
    last: int
    settled_ms: int | None = None
    ended_ms: int | None = None
    ownerless_ms: int = 0
    ownerless: int = 0
    seen_ms: int = 0

    def ownerless_until(self, now_ms: int) -> int:
        """`ownerless_ms` up to `now_ms`, or to the end of the generation."""
        until_ms = now_ms if self.ended_ms is None else self.ended_ms
        return self.ownerless_ms + self.ownerless * max(until_ms - self.seen_ms, 0)


class History:
    """One group's records. `take` them in the order in which they were published.

    One thread writes while pages read without its lock. So pages copy `moments` and `generations`
    before they go through them: to copy is one step of the interpreter, to iterate is not.

    Attributes:
        is_shadowed: Kafka coordinates it; muster only looks at it.
        newest: its newest record, decoded; None = none yet.
        moments: the records that are kept, oldest first.
        generations: the figures of the generations that are kept, oldest first.
        held_bytes: size of the kept records.
        peaks: (task index, slot) → largest lag that its learner had.
    """

    def __init__(self, group: str, *, is_shadowed: bool = False) -> None:
        self.group = group
        self.is_shadowed = is_shadowed
        self.newest: GroupSnapshot | None = None
        self.moments: deque[Moment] = deque()
        self.generations: deque[GenerationFigures] = deque(maxlen=GENERATIONS_MAX)
        self.held_bytes = 0
        self.peaks: dict[tuple[int, int], int] = {}
        self._latest: tuple[Moment, GroupSnapshot] | None = None
        self._pending = PendingReleases()
        self._next = 0

    def take(self, record: GroupSnapshot, at_ms: int, value: bytes) -> bool:
        """Add the next record; return whether it changed the history.

        A record of a lower generation is left out: a superseded coordinator wrote it. Where the
        clock went back that stamps records, a record has the time of the one before it.
        """
        before = self.newest
        if before is not None and self.moments:
            if record.generation < before.generation or self.moments[-1].value == value:
                return False
            at_ms = max(at_ms, self.moments[-1].at_ms)
        self._pending.take(Published(record, at_ms))
        moment = Moment(
            self._next, at_ms, record.generation, value, self._pending.only(record.group)
        )
        self._next += 1
        # Pages read without the lock: a reader that sees the moment must find its record.
        self._latest = (moment, record)
        self.moments.append(moment)
        self.held_bytes += len(value)
        self._note_generation(record, moment)
        self._note_peaks(record)
        self.newest = record
        if len(self.moments) > MOMENTS_MAX:
            self.drop_oldest()
        return True

    def _note_generation(self, record: GroupSnapshot, moment: Moment) -> None:
        at_ms, last = moment.at_ms, self.generations[-1] if self.generations else None
        if last is not None:
            last.ownerless_ms += last.ownerless * max(at_ms - last.seen_ms, 0)
            last.seen_ms = at_ms
        if last is None or last.generation != record.generation:
            if last is not None:
                last.ended_ms, last.ownerless = at_ms, 0
            number = moment.number
            last = GenerationFigures(record.generation, at_ms, "", 0, 0, 0, number, number)
            self.generations.append(last)
        last.cause, last.moves = record.cause, len(record.moves)
        last.moved = sum(
            1 for m in record.moves if m.role is Role.ACTIVE and m.from_member and m.to_member
        )
        last.members, last.last, last.seen_ms = len(record.members), moment.number, at_ms
        last.ownerless = int(np.count_nonzero(record.holder == NO_MEMBER))
        if last.settled_ms is None and record.state in _SETTLED:
            last.settled_ms = at_ms

    def _note_peaks(self, record: GroupSnapshot) -> None:
        if not len(record.learner):
            return
        if len(self.peaks) > PEAKS_MAX:
            self.peaks.clear()
        learning = set(map(tuple, record.learner.tolist()))
        for task, slot, offsets in record.lags.tolist():
            if (task, slot) in learning:
                self.peaks[task, slot] = max(offsets, self.peaks.get((task, slot), 0))

    def drop_oldest(self) -> None:
        """Drop the oldest record, and the generations that have no record left."""
        gone = self.moments.popleft()
        self.held_bytes -= len(gone.value)
        oldest = gone.number + 1
        while self.generations and self.generations[0].last < oldest:
            self.generations.popleft()

    def moment(self, number: int) -> Moment | None:
        """The moment with this number; None if it is not kept."""
        while self.moments and self.moments[0].number <= number:
            try:
                moment = self.moments[number - self.moments[0].number]
            except IndexError:
                return None
            if moment.number == number:
                return moment  # else the reader dropped the oldest meanwhile: look again
        return None

    def moment_at(self, at_ms: int) -> Moment | None:
        """The newest moment at or before a time; the oldest kept if all are later."""
        moments = list(self.moments)
        if not moments:
            return None
        place = bisect_right(moments, at_ms, key=lambda moment: moment.at_ms)
        return moments[max(place - 1, 0)]

    def snapshot(self, moment: Moment) -> GroupSnapshot:
        """The record of a moment, decoded."""
        latest = self._latest
        if latest is not None and latest[0] is moment:
            return latest[1]
        record = decode_record(TopicKind.GROUPS, key_of(self.group), moment.value)
        assert isinstance(record, GroupSnapshot)
        return record

    def figures_of(self, generation: int) -> GenerationFigures | None:
        """The figures of a generation; None if they are not kept."""
        return next((g for g in list(self.generations)[::-1] if g.generation == generation), None)

    def moved_since(self, since_ms: int) -> int:
        """How many actives went from one member to another since then."""
        recent = takewhile(lambda each: each.at_ms >= since_ms, list(self.generations)[::-1])
        return sum(each.moved for each in recent)


def make_room(histories: Collection[History], held_bytes_max: int) -> int:
    """Drop old records of the largest histories until all fit; return the bytes that they hold.

    Each history keeps its newest record.
    """
    held_bytes = sum(each.held_bytes for each in histories)
    while held_bytes > held_bytes_max:
        largest = max(histories, key=lambda each: each.held_bytes)
        before = largest.held_bytes
        half = max(len(largest.moments) // 2, 1)
        for _ in range(min(half, len(largest.moments) - 1)):
            largest.drop_oldest()
        held_bytes -= before - largest.held_bytes
        if largest.held_bytes == before:
            break
    return held_bytes
