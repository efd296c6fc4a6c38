"""One step of every touched member towards the target: Kafka's rules (`kafka.md` 4.4), at once.

For a member with assigned A, pending revocation R, target X, per role:

    assigned' = A ∩ X     pending revocation' = A − X     grants = X − A − what others still hold

1. UNREVOKED and not all of R acknowledged → nothing; what is acknowledged of R is free (Kafka has
R acknowledged as one). 2. A − X is not empty → UNREVOKED, epoch stays,
nothing is granted. 3. Else what is free of X − A is granted, the epoch becomes the target's;
UNRELEASED if something of X − A was not free, STABLE otherwise. An acknowledged release raises the
epoch by one before that.

The rules are written per member in Kafka; here each is one expression over the task vectors,
restricted to members that may step. An active is free when no member has it.

A copy whose member is to have the task in another role is not in A − X: the member keeps it until
the other role is granted, and changes roles within that one record. So it is never without its
state, and never has two roles of a task. A member that is to keep a copy of what it runs releases
the active first, as others wait for that.

Who is touched follows from the vectors: a member that has what it should not, or lacks what it
should have. So members that a generation leaves alone cost nothing and notice nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import BoolArray
from muster.protocol.digest import MASK, RELEASING, mixed, set_hashes
from muster.protocol.ids import Role, Task
from muster.protocol.records import MemberState
from muster.protocol.tasks import IntArray, TaskSet
from muster.state import lag, nexts
from muster.state.draft import Draft
from muster.state.group import COPY_ROLES, NO_MEMBER, Codes, Member, codes, slot_of, task_of, union
from muster.state.liveness import FENCED


@dataclass(slots=True)
class _Stride:
    """Masks by slot of one call; the last entry stands for no member.

    Attributes:
        open: members that may step.
        owes: members with something to give up.
        waits: members for which something is not free yet.
        told: members whose record changed.
    """

    open: BoolArray
    owes: BoolArray
    waits: BoolArray
    told: BoolArray


def settle(draft: Draft) -> list[int]:
    """Let every touched member take its step; returns the slots that need a record, ascending."""
    touched = draft.touched | draft.answer | draft.acknowledged
    if draft.recovering:
        _remember(draft)
    else:
        stride = _stride(draft)
        _revoke(draft, stride)
        _grant(draft, stride)
        touched |= _transit(draft, stride)
        draft.answer |= set(np.flatnonzero(stride.told).tolist())
        draft.answer |= nexts.changed(draft)
    lag.settle(draft)
    _expect(draft, sorted(touched))
    return sorted(draft.answer)


def _remember(draft: Draft) -> None:
    """While reports are awaited no member steps, but a release counts as acknowledged."""
    for slot in sorted(draft.acknowledged):
        member = draft.member(slot)
        if member.state is not MemberState.UNREVOKED or draft.soft.flags[slot] & FENCED:
            continue  # it left for a while, or is to drop everything by now
        draft.update(
            slot,
            state=MemberState.STABLE,
            epoch=_raised(draft, member),
            previous_epoch=member.epoch,
            revoke_revision=0,
            deadline_ms=None,
        )
        if slot not in draft.recovering:  # it left for a while, and is back and asked
            draft.soft.acquit(slot)


def _raised(draft: Draft, member: Member) -> int:
    """The epoch after an acknowledged release; one that left for a while may have had nothing."""
    return min(member.epoch + 1, max(member.epoch, draft.target_generation))


def _stride(draft: Draft) -> _Stride:
    """Who may step: everybody whose holding differs from the target and who owes no answer."""
    count = len(draft.members) + 1
    wanting = np.flatnonzero(draft.target != draft.holder)
    slots = [draft.holder[wanting], draft.target[wanting]]
    before = draft.group  # a member that waited then may wait for nothing now
    slots.append(before.target[before.target != before.holder])
    # Members told by a coordinator that is gone, or of a task that has come back since.
    slots.append(draft.holder[draft.revoking])
    for role in COPY_ROLES:
        wanted, kept, going = draft.copies[role]
        slots.append(slot_of(np.setxor1d(wanted, kept, assume_unique=True)))
        slots.append(slot_of(going))
    slots.append(slot_of(draft.duplicate))
    slots.append(np.array([o.slot for o in draft.orphans], dtype=np.int32))
    open_ = np.zeros(count, dtype=np.bool_)
    for each in slots:
        open_[each] = True
    open_[list(draft.answer | draft.acknowledged)] = True
    if before.recovering:  # what they reported since may be all that they waited for
        open_[list(draft.roster)] = True
    open_[-1] = False
    for slot in np.flatnonzero(open_).tolist():
        member = draft.members[slot]
        waiting = member is not None and member.state is MemberState.UNREVOKED
        waiting = waiting and slot not in draft.acknowledged
        if member is None or waiting or draft.soft.flags[slot] & FENCED:
            open_[slot] = False
    blank = np.zeros(count, dtype=np.bool_)
    return _Stride(open_, blank.copy(), blank.copy(), blank.copy())


def _revoke(draft: Draft, stride: _Stride) -> None:
    """Pending revocation' = A − X."""
    away = np.append(draft.columns.away, False)
    lost = np.flatnonzero(draft.target != draft.holder)
    lost = lost[stride.open[draft.holder[lost]] & ~draft.revoking[lost]]
    if len(lost):
        holder, revoking = draft.holder.copy(), draft.revoking.copy()
        stride.told[holder[lost]] = True
        idle = away[holder[lost]]  # it stopped everything when it left for a while
        revoking[lost[~idle]] = True
        holder[lost[idle]] = NO_MEMBER
        draft.holder, draft.revoking = holder, revoking
    for role in COPY_ROLES:
        wanted, kept, going = draft.copies[role]
        less = np.setdiff1d(kept, wanted, assume_unique=True)
        less = less[stride.open[slot_of(less)] & ~_changes_role(draft, less)]
        if len(less):
            stride.told[slot_of(less)] = True
            kept = np.setdiff1d(kept, less, assume_unique=True)
            going = union(going, less[~away[slot_of(less)]])
            draft.set_copies(role, kept=kept, going=going)
    stride.owes = _owing(draft)


