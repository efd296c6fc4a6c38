"""The coordinator as a value: the real `advance`, each (group, events, epoch) computed once.

Each computed step is checked at once against the laws that concern one step only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from exploration.member import GROUP
from exploration.values import OFFSET, TIME, Values, shape_of

from muster.protocol.events import Drain, GroupConfig, Join, Leave, Origin, Tick
from muster.protocol.records import GroupSnapshot, MemberAssignment, MemberGone, WakeUp
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.state import invariants, lost_checkpoint, placement_pauses
from muster.state.errors import InvariantViolation
from muster.state.group import Group
from muster.state.liveness import Liveness
from muster.state.machine import advance

REBUILD_MS = 4_000
"""A published snapshot that is older is published again, as in `streams/batch/group_batch.py`."""
TOPIC = "membership"
STATEFUL = ("high-availability", "learner")
"""Assignors of which the tasks have state that a copy must restore."""


class LawBroken(Exception):
    """A state or a step breaks a law."""


class Coordinator(NamedTuple):
    """A coordinator between two batches. Its checkpoint is this value.

    Attributes:
        epoch: coordinator epoch.
        group: number of the group after the last committed batch.
        through: offset of the next row to take.
        begun: end of the batch that was begun and not committed; it is taken again. 0 = none.
        held: numbers of the records that it computed and has not published yet.
        batches: how many batches it may still begin; -1 = any.
        until: moment by which it has read a later claim, and begins none; 0 = none is there.
        obeys: whether it obeys the tick that names a later coordinator; old versions do not.
    """

    epoch: int
    group: int
    through: int
    begun: int = 0
    held: tuple[int, ...] = ()
    batches: int = -1
    until: int = 0
    obeys: bool = True

    def begins(self, now: int) -> bool:
        """Whether it may still begin a batch."""
        return self.batches != 0 and not 0 < self.until <= now

    def relative(self, values: Values, now: int, end: int) -> tuple[Any, ...]:
        """The coordinator without its moments."""
        return (
            self.epoch,
            values.relative(self.group, now),
            self.through - end,
            self.begun - end if self.begun else None,
            tuple([values.relative(n, now) for n in self.held]),
            self.batches,
            self.obeys,
            self.until and max(self.until - now, 0),
        )


class Batch(NamedTuple):
    """What a batch led to: the group after it, and the numbers of its records, in order."""

    group: int
    records: tuple[int, ...]


def whole(group: Group) -> tuple[Any, ...]:
    """All that makes one group differ from another: its record, and what is stored beside it."""
    stored = group.liveness()
    soft, end = Liveness.from_bytes(stored)
    return (group.snapshot(), soft, json.loads(stored[end:]))


def living(group: Group) -> tuple[Any, ...]:
    """What of a group may still be read.

    No step reads when a free slot was last heard, or when a finished wait ended.
    """
    record, soft, rest = whole(group)
    soft.last_ms = np.where(soft.timeout_ms > 0, soft.last_ms, 0)
    if rest["wary"] is not None and rest["wary"] <= soft.clock_ms:
        rest["wary"] = 0
    return (record, soft, rest)


class Coordinators:
    """What coordinators do."""

    def __init__(
        self,
        values: Values,
        assignors: Callable[[str], Any] | None = None,
        rebuild_ms: int = REBUILD_MS,
    ) -> None:
        self.values = values
        self.seen: Callable[[Group], Any] = living
        self._rebuild_ms = rebuild_ms
        self._assignors = {} if assignors is None else {"assignors": assignors}
        self.taken: dict[tuple[int, tuple[int, ...], int, bool], Batch | str] = {}
        self._recovered: dict[tuple[int, bool], int] = {}
        self._checked: dict[int, Hashable] = {}  # group -> what is published of it

    def configured(self, settings: dict[str, str], assignor: str, tasks: int) -> Batch:
        """A group that was configured before the first member came."""
        config = GroupConfig(
            group=GROUP,
            assignor=assignor,
            settings=parse_settings(settings, assignor),
            tasks=(Subtopology("0", tasks, stateful=assignor in STATEFUL),),
            origin=Origin("config", 0, 0, TIME),
        )
        step = advance(Group.new(GROUP), [config], coordinator_epoch=1, **self._assignors)
        soft, _ = Liveness.from_bytes(step.group.liveness())
        assert dict(soft.through) == {("config", 0): 0}
        return Batch(self.put(step.group), tuple(self.values.put(r) for r in step.records))

    def put(self, group: Group) -> int:
        """The number of a group.

        Raises:
            LawBroken, InvariantViolation: the group by itself breaks a law.
        """
        number = self.values.put(group, self.seen)
        if number not in self._checked:
            invariants.check(group)
            self._checked[number] = _recoverable(group)
        return number

    def recovered(self, snapshot: int, *, predecessors_obey: bool = False) -> tuple[int, int]:
        """The group of a published snapshot, and the offset of the next row to take.

        Args:
            snapshot: its number.
            predecessors_obey: the coordinator before obeys the first tick of the one that recovers.
        """
        record: GroupSnapshot = self.values[snapshot]
        place = (snapshot, predecessors_obey)
        if place not in self._recovered:
            self._recovered[place] = self.values.put(
                Group.recover(record, predecessors_obey=predecessors_obey), self.seen
            )
        read = [offset for topic, _, offset in record.through if topic == TOPIC]
        return self._recovered[place], (read[0] + 1 if read else OFFSET)

    def batch(
        self,
        group: int,
        events: tuple[int, ...],
        epoch: int,
        published: int,
        *,
        obeys: bool = True,
    ) -> Batch:
        """Take a batch of events.

        Raises:
            LawBroken: the step breaks a law.
        """
        place = (group, events, epoch, obeys)
        known = self.taken.get(place)
        if known is None:
            try:
                known = self._step(group, events, epoch, obeys=obeys)
            except (LawBroken, InvariantViolation) as law:
                known = str(law)
            self.taken[place] = known
        if isinstance(known, str):
            raise LawBroken(known)
        return self._republished(known, published)

    def silent(
        self, group: int, event: int, epoch: int, published: int, *, obeys: bool = True
    ) -> int | None:
        """The group after an event that changes nothing but what only later events may show.

        The event publishes nothing that is read, and every batch that begins with it leads to the
        same as that batch without it, taken by the group that is returned.

        Args:
            group: number of the group before the event.
            event: number of the event.
            epoch: of the coordinator.
            published: newest snapshot of the group; 0 = no coordinator reads snapshots any more.
            obeys: whether the coordinator obeys ticks of a later one.

        Returns:
            The number of the group after it; None = the event is not silent.
        """
        try:
            batch = self.batch(group, (event,), epoch, published, obeys=obeys)
        except LawBroken:
            return None
        before, after = self.values[group], self.values[batch.group]
        if any(published or not isinstance(self.values[n], GroupSnapshot) for n in batch.records):
            return None
        if batch.records and not (lost_checkpoint.is_halted(before) and after.recovery.asked):
            return None
        is_alike = lost_checkpoint.is_halted(before) == lost_checkpoint.is_halted(after)
        is_alike &= placement_pauses.is_shut(before) == placement_pauses.is_shut(after)
        is_alike &= not after.is_left_to_a_later_one(epoch)
        return batch.group if is_alike else None

    def _step(self, number: int, events: tuple[int, ...], epoch: int, *, obeys: bool) -> Batch:
        before: Group = self.values[number]
        taken = [self.values[n] for n in events]
        if not obeys:
            taken = [_without_later(event, epoch) for event in taken]
        step = advance(before, taken, coordinator_epoch=epoch, **self._assignors)
        after = step.group
        if obeys and any(_names_later(event, epoch) for event in taken):
            _require(not step.records, "a coordinator publishes behind a tick of a later one")
        if after.is_left_to_a_later_one(epoch):
            _require(not step.records, "a coordinator publishes for a group that it has left")
            return Batch(self.values.put(after, self.seen), ())
        _only_grows(before, after, taken)
        _follow_up_waits(before, after)
        _orders_count(before, after, taken)
        gone = {m.id for m in before.roster} - {m.id for m in after.roster}
        told = {record.member for record in step.records if isinstance(record, MemberGone)}
        _require(gone <= told, f"no tombstone tells that {', '.join(gone - told)} is gone")
        number_after = self.put(after)
        core = self._checked[number_after]
        if snapshots := [r for r in step.records if isinstance(r, GroupSnapshot)]:
            _require(_core(snapshots[-1]) == core, "the published record is another group")
        elif number in self._checked:
            _require(self._checked[number] == core, "a change was not published")
        return Batch(number_after, tuple(self.values.put(r) for r in step.records))

    def _republished(self, batch: Batch, published: int) -> Batch:
        if not published or any(isinstance(self.values[n], GroupSnapshot) for n in batch.records):
            return batch
        after: Group = self.values[batch.group]
        record = after.snapshot()
        if record.clock_ms - self.values[published].clock_ms < self._rebuild_ms:
            return batch
        return batch._replace(records=(*batch.records, self.values.put(record)))


def _names_later(event: Any, epoch: int) -> bool:
    """Whether an event is a tick that names a later coordinator."""
    named = event.published if isinstance(event, Tick) else None
    return named is not None and named.coordinator_epoch > epoch


def _without_later(event: Any, epoch: int) -> Any:
    """The event as a coordinator takes it that knows no ticks of a later one."""
    return replace(event, published=None) if _names_later(event, epoch) else event


def _require(holds: bool, law: str) -> None:
    if not holds:
        raise LawBroken(law)


def _only_grows(before: Group, after: Group, events: list[Any]) -> None:
    """Generations, and the revisions and epochs of one incarnation, only grow."""
    _require(after.generation >= before.generation, "the generation fell")
    _require(after.target.generation >= before.target.generation, "the target's generation fell")
    old = {(m.id, m.incarnation): m for m in before.roster}
    joins = {event.incarnation for event in events if isinstance(event, Join)}
    for member in after.roster:
        was = old.get((member.id, member.incarnation))
        if was is None or member.incarnation in joins:  # a fenced member starts again by a join
            continue
        _require(member.revision >= was.revision, f"the revision of {member.id} fell")
        _require(member.epoch >= was.epoch, f"the epoch of {member.id} fell")


def _follow_up_waits(before: Group, after: Group) -> None:
    """A follow-up is not asked for before the group has done what the last answer says."""
    if after.generation > before.generation and after.cause == "follow-up":
        owned, target = after.owned, after.target
        is_done = target.generation == after.generation or not (owned.holder != target.active).any()
        _require(is_done, "a follow-up is asked for before the last answer is carried out")


def _orders_count(before: Group, after: Group, events: list[Any]) -> None:
    """The newest drain of a member that stays holds; a process that has left is no member."""
    for place, event in enumerate(events):
        member = getattr(event, "member", None)
        later = [each for each in events[place + 1 :] if getattr(each, "member", "") == member]
        if isinstance(event, Drain) and not any(isinstance(each, Drain) for each in later):
            # One that expired before the order, and joined after it, was no member at its time.
            was = {(m.id, m.incarnation) for m in before.roster}
            stays = [m for m in after.roster if (m.id, m.incarnation) in was and m.id == member]
            holds = all(m.draining == event.on for m in stays)
            _require(holds, f"the drain of {event.member} was forgotten")
        if isinstance(event, Leave) and not event.temporary and not later:
            there = [m for m in after.roster if m.id == event.member]
            left = not any(m.incarnation == event.incarnation for m in there)
            _require(left, f"{event.member} has left and is a member")


def _recoverable(group: Group) -> Hashable:
    """What is published of a group; checks that the group is recovered from it as it is."""
    record, stored = group.snapshot(), group.liveness()
    core = _core(record)
    again = Group.restore(record, stored)
    _require(_core(again.snapshot()) == core, "a restored group differs")
    _require(again.liveness() == stored, "a restored liveness differs")
    found = Group.recover(record).snapshot()
    _require(
        found.holder.tolist() == record.holder.tolist()
        and found.generation == record.generation
        and [m.id for m in found.members] == [m.id for m in record.members],
        "a recovered group has other owners",
    )
    return core


def _core(record: GroupSnapshot) -> Hashable:
    """A record without what a batch of heartbeats changes."""
    return shape_of(replace(record, through=(), clock_ms=0, next_ms=None, floor=0))


def for_member(record: Any) -> bool:
    """Whether a record is addressed to a member."""
    return isinstance(record, MemberAssignment | MemberGone)


def is_wake_up(record: Any) -> bool:
    """Whether a record is a wake-up."""
    return isinstance(record, WakeUp)
