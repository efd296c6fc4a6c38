"""Repeats the coordinator's work on a group's recorded events, and compares every result.

The coordinator is a pure function of the log, so its work can be repeated anywhere, without Kafka.
Every batch that changed the group published a snapshot, whose `through` names the newest offset
that the batch had of each partition. The repetition cuts the log there.

The repetition begins with an empty group. If that does not give the first snapshot, older events
have been deleted; it then begins with that snapshot and with a fresh session for every member. It
begins again in this way behind a snapshot that this version cannot read.
A coordinator may have lost its checkpoint, or be of another version: it then recovered the group
from the snapshot before, or began with an empty, unverified group. This may show only in a later
snapshot, so the repetition continues with every candidate group that fits the records so far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np

from muster import plugins
from muster.assignor.model import Assignor
from muster.kafka.compacted import WholeRows, in_time_order, is_late
from muster.kafka.reader import Row
from muster.protocol.codec import decode, decode_record, encode
from muster.protocol.errors import DecodeError
from muster.protocol.events import Event, GroupDeleted, Origin, Taken, Tick
from muster.protocol.ids import GroupId
from muster.protocol.keyring import Keyring, caller_of
from muster.protocol.keys import key_of, whole_key
from muster.protocol.records import (
    Dictionary,
    GroupGone,
    GroupSnapshot,
    MemberAssignment,
    MemberGone,
    Record,
)
from muster.protocol.signature_check import Verifier, refusal, refused_heartbeats
from muster.protocol.taskset import UnitRef
from muster.protocol.topics import INPUTS, TopicKind, kind_of
from muster.published.snapshots import skipped
from muster.replay.begun_within_a_life import begun_with, clock_shifts, with_session_clock
from muster.state.assignor_outcome import Aside, Outcome, Question
from muster.state.group import Group
from muster.state.machine import advance
from muster.streams.batch.replay_guard import ONCE, ReplayGuard


class Published(NamedTuple):
    """A record of the group on ``<prefix>.groups``; value None = a tombstone.

    `after_gap`: this version cannot read the record before it.
    """

    where: str
    at_ms: int
    record: GroupSnapshot | GroupGone
    value: bytes | None
    after_gap: bool = False


@dataclass(slots=True)
class Recording:
    """The records of one group.

    Attributes:
        group: its id.
        events: what the coordinator took in, in log order within each partition.
        published: its snapshots, oldest first.
        newest: (topic kind, key) → newest value, of members' records and dictionaries.
        dictionaries: version → units, of every dictionary.
    """

    group: GroupId
    events: list[Taken] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    newest: dict[tuple[TopicKind, bytes], bytes | None] = field(default_factory=dict)
    dictionaries: dict[int, tuple[UnitRef, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A published record and the repetition's result for it.

    Attributes:
        published: the record.
        group: the group after the same events.
        made: the repetition's snapshot. A batch may give several: the one equal to `published`,
            else the last.
        difference: the first field that differs; empty = both have the same bytes.
        began: the repetition began with this record, so there was nothing to compare.
    """

    published: Published
    group: Group
    made: GroupSnapshot
    difference: str = ""
    began: bool = False


def recording(
    items: Iterable[Row], group: GroupId, prefix: str, keyring: Keyring | None = None
) -> Recording:
    """Collect a group's records, without those of other groups and undecodable ones.

    Undecodable events are dead letters. The records come in order within a partition; a group's may
    be in two partitions, because partitions were added. What a superseded coordinator wrote late is
    left out. Without a keyring signatures are not checked.
    """
    collected = Recording(group)
    guard, published = ReplayGuard(), _PublishedRows(collected)
    for item in in_time_order(item for item in items if item.is_of(group)):
        kind = kind_of(item.topic, prefix)
        if kind in INPUTS:
            origin = Origin(item.topic, item.partition, item.offset, item.at_ms)
            try:
                event = decode(kind, item.key, item.value, origin)
            except DecodeError:
                continue
            taken = _accepted_event(event, item, keyring, guard)
            if taken is not None:
                collected.events.append(taken)
        elif kind in (TopicKind.GROUPS, TopicKind.ASSIGNMENTS):
            published.take(kind, item)
    return collected