def _changes_role(draft: Draft, pairs: Codes) -> BoolArray:
    """bool[K]: copies whose member is to have the task in another role."""
    wanted = union(*(draft.copies[role].wanted for role in COPY_ROLES))
    answer: BoolArray = draft.target[task_of(pairs)] == slot_of(pairs)
    return answer | np.isin(pairs, wanted, assume_unique=True)


def _owing(draft: Draft) -> BoolArray:
    """Members that hold what they were told to give up."""
    owes = np.zeros(len(draft.members) + 1, dtype=np.bool_)
    owes[draft.holder[draft.revoking]] = True
    for role in COPY_ROLES:
        owes[slot_of(draft.copies[role].going)] = True
    owes[slot_of(draft.duplicate)] = True
    owes[[o.slot for o in draft.orphans]] = True
    owes[-1] = False
    return owes


def _grant(draft: Draft, stride: _Stride) -> None:
    """Grants = X − A − unreleased."""
    ready = stride.open & ~stride.owes
    want = np.flatnonzero(draft.target != draft.holder)
    want = want[ready[draft.target[want]]]
    if len(want):
        free = (draft.holder[want] == NO_MEMBER) & ~np.isin(want, task_of(draft.duplicate))
        stride.waits[draft.target[want[~free]]] = True
        stride.told[draft.target[want[free]]] = True
        holder = draft.holder.copy()
        holder[want[free]] = draft.target[want[free]]
        draft.holder = holder
        _leave_role(draft, codes(want[free].astype(np.int32), draft.target[want[free]]))
    for role in COPY_ROLES:
        wanted, kept, _ = draft.copies[role]
        gain = np.setdiff1d(wanted, kept, assume_unique=True)
        gain = gain[ready[slot_of(gain)]]
        if len(gain):
            stride.told[slot_of(gain)] = True
            _leave_role(draft, gain)
            draft.set_copies(role, kept=union(draft.copies[role].kept, gain))


