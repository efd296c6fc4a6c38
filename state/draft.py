"""The mutable twin of a group, on which one `advance` works before it makes the next `Group`.

Code replaces task vectors and never writes to them in place, because the original group shares
them. The draft also collects what only this batch knows: records to write, freed slots, causes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from operator import attrgetter, is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import Assignor, BoolArray
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import NOWHERE, Origin
from muster.protocol.ids import GroupId, MemberId, Role
from muster.protocol.records import (
    Fault,
    KeptDrain,
    MemberGone,
    MemberState,
    Record,
    Rejected,
)
from muster.protocol.settings import Settings
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import IntArray, TaskTable
from muster.state.assignor_outcome import Aside
from muster.state.causes import Causes
from muster.state.departed_members import Departed
from muster.state.group import Group, Member, Recovery, Target, Timers
from muster.state.holders import Holders
from muster.state.kept_drains import KeptDrains
from muster.state.liveness import ASKED
from muster.state.ownership import (
    NO_MEMBER,
    Codes,
    Copies,
    Lags,
    Orphan,
    Ownership,
    codes,
    minus,
    pairs_of,
    slot_of,
    task_of,
    union,
)
from muster.state.printable import cut
from muster.state.roster import Roster

Lookup = Callable[[str], Assignor]
_CARRIED = (
    *("id", "generation", "cause", "assignor", "settings", "table", "hashes", "drains", "dead"),
    *("sources", "found"),
)
_PARTS = ("owned", "target", "timers", "recovery")
_OF_GROUP = (*_CARRIED, *_PARTS, "roster", "sessions")
_PUBLISHED = attrgetter(
    *("generation", "cause", "assignor", "settings", "table", "drains", "dead", "sources", "found"),
    *("target.generation", "target.placed_ms", "target.moves", "target.memory"),
    *("target.active", "target.destination", "recovery.asked"),
    *("timers.followup_ms", "timers.delay_until_ms", "timers.drain_until_ms"),
    *("owned.holder", "owned.revoking", "owned.copies", "owned.ready", "owned.lags"),
    *("owned.duplicate", "owned.orphans"),
)
"""What `Group.snapshot` reads apart from the members and the liveness, and the tasks that a member
must give up although they are not in the table or not its own."""


class Draft:
    """Mutable twin of a `Group`: the group's attributes, and data of the batch.

    Attributes:
        group: the group before the batch.
        causes: why a new generation is due; empty = none is due.
        possible_causes: causes that count only if the assignor now gives another answer.
        departed: what the members had that left the placement in this batch.
        applied_answer: this batch applied a deferred answer, of which no member has its record yet.
        was_aside: that answer was computed aside.
        due: the assignor must run although no cause was added (a deadline, a last release).
        addressed: slots whose members get a record even if nothing changed for them.
        unread_again: of these, members that repeat a join and have not shown that they read the
            answer before.
        acknowledged: slots whose release was acknowledged in this batch.
        on_disk: copies that a member gave up in this batch, in a report with the lag of what is
            left on its disk.
        kept_drains: the drains that outlive their member.
        was_empty: in this batch the group learned of a moment without members; of Connect workers,
            without living ones.
        dismisses_more: the group is deleted, and members that have stopped wait for the next batch.
        touched: slots whose expected digest or state may be stale.
        freed_slots: slots freed in this batch; a new member gets one in the next batch at the
            earliest.
        replies: (member id, record) of this batch.
        rejected: dead letters of this batch.
        answered_refusals: (member id, incarnation, fault) of non-members answered in this batch;
            see `refusal_answers.py`.
        newest: origin of the newest event of this batch.
        asks_members: a new coordinator takes its first batch of a group that was read back.
        publishes_again: the record is published even if nothing in it changed.
    """

    id: GroupId
    generation: int
    cause: str
    assignor: str
    settings: Settings
    table: TaskTable
    hashes: NDArray[np.uint64]
    kept_drains: KeptDrains
    dead: bool
    sources: tuple[Source, ...]
    found: tuple[Found, ...]
    roster: Roster
    owned: Ownership
    target: Target
    timers: Timers
    recovery: Recovery

    def __init__(
        self, group: Group, coordinator_epoch: int, lookup: Lookup, aside: Aside | None = None
    ) -> None:
        self.group = group
        self.coordinator_epoch = coordinator_epoch
        self.lookup, self.aside = lookup, aside
        for name in _CARRIED:
            setattr(self, name, getattr(group, name))
        self.roster = group.roster.copy()
        for name in _PARTS:
            setattr(self, name, replace(getattr(group, name)))
        since = group.recovery.since_epoch
        self.since_epoch = self.recovery.since_epoch = coordinator_epoch if since is None else since
        self.sessions = group.sessions.copy()
        self.causes, self.possible_causes = Causes(), Causes()
        self.departed, self.newest = Departed(), NOWHERE
        self.applied_answer = self.was_aside = self.due = self.own_tick_is_read = False
        self.was_empty = self.dismisses_more = False
        self.addressed, self.acknowledged = set[int](), set[int]()
        self.unread_again = set[int]()
        self.touched, self.freed_slots = set[int](), set[int]()
        self.on_disk = set[int]()
        self.replies: list[tuple[str, Record]] = []
        self.answered_refusals: set[tuple[str, int, Fault]] = set()
        self.rejected: list[Rejected] = []
        is_new = coordinator_epoch != group.coordinator_epoch
        self.asks_members = self.publishes_again = is_new and bool(group.recovery.asked)
        self._before = _PUBLISHED(group)
        self._shared = (group.owned.holder, group.owned.revoking)
        self._holders = Holders()
        self._freed: set[int] = set()
        self._drains_due: list[tuple[int, int]] | None = None  # heap of (deadline, slot)

    @property
    def changed(self) -> bool:
        """Whether anything but liveness differs from the group before the batch, or is due again.

        It is computed from the values, so code that sets one need not note that it did.
        """
        if self.publishes_again or self.roster.is_changed:
            return True
        if not self.sessions.has_same_apart(self.group.sessions):
            return True
        values_now, values_before = _PUBLISHED(self), self._before
        return not all(map(is_, values_now, values_before)) and any(
            map(_differ, values_now, values_before)
        )

    # ------------------------------------------------------------------------------- members

    def member(self, slot: int) -> Member:
        """The member in a slot, which must be taken."""
        return self.roster.member(slot)

    def patience_ms(self, slot: int) -> int:
        """How long a member may take for what it is asked to do: its rebalance timeout, in ms."""
        return self.member(slot).rebalance_timeout_ms or self.settings.rebalance_timeout_ms

    def update(self, slot: int, **changes: object) -> Member:
        """Change fields of a member."""
        member = replace(self.member(slot), **changes)  # type: ignore[arg-type]  # by name
        self.roster.put(member)
        return member

    def free_slot(self) -> int:
        """The lowest slot that is free and was not freed in this batch."""
        slot = self.roster.free_slot(self.freed_slots)
        if slot >= len(self.sessions.last_ms):
            self.sessions.grow(max(16, 2 * (slot + 1)))
        return slot

    def add_member(self, member: Member) -> None:
        """Add a member in its slot, which must be free."""
        self.roster.add(member)
        self.sessions.start(member.slot, member.session_timeout_ms)

    def remove_member(self, slot: int) -> Member:
        """Remove a member; `drop_gone` drops what it had, once per batch."""
        member = self.roster.remove(slot)
        self.was_empty |= not self.roster
        self.sessions.clear(slot)
        self.freed_slots.add(slot)
        self.addressed.discard(slot)
        self.acknowledged.discard(slot)
        self.recovered(slot)
        self.set_drain_deadline(slot, None)
        return member

    def set_drain_deadline(self, slot: int, at_ms: int | None) -> None:
        """Set when placements leave a draining member out; None = no deadline."""
        deadlines_ms = self.timers.drain_until_ms
        if at_ms is None and slot not in deadlines_ms:
            return
        if deadlines_ms is self.group.timers.drain_until_ms:  # copied once a batch
            deadlines_ms = self.timers.drain_until_ms = dict(deadlines_ms)
        deadlines_ms.pop(slot, None)
        if at_ms is not None:
            deadlines_ms[slot] = at_ms
            if self._drains_due is not None:
                heappush(self._drains_due, (at_ms, slot))

    def next_drained_ms(self) -> int | None:
        """The earliest deadline of a draining member that is later than the group clock."""
        deadlines_ms, now_ms = self.timers.drain_until_ms, self.sessions.clock_ms
        if self._drains_due is None:
            self._drains_due = [(at_ms, slot) for slot, at_ms in deadlines_ms.items()]
            heapify(self._drains_due)
        due = self._drains_due
        while due and (due[0][0] <= now_ms or deadlines_ms.get(due[0][1]) != due[0][0]):
            heappop(due)
        return due[0][0] if due else None

    @property
    def drains(self) -> tuple[KeptDrain, ...]:
        """The drains that outlive their member, by member id."""
        return self.kept_drains.all()

    @drains.setter
    def drains(self, drains: tuple[KeptDrain, ...]) -> None:
        self.kept_drains = KeptDrains(drains)

    def recovered(self, slot: int) -> None:
        """Stop waiting for a member's report; after the last one a placement is due."""
        if slot in self.recovery.asked:
            self.own_asked().discard(slot)
            if self.recovery.is_doubtful and not self.recovery.asked:
                self.recovery.is_doubtful = False
                # The newest records are questions without tasks.
                self.addressed |= set(self.roster.slots)

    def own_asked(self) -> set[int]:
        """`Recovery.asked` as a set of this draft, which may be changed."""
        asked = self.recovery.asked
        if not isinstance(asked, set):
            asked = self.recovery.asked = set(asked)
        return asked

    # --------------------------------------------------------------------------------- tasks

    def mask(self, slots: Iterable[int]) -> BoolArray:
        """bool[slots + 1]: true for the given slots; the last entry, `NO_MEMBER`, is false."""
        mask = np.zeros(len(self.roster.by_slot) + 1, dtype=np.bool_)
        mask[list(slots)] = True
        return mask

    def tasks_of(self, slot: int) -> IntArray:
        """The actives that a member has, ascending, also those that it must give up."""
        return self._holders.tasks(self.owned.holder, slot)

    def orphans_of(self, slot: int) -> Sequence[Orphan]:
        """The orphans that a member has."""
        return self.owned.orphans[slice(*self._orphan_range(slot))]

    def set_orphans_of(self, slot: int, orphans: Iterable[Orphan]) -> None:
        """Replace the orphans that a member has."""
        start, end = self._orphan_range(slot)
        others = self.owned.orphans
        self.owned.orphans = (*others[:start], *sorted(orphans), *others[end:])

    def _orphan_range(self, slot: int) -> tuple[int, int]:
        """Where a member's orphans begin and end."""
        orphans = self.owned.orphans
        return bisect_left(orphans, (slot,)), bisect_left(orphans, (slot + 1,))

    def set_holder(self, tasks: IntArray, slot: int, *, giving_up: bool = False) -> None:
        """Record a member as the holder of these actives."""
        if len(tasks):
            self._own_holders()
            self.owned.holder[tasks], self.owned.revoking[tasks] = slot, giving_up
            self._holders.gain(slot, tasks)

    def free(self, tasks: IntArray) -> None:
        """Record that no member has these actives any more."""
        if len(tasks):
            self._own_holders()
            self.owned.holder[tasks], self.owned.revoking[tasks] = NO_MEMBER, False

    def _own_holders(self) -> None:
        """Copy the two vectors before they are written to, unless this draft has made them."""
        if self.owned.holder is self._shared[0]:
            self.owned.holder = self.owned.holder.copy()
        if self.owned.revoking is self._shared[1]:
            self.owned.revoking = self.owned.revoking.copy()

    def free_gone(self) -> None:
        """Free all that the members had whose slots were freed in this batch."""
        newly_freed = self.freed_slots - self._freed
        if not newly_freed:
            return
        is_freed = self.mask(newly_freed)
        for slot in newly_freed:
            held_tasks = self.tasks_of(slot)
            self.departed.note_tasks(Role.ACTIVE, pairs_of(held_tasks, slot))
            self.free(held_tasks)
        for role, copies in self.owned.copies.items():
            pairs = union(copies.kept, copies.releasing)
            self.departed.note_tasks(role, pairs[is_freed[slot_of(pairs)]])
        self._release_copies(is_freed)
        self._freed |= newly_freed

    def drop_gone(self) -> None:
        """Free all that gone members had, and remove them from the target."""
        self.free_gone()
        if not self.freed_slots:
            return
        is_freed = self.mask(self.freed_slots)
        is_on_the_way = is_freed[self.target.active] & (self.owned.holder != self.target.active)
        is_on_the_way[self.departed.tasks(Role.ACTIVE)] = False
        coming_tasks = np.flatnonzero(is_on_the_way).astype(np.int32)
        self.departed.note_tasks(Role.ACTIVE, codes(coming_tasks, self.target.active[coming_tasks]))
        for name in ("active", "destination"):
            slots = getattr(self.target, name)
            setattr(self.target, name, np.where(is_freed[slots], np.int32(NO_MEMBER), slots))
        for role, copies in self.owned.copies.items():
            self.owned.set_copies(role, wanted=_without(copies.wanted, is_freed))
        remains = ~is_freed[slot_of(self.owned.lags.pair)]
        self.owned.lags = self.owned.lags.where(remains)

    def release(self, slots: Iterable[int]) -> None:
        """Free all that these members hold; they stay in the target."""
        slots = list(slots)
        for slot in slots:
            self.free(self.tasks_of(slot))
        self._release_copies(self.mask(slots))

    def _release_copies(self, leaves: BoolArray) -> None:
        for role, copies in self.owned.copies.items():
            kept, releasing = _without(copies.kept, leaves), _without(copies.releasing, leaves)
            self.owned.set_copies(role, kept=kept, releasing=releasing)
        self.owned.ready = _without(self.owned.ready, leaves)
        self.owned.duplicate = _without(self.owned.duplicate, leaves)
        if self.owned.orphans:
            self.owned.orphans = tuple(o for o in self.owned.orphans if not leaves[o.slot])
        self.promote_duplicates()

    def promote_duplicates(self) -> None:
        """Where a task has no holder any more, a member with a duplicate becomes its holder."""
        if self.freed_slots:  # what they had is freed at the batch's end; they become no holders
            self.owned.duplicate = _without(self.owned.duplicate, self.mask(self.freed_slots))
        if len(self.owned.duplicate) == 0:
            return
        task, slot = task_of(self.owned.duplicate), slot_of(self.owned.duplicate)
        is_first = np.zeros(len(task), dtype=np.bool_)
        is_first[np.unique(task, return_index=True)[1]] = True
        is_promoted = is_first & (self.owned.holder[task] == NO_MEMBER)
        if not is_promoted.any():
            return
        for promoted_task, owner in zip(task[is_promoted], slot[is_promoted].tolist(), strict=True):
            # An UNREVOKED member has a record that asks it to give the duplicate up.
            is_unrevoked = self.member(owner).state is MemberState.UNREVOKED
            task_index = np.array([promoted_task], dtype=np.int32)
            self.set_holder(task_index, owner, giving_up=is_unrevoked)
        self.owned.duplicate = self.owned.duplicate[~is_promoted]
        self.touched.update(slot[is_promoted].tolist())

    def claim(self, slot: int, tasks: IntArray, *, giving_up: bool = False) -> None:
        """Record that a member has these actives: as holder, or as a duplicate to give up.

        Tasks of a member that is away count as free, because it runs nothing. What the group knew
        of the member's copies of these tasks is out of date.
        """
        holders = self.owned.holder[tasks]
        is_free = self._are_free(holders)
        self.set_holder(tasks[is_free], slot, giving_up=giving_up)
        held_by_others = tasks[~is_free & (holders != slot)]
        duplicate = union(self.owned.duplicate, pairs_of(held_by_others, slot))
        self.owned.duplicate = minus(duplicate, pairs_of(tasks[is_free], slot))
        claimed = pairs_of(tasks, slot)
        for role, copies in self.owned.copies.items():
            kept, releasing = minus(copies.kept, claimed), minus(copies.releasing, claimed)
            self.owned.set_copies(role, kept=kept, releasing=releasing)

    def claim_each(self, tasks: IntArray, slots: IntArray, giving_up: BoolArray) -> None:
        """`claim` one task for each of these members, in this order."""
        is_first = np.zeros(len(tasks), dtype=np.bool_)
        is_first[np.unique(tasks, return_index=True)[1]] = True
        is_granted = is_first & self._are_free(self.owned.holder[tasks])
        holder, revoking = self.owned.holder.copy(), self.owned.revoking.copy()
        holder[tasks[is_granted]] = slots[is_granted]
        revoking[tasks[is_granted]] = giving_up[is_granted]
        self.owned.holder, self.owned.revoking = holder, revoking
        is_duplicate = holder[tasks] != slots
        duplicate = codes(tasks[is_duplicate], slots[is_duplicate])
        self.owned.duplicate = union(self.owned.duplicate, duplicate)

    def _are_free(self, holders: IntArray) -> BoolArray:
        """bool[K]: whether tasks of these holders, `NO_MEMBER` among them, count as free."""
        is_free: BoolArray = holders == NO_MEMBER
        for index in np.flatnonzero(~is_free).tolist():
            # Not by `member_columns`: to renew them for each of thousands of joins would cost more.
            member = self.roster.by_slot[holders[index]]
            is_free[index] = member is not None and member.away  # None: it left just now
        return is_free

    # ------------------------------------------------------------------------------- replies

    def ask(self, slot: int) -> None:
        """Publish a member's record again, which it may not have read, and ask for a report."""
        self.sessions.flags[slot] |= ASKED
        self.addressed.add(slot)

    def tombstone(self, member: MemberId) -> None:
        """Write the tombstone of a member's assignment."""
        self.replies.append((member, MemberGone(group=self.id, member=member)))

    def reject(self, origin: Origin, reason: DeadLetter, message: str) -> None:
        """Write a dead letter for an event that changed nothing."""
        self.rejected.append(Rejected(origin=origin, reason=reason, message=cut(message)))

    # ---------------------------------------------------------------------------------- done

    def finished(self, *, changed: bool) -> Group:
        """The immutable group of this draft, which shares its arrays from now on.

        `changed`: whether the draft is; then the group is this coordinator's.
        """
        self._shared = (self.owned.holder, self.owned.revoking)
        self.recovery.asked = frozenset(self.recovery.asked)
        epoch = self.coordinator_epoch if changed else self.group.coordinator_epoch
        values: dict[str, Any] = {name: getattr(self, name) for name in _OF_GROUP}
        return Group(**values, coordinator_epoch=epoch)


def _differ(value: Any, other_value: Any) -> bool:  # noqa: ANN401  # values of one attribute
    """Whether two values differ; most are one object."""
    if value is other_value:
        return False
    if isinstance(value, np.ndarray):
        return not np.array_equal(value, other_value)
    if isinstance(value, Copies | Lags):
        return any(map(_differ, value, other_value))
    if isinstance(value, Mapping) and isinstance(other_value, Mapping):
        return value.keys() != other_value.keys() or any(
            _differ(value[key], other_value[key]) for key in value
        )
    return bool(value != other_value)


def _without(pairs: Codes, leaves: BoolArray) -> Codes:
    return pairs[~leaves[slot_of(pairs)]] if len(pairs) else pairs