def _accepted_event(
    event: Event, item: Row, keyring: Keyring | None, guard: ReplayGuard
) -> Taken | None:
    """The event as the group got it: itself if it was accepted, else `Refused` or None.

    Of several refusals in a row the coordinator passes on one; passing on each changes nothing.
    """
    if keyring is None:
        return event
    verifier = Verifier(keyring, event.group, item.topic, whole_key(item.key or b""))
    verdict = verifier.verdict(caller_of(event), item.value, item.signature, item.at_ms)
    if verdict is not None:
        return refusal(event)
    if item.signature and isinstance(event, ONCE):
        is_first = guard.is_first(item.signature, verifier.until_ms(item.signature))
        return event if is_first else None
    if isinstance(event, Tick) and refused_heartbeats(event, item.value, verifier) is not None:
        return replace(event, refused=True)
    return event


class _PublishedRows:
    """Puts what coordinators published into a recording, as far as this version can read it."""

    def __init__(self, collected: Recording) -> None:
        self._collected = collected
        self._whole = WholeRows(skipped)
        self._newest: dict[tuple[str, int, bytes], Row] = {}
        self._is_after_gap = False

    def take(self, kind: TopicKind, item: Row) -> None:
        """Add a row of the topic of groups or of assignments."""
        row = self._whole.feed(item)
        if row is None or row.key is None:
            return
        try:
            if kind is TopicKind.ASSIGNMENTS:
                self._take_other(kind, row.key, row)
            elif row.key == key_of(self._collected.group):
                self._take_snapshot(row.key, row)
            else:
                record = decode_record(kind, row.key, row.value)
                if isinstance(record, Dictionary):
                    self._collected.dictionaries[record.version] = record.units
                self._take_other(kind, row.key, row)
        except DecodeError as error:
            skipped(row, error)
            self._is_after_gap |= row.key == key_of(self._collected.group)

    def _take_snapshot(self, key: bytes, row: Row) -> None:
        record = decode_record(TopicKind.GROUPS, key, row.value)
        assert isinstance(record, GroupSnapshot | GroupGone)  # by its key
        if isinstance(record, GroupSnapshot):
            row = row._replace(generation=record.generation)  # a saved row may have none
        if self._is_late(key, row):
            return
        where = f"{row.topic}-{row.partition}@{row.offset}"
        self._collected.published.append(
            Published(where, row.at_ms, record, row.value, self._is_after_gap)
        )
        self._is_after_gap = False

    def _take_other(self, kind: TopicKind, key: bytes, row: Row) -> None:
        if not self._is_late(key, row):
            self._collected.newest[kind, key] = row.value

    def _is_late(self, key: bytes, row: Row) -> bool:
        place = (row.topic, row.partition, key)
        before = self._newest.get(place)
        if before is not None and is_late(row, before):
            return True
        self._newest[place] = row
        return False