def _leave_role(draft: Draft, granted: Codes) -> None:
    """A copy that its member had of what it is granted now is that copy no more."""
    for role in COPY_ROLES:
        kept = draft.copies[role].kept
        draft.set_copies(role, kept=np.setdiff1d(kept, granted, assume_unique=True))


def _transit(draft: Draft, stride: _Stride) -> set[int]:
    """States, epochs and rebalance timeouts of the members that stepped."""
    now = draft.soft.session_ms
    for slot in np.flatnonzero(stride.open).tolist():
        member = draft.member(slot)
        epoch = _raised(draft, member) if slot in draft.acknowledged else member.epoch
        if stride.owes[slot]:
            patience = member.rebalance_timeout_ms or draft.settings.rebalance_timeout_ms
            draft.update(
                slot,
                state=MemberState.UNREVOKED,
                epoch=epoch,
                previous_epoch=member.epoch if epoch != member.epoch else member.previous_epoch,
                revoke_revision=member.revision + 1,
                deadline_ms=now + patience,
            )
            draft.soft.demand(slot)
            draft.answer.add(slot)
            continue
        state = MemberState.UNRELEASED if stride.waits[slot] else MemberState.STABLE
        target = max(member.epoch, draft.target_generation)
        if (member.state, member.epoch, member.revoke_revision) == (state, target, 0):
            continue
        draft.update(
            slot,
            state=state,
            epoch=target,
            previous_epoch=member.epoch if target != member.epoch else member.previous_epoch,
            revoke_revision=0,
            deadline_ms=None,
        )
        draft.soft.acquit(slot)
    return set(np.flatnonzero(stride.open).tolist())


def _expect(draft: Draft, slots: list[int]) -> None:
    """The digest each of these members should send from now on."""
    slots = [slot for slot in slots if draft.members[slot] is not None]
    if not slots:
        return
    soft = draft.soft
    soft.digest[slots] = 0
    meant = draft.mask(slots)
    held = np.flatnonzero(meant[draft.holder])
    going = draft.revoking[held]
    with np.errstate(over="ignore"):
        for tasks, owner, number in _held_in_roles(draft, meant, held, going):
            np.add.at(soft.digest, owner, mixed(draft.hashes[tasks], number))
        for orphan in draft.orphans:
            if meant[orphan.slot]:
                task = TaskSet.of([Task(orphan.unit, orphan.number, orphan.connector)])
                added = int(mixed(set_hashes(task), orphan.role + RELEASING)[0])
                soft.digest[orphan.slot] = (int(soft.digest[orphan.slot]) + added) & MASK
    for slot in slots:
        soft.epoch[slot] = draft.member(slot).epoch


def _held_in_roles(
    draft: Draft, meant: BoolArray, held: NDArray[np.intp], going: BoolArray
) -> list[tuple[IntArray, IntArray, int]]:
    """(tasks, slots, role number of the digest) of everything these members have."""
    holder = draft.holder
    found = [
        (held[~going].astype(np.int32), holder[held[~going]], int(Role.ACTIVE)),
        (held[going].astype(np.int32), holder[held[going]], Role.ACTIVE + RELEASING),
    ]

    def add(pairs: Codes, number: int) -> None:
        mine = pairs[meant[slot_of(pairs)]]
        found.append((task_of(mine), slot_of(mine), number))

    add(draft.duplicate, Role.ACTIVE + RELEASING)
    for role in COPY_ROLES:
        add(draft.copies[role].kept, int(role))
        add(draft.copies[role].going, role + RELEASING)
    return found
