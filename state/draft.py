"""The mutable twin of a group, on which one `advance` works before it makes the next `Group`.

Code replaces task vectors and never writes to them in place, because the original group shares
them. The draft also collects what only this batch knows: records to write, freed slots, causes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
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
    MemberAssignment,
    MemberGone,
    MemberState,
    Record,
    Rejected,
)
from muster.protocol.settings import Settings
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import IntArray, TaskTable
from muster.state.causes import Causes
from muster.state.departed import Departed
from muster.state.group import Group, Member, Recovery, Target, Timers
from muster.state.liveness import ASKED
from muster.state.ownership import (
    NO_MEMBER,
    Codes,
    Ownership,
    codes,
    no_codes,
    slot_of,
    task_of,
    union,
)
from muster.state.printable import cut
from muster.state.roster import Roster

TURNED_AWAY_MAX = 200
"""At most this many faults for processes that are not members are written per group and batch."""
Lookup = Callable[[str], Assignor]
_CARRIED = (
    *("id", "generation", "cause", "assignor", "settings", "table", "hashes", "drains", "dead"),
    *("sources", "found"),
)
_PARTS = ("owned", "target", "timers", "recovery")


class Draft:
    """Mutable twin of a `Group`: the group's attributes, and data of the batch.

    Attributes:
        group: the group before the batch.
        causes: why a new generation is due; empty = none is due.
        possible_causes: causes that count only if the assignor now gives another answer.
        departed: what the members had that left the placement in this batch.
        answered: this batch applied a plug-in's answer, of which no member has its record yet.
        due: the assignor must run although no cause was added (a deadline, a last release).
        answer: slots that get a record even if nothing changed for them.
        acknowledged: slots whose release was acknowledged in this batch.
        touched: slots whose expected digest or state may be stale.
        gone: slots freed in this batch; no other member gets one before the next batch.
        replies: (member id, record) of this batch.
        rejected: dead letters of this batch.
        turned_away: (member id, incarnation, fault) of non-members answered in this batch.
        newest: origin of the newest event of this batch.
        changed: whether anything but liveness changed.
    """

    id: GroupId
    generation: int
    cause: str
    assignor: str
    settings: Settings
    table: TaskTable
    hashes: NDArray[np.uint64]
    drains: tuple[KeptDrain, ...]
    dead: bool
    sources: tuple[Source, ...]
    found: tuple[Found, ...]
    roster: Roster
    owned: Ownership
    target: Target
    timers: Timers
    recovery: Recovery

    def __init__(self, group: Group, coordinator_epoch: int, lookup: Lookup) -> None:
        self.group = group
        self.coordinator_epoch = coordinator_epoch
        self.lookup = lookup
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
        self.answered = self.due = self.fence_is_read = False
        self.answer, self.acknowledged = set[int](), set[int]()
        self.touched, self.gone = set[int](), set[int]()
        self.replies: list[tuple[str, Record]] = []
        self.turned_away: set[tuple[str, int, Fault]] = set()
        self.rejected: list[Rejected] = []
        self.changed = coordinator_epoch != group.coordinator_epoch and bool(group.recovery.asked)

    # ------------------------------------------------------------------------------- members

    def member(self, slot: int) -> Member:
        """The member in a slot, which must be taken."""
        return self.roster.member(slot)

    def update(self, slot: int, **changes: object) -> Member:
        """Change fields of a member."""
        member = replace(self.member(slot), **changes)  # type: ignore[arg-type]  # by name
        self.roster.put(member)
        self.changed = True
        return member

    def free_slot(self) -> int:
        """The lowest slot that is free and was not freed in this batch."""
        slot = self.roster.free_slot(self.gone)
        if slot >= len(self.sessions.last_ms):
            self.sessions.grow(max(16, 2 * (slot + 1)))
        return slot

    def seat(self, member: Member) -> None:
        """Add a member in its slot, which must be free."""
        self.roster.seat(member)
        self.sessions.seat(member.slot, member.session_timeout_ms)
        self.changed = True

    def unseat(self, slot: int) -> Member:
        """Remove a member; `drop_gone` drops what it had, once per batch."""
        member = self.roster.unseat(slot)
        self.sessions.clear(slot)
        self.gone.add(slot)
        self.answer.discard(slot)
        self.acknowledged.discard(slot)
        self.recovered(slot)
        self.timers.drain_until_ms = {
            s: at for s, at in self.timers.drain_until_ms.items() if s != slot
        }
        self.changed = True
        return member

    def rename(self, slot: int, member: Member) -> None:
        """Give a member's slot to another process, with the same or another member id."""
        self.roster.rename(slot, member)
        self.changed = True

    def recovered(self, slot: int) -> None:
        """Stop waiting for a member's report; after the last one a placement is due."""
        if slot in self.recovery.asked:
            self.recovery.asked -= {slot}
            self.changed = True
            if self.recovery.is_doubtful and not self.recovery.asked:
                self.recovery.is_doubtful = False
                self.answer |= set(
                    self.roster.slots
                )  # the newest records are questions without tasks

    # --------------------------------------------------------------------------------- tasks

    def mask(self, slots: Iterable[int]) -> BoolArray:
        """bool[slots + 1]: true for the given slots; the last entry, `NO_MEMBER`, is false."""
        mask = np.zeros(len(self.roster.by_slot) + 1, dtype=np.bool_)
        mask[list(slots)] = True
        return mask

    def drop_gone(self) -> None:
        """Drop everything that belonged to slots freed in this batch."""
        if self.gone:
            self._remember_gone()
            self.release(self.gone, wanted=True)

    def _remember_gone(self) -> None:
        gone = self.mask(self.gone)
        owner = np.where(self.owned.holder == NO_MEMBER, self.target.active, self.owned.holder)
        had = np.flatnonzero(gone[owner]).astype(np.int32)
        self.departed.had(Role.ACTIVE, codes(had, owner[had]))
        for role, copies in self.owned.copies.items():
            pairs = union(copies.kept, copies.going)
            self.departed.had(role, pairs[gone[slot_of(pairs)]])

    def release(self, slots: Iterable[int], *, wanted: bool = False) -> None:
        """Free all that these members hold; `wanted`: remove them from the target as well."""
        gone = self.mask(slots)
        lost = gone[self.owned.holder]
        self.owned.holder = np.where(lost, np.int32(NO_MEMBER), self.owned.holder)
        self.owned.revoking = self.owned.revoking & ~lost
        for role, copies in self.owned.copies.items():
            kept, going = _without(copies.kept, gone), _without(copies.going, gone)
            self.owned.set_copies(role, kept=kept, going=going)
        self.owned.ready = _without(self.owned.ready, gone)
        self.owned.duplicate = _without(self.owned.duplicate, gone)
        self.owned.orphans = tuple(o for o in self.owned.orphans if not gone[o.slot])
        self.promote_duplicates()
        if not wanted:
            return
        self.target.active = np.where(
            gone[self.target.active], np.int32(NO_MEMBER), self.target.active
        )
        self.target.destination = np.where(
            gone[self.target.destination], np.int32(NO_MEMBER), self.target.destination
        )
        for role, copies in self.owned.copies.items():
            self.owned.set_copies(role, wanted=_without(copies.wanted, gone))
        stays = ~gone[slot_of(self.owned.lags.pair)]
        self.owned.lags = self.owned.lags.where(stays)

    def promote_duplicates(self) -> None:
        """Where a task has no holder any more, a member with a duplicate becomes its holder."""
        if len(self.owned.duplicate) == 0:
            return
        task, slot = task_of(self.owned.duplicate), slot_of(self.owned.duplicate)
        first = np.zeros(len(task), dtype=np.bool_)
        first[np.unique(task, return_index=True)[1]] = True
        up = first & (self.owned.holder[task] == NO_MEMBER)
        holder, revoking = self.owned.holder.copy(), self.owned.revoking.copy()
        # An UNREVOKED member has a record that asks it to give the duplicate up; others have none.
        asked = [self.member(s).state is MemberState.UNREVOKED for s in slot[up].tolist()]
        holder[task[up]], revoking[task[up]] = slot[up], asked
        self.owned.holder, self.owned.revoking = holder, revoking
        self.owned.duplicate = self.owned.duplicate[~up]
        self.touched.update(slot[up].tolist())

    def claim(self, slot: int, tasks: IntArray, *, giving_up: bool = False) -> None:
        """Record that a member has these actives: as holder, or as a duplicate to give up.

        Tasks of a member that is away count as free, because it runs nothing.
        """
        held_by = self.owned.holder[tasks]
        # Not by `columns`: to renew them for each of thousands of joins would cost more.
        holders = (
            None if slot == NO_MEMBER else self.roster.by_slot[slot] for slot in held_by.tolist()
        )
        away = (member is not None and member.away for member in holders)  # None: it left just now
        free = (held_by == NO_MEMBER) | np.fromiter(away, dtype=np.bool_, count=len(tasks))
        mine = tasks[free]
        holder, revoking = self.owned.holder.copy(), self.owned.revoking.copy()
        holder[mine], revoking[mine] = slot, giving_up
        self.owned.holder, self.owned.revoking = holder, revoking
        others = tasks[~free & (holder[tasks] != slot)]
        self.owned.duplicate = union(self.owned.duplicate, _pairs(others, slot))

    # ------------------------------------------------------------------------------- replies

    def fault(
        self, member: str, incarnation: int, fault: Fault, message: str, revision: int = 0
    ) -> None:
        """Write a record with a fault to a process; repeats within the batch are dropped."""
        is_member = member in self.roster.by_id and fault is Fault.FENCED_MEMBER_EPOCH
        if not is_member:
            if (member, incarnation, fault) in self.turned_away:
                return
            if len(self.turned_away) >= TURNED_AWAY_MAX:
                return  # the process asks again and is answered in a later batch
            self.turned_away.add((member, incarnation, fault))
        record = MemberAssignment(
            group=self.id,
            member=MemberId(member),
            incarnation=incarnation,
            coordinator_epoch=self.coordinator_epoch,
            generation=self.generation,
            epoch=0,
            revision=revision,
            fault=fault,
            session_timeout_ms=self.settings.session_timeout_ms,
            heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
            message=cut(message),
        )
        if not is_member or (member, record) not in self.replies:
            self.replies.append((member, record))

    def tombstone(self, member: MemberId) -> None:
        """Write the tombstone of a member's assignment."""
        self.replies.append((member, MemberGone(group=self.id, member=member)))

    def reject(self, origin: Origin, reason: DeadLetter, message: str) -> None:
        """Write a dead letter for an event that changed nothing."""
        self.rejected.append(Rejected(origin=origin, reason=reason, message=cut(message)))

    def ask(self, slot: int) -> None:
        """Publish the member's record again and ask for a report."""
        self.sessions.flags[slot] |= ASKED
        self.answer.add(slot)

    # ---------------------------------------------------------------------------------- done

    def finished(self) -> Group:
        """The immutable group of this draft."""
        epoch = self.coordinator_epoch if self.changed else self.group.coordinator_epoch
        carried: dict[str, Any] = {name: getattr(self, name) for name in (*_CARRIED, *_PARTS)}
        return replace(
            self.group,
            **carried,
            coordinator_epoch=epoch,
            roster=self.roster,
            sessions=self.sessions,
        )


def _without(pairs: Codes, gone: BoolArray) -> Codes:
    return pairs[~gone[slot_of(pairs)]] if len(pairs) else pairs


def _pairs(tasks: IntArray, slot: int) -> Codes:
    if len(tasks) == 0:
        return no_codes()
    return codes(tasks, np.full(len(tasks), slot, dtype=np.int32))