class Repetition:
    """Repeats the work of one recording.

    Attributes:
        newest: (topic kind, key) → newest value that the repetition gave, as in `Recording`.
        whole: whether the repetition began with an empty group, so that `newest` is complete.
    """

    def __init__(self, taken: Recording) -> None:
        self.newest: dict[tuple[TopicKind, bytes], bytes | None] = {}
        self.whole = False
        self._taken = taken
        self._pending: dict[tuple[str, int], deque[Taken]] = {}
        for event in taken.events:
            place = event.origin.topic, event.origin.partition
            self._pending.setdefault(place, deque()).append(event)
        self._groups: list[Group] = []
        self._before: tuple[list[Group], list[Taken]] = ([], [])
        self._last: GroupSnapshot | None = None
        self._placements = _Placements()

    def steps(self) -> Iterator[Repeated]:
        """Every published record with the repetition's result, oldest first."""
        for published in self._taken.published:
            record = published.record
            if published.after_gap:
                self._last = None
            if isinstance(record, GroupGone):
                yield self._repeat_to_tombstone(published)
                continue
            batch = self._batch(record)
            yield (
                self._begin(published, batch)
                if self._last is None
                else self._next(self._last, published, batch)
            )
            self._last = record

    def missing(self) -> Iterator[str]:
        """A line for each member's record or dictionary that the repetition did not give."""
        for (kind, key), value in sorted(self._taken.newest.items()):
            is_made = (kind, key) in self.newest
            if self.newest[kind, key] == value if is_made else not self.whole:
                continue
            try:
                if self._is_ahead(kind, key, value):
                    continue
            except DecodeError as error:
                yield f"{kind}, key {key.decode()}: the newest record cannot be read: {error}"
                continue
            what = "the newest record differs" if is_made else "nothing came out for it"
            yield f"{kind}, key {key.decode()}: {what}"

    def _is_ahead(self, kind: TopicKind, key: bytes, value: bytes | None) -> bool:
        """Whether a member's record belongs to a batch whose snapshot was not read.

        A batch writes to several topics, and a reader may read between these writes.
        """
        last = self._last
        if last is None or kind is not TopicKind.ASSIGNMENTS:
            return False
        record = decode_record(kind, key, value, dictionaries=self._taken.dictionaries)
        if isinstance(record, MemberGone):
            return any(entry.id == record.member for entry in last.members)
        if not isinstance(record, MemberAssignment):
            return False
        return record.generation > last.target_generation or any(
            (entry.id, entry.incarnation) == (record.member, record.incarnation)
            and entry.revision < record.revision
            for entry in last.members
        )

    def _batch(self, record: GroupSnapshot) -> list[Taken]:
        """Remove from the pending events those of the batch that published this; return them."""
        through = {(topic, partition): offset for topic, partition, offset in record.through}
        return self._take(lambda at: at.offset <= through.get((at.topic, at.partition), -1))

    def _take(self, is_of_batch: Callable[[Origin], bool]) -> list[Taken]:
        taken: list[Taken] = []
        for waiting in self._pending.values():
            while waiting and is_of_batch(waiting[0].origin):
                taken.append(waiting.popleft())
        return taken

    def _begin(self, published: Published, batch: list[Taken]) -> Repeated:
        record = published.record
        assert isinstance(record, GroupSnapshot)
        repeated = self._step(self._empty_groups(), published, batch)
        self.whole = not repeated.difference
        if not self.whole:
            group = begun_with(record)
            repeated = Repeated(published, group, group.snapshot(), began=True)
            self.newest.clear()
            self._groups = [group]
        return repeated

    def _next(self, last: GroupSnapshot, published: Published, batch: list[Taken]) -> Repeated:
        record, groups = published.record, self._groups
        assert isinstance(record, GroupSnapshot)
        if not batch and record.through == last.through:
            groups, batch = self._before  # the coordinator repeated the same batch
        starts = list(groups)
        if record.coordinator_epoch != last.coordinator_epoch:
            starts += [Group.recover(last, unverified=lost) for lost in (True, False)]
        return self._step(starts, published, batch)

    def _empty_groups(self) -> list[Group]:
        """The empty group, verified or unverified: the records do not tell which one it was."""
        return [Group.new(self._taken.group, unverified=unverified) for unverified in (False, True)]

    def _step(self, starts: list[Group], published: Published, batch: list[Taken]) -> Repeated:
        """Repeat a batch from each start, and keep those that fit; if none fits, the first."""
        tried = self._tried(starts, published, batch)
        fitting = [each for each in tried if not each[0].difference]
        if not fitting and self._last is not None and not self.whole:
            shifted = _shifted(starts, published, [each.made for each, _ in tried])
            again = self._tried(shifted, published, batch)
            fitting = [each for each in again if not each[0].difference]
            starts = shifted if fitting else starts
        fitting = fitting or tried[:1]
        self._publish(fitting[0][1])
        unlike = {candidate.group.liveness(): candidate.group for candidate, _ in reversed(fitting)}
        self._groups = list(reversed(unlike.values()))
        self._before = (starts, batch)
        return fitting[0][0]

    def _tried(
        self, starts: Iterable[Group], published: Published, batch: list[Taken]
    ) -> list[tuple[Repeated, Iterable[Record]]]:
        return [
            _tried(start, published, batch, aside)
            for start in starts
            for aside in self._placements.fast_and_slow()
        ]

    def _publish(self, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, MemberAssignment | MemberGone | Dictionary):
                of_group = isinstance(record, Dictionary)
                kind = TopicKind.GROUPS if of_group else TopicKind.ASSIGNMENTS
                encoded = encode(record)
                self.newest[kind, encoded.key] = encoded.value

    def _repeat_to_tombstone(self, published: Published) -> Repeated:
        """Repeat the events before a tombstone: up to the oldest pending deletion.

        Earlier versions wrote a tombstone for every deleted group; this one writes it only for a
        group that never had a configuration.
        """
        waiting = (event for events in self._pending.values() for event in events)
        ends = (event.origin.sort_key for event in waiting if isinstance(event, GroupDeleted))
        end = min(ends, default=None)
        batch = [] if end is None else self._take(lambda at: at.sort_key <= end)
        group = (self._groups or self._empty_groups())[0]
        epoch = group.coordinator_epoch
        step = advance(group, batch, coordinator_epoch=epoch, assignors=_named)
        self._publish(step.records)
        self._groups = self._empty_groups() if step.group.dead else [step.group]
        difference = "" if step.group.dead else "the group was not deleted here"
        return Repeated(published, step.group, step.group.snapshot(), difference)


class _Placements:
    """Large placements, which the coordinator computes aside (`state.assignor_outcome`).

    The log does not show in which batch it had one. So every batch that asks for one is repeated
    twice: with the answer, and without it.
    """

    def __init__(self) -> None:
        self._known: dict[Question, Outcome] = {}
        self._were_asked = False

    def fast_and_slow(self) -> Iterator[Aside]:
        """First a placement that answers at once, then, if asked for, one that still computes."""
        self._were_asked = False
        yield self._answer
        if self._were_asked:
            yield self._compute

    def _compute(self, question: Question, work: Callable[[], Outcome]) -> None:
        self._answer(question, work)  # computed for the group as it was at the first question

    def _answer(self, question: Question, work: Callable[[], Outcome]) -> Outcome:
        self._were_asked = True
        if question not in self._known:
            self._known[question] = work()
        return self._known[question]


def _shifted(
    starts: Iterable[Group], published: Published, made: Iterable[GroupSnapshot]
) -> list[Group]:
    """The starts with the session clocks that would give the published deadlines."""
    record = published.record
    assert isinstance(record, GroupSnapshot)
    shifts_ms = {ms for each in made for ms in clock_shifts(record, each)}
    return [with_session_clock(start, ms) for start in starts for ms in sorted(shifts_ms)]


def _tried(
    start: Group, published: Published, batch: list[Taken], aside: Aside
) -> tuple[Repeated, Iterable[Record]]:
    record = published.record
    assert isinstance(record, GroupSnapshot)
    epoch = record.coordinator_epoch
    step = advance(start, batch, coordinator_epoch=epoch, assignors=_named, aside=aside)
    snapshots = [r for r in step.records if isinstance(r, GroupSnapshot)] or [step.group.snapshot()]
    same = [each for each in snapshots if encode(each).value == published.value]
    made = same[0] if same else snapshots[-1]
    difference = "" if same else _difference(record, made)
    return Repeated(published, step.group, made, difference), step.records


def _named(name: str) -> Assignor:
    """The assignor that the recording names."""
    return plugins.from_record(name, plugins.allowed_here())


def _difference(published: GroupSnapshot, repeated: GroupSnapshot) -> str:
    for each in fields(GroupSnapshot):
        one, other = getattr(published, each.name), getattr(repeated, each.name)
        same = np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other
        if not same:
            return f"{each.name}: published {_short(one)}, here {_short(other)}"
    return "the same values in other bytes: it was published by another version"


def _short(value: object) -> str:
    text = str(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 200 else f"{text[:200]}…"
