"""One step of each affected member towards the target, by the rules of KIP-848 and KIP-1071.

For a member with assigned tasks A, pending revocation R and target X, in each role:

    assigned' = A ∩ X     pending revocation' = A − X     grants = X − A − what others still hold

An acknowledged release first raises the epoch by one. Then:

1. UNREVOKED, and R is not fully acknowledged: no step. Acknowledged tasks are free already (in
   Kafka, R is acknowledged as a whole).
2. A − X is not empty: the member becomes UNREVOKED, keeps its epoch and is granted nothing.
3. Otherwise the free tasks of X − A are granted and the epoch becomes the target's. The member
   becomes UNRELEASED if a task of X − A was not free, else STABLE.

Kafka applies the rules member by member; here each is one expression over the task vectors. An
active is free when no member has it.

A copy is not in A − X if its member gets the task in another role: the member keeps it until one
record changes the role, so it never loses the state or has two roles of a task. A member that will
keep a copy of an active releases the active first, because the next owner waits for that.

A member that has exactly its target tasks is not affected and gets no record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.model import BoolArray
from muster.protocol.records import MemberState
from muster.state import expected_digests, lag, lost_checkpoint, next_actives, releases
from muster.state.draft import Draft
from muster.state.group import Member
from muster.state.liveness import AGREED, FENCED, later
from muster.state.ownership import (
    COPY_ROLES,
    NO_MEMBER,
    Codes,
    codes,
    minus,
    slot_of,
    task_of,
    union,
)


@dataclass(slots=True)
class _Stepping:
    """Masks by slot of one call; the last entry stands for no member.

    Attributes:
        open: members that may step.
        owes: members that must give something up.
        waits: members with a target task that is not free yet.
        changed: members whose assignment changed.
    """

    open: BoolArray
    owes: BoolArray
    waits: BoolArray
    changed: BoolArray


def settle(draft: Draft) -> list[int]:
    """Move every affected member one step; returns the slots that need a record, ascending."""
    touched = draft.touched | draft.addressed | draft.acknowledged
    if lost_checkpoint.is_halted(draft):
        _note_acknowledged(draft)
    else:
        stepping = _stepping(draft)
        _revoke(draft, stepping)
        _grant(draft, stepping)
        touched |= _transit(draft, stepping)
        draft.addressed |= set(np.flatnonzero(stepping.changed).tolist())
        draft.addressed |= next_actives.changed(draft)
    lag.settle(draft)
    _expect(draft, sorted(touched))
    return sorted(draft.addressed)


def _note_acknowledged(draft: Draft) -> None:
    """While the group may not act no member steps, but releases are acknowledged."""
    for slot in sorted(draft.acknowledged):
        member = draft.member(slot)
        if member.state is not MemberState.UNREVOKED or draft.sessions.flags[slot] & FENCED:
            continue  # it left temporarily, or was fenced since
        draft.update(
            slot,
            state=MemberState.STABLE,
            epoch=_raised(draft, member),
            previous_epoch=member.epoch,
            revoke_revision=0,
            deadline_ms=None,
        )
        if slot not in draft.recovery.asked:  # else it left temporarily, is back, was asked again
            draft.sessions.cancel_demand(slot)


def _raised(draft: Draft, member: Member) -> int:
    """The epoch after an acknowledged release, at most that of the target."""
    return min(member.epoch + 1, max(member.epoch, draft.target.generation))


def _stepping(draft: Draft) -> _Stepping:
    """The members that may step: what they hold differs from the target, and they owe no report."""
    count = len(draft.roster.by_slot) + 1
    differing_tasks = np.flatnonzero(draft.target.active != draft.owned.holder)
    affected_slots = [draft.owned.holder[differing_tasks], draft.target.active[differing_tasks]]
    group_before = draft.group  # a member that waited before this batch may have all it needs now
    target_before = group_before.target.active
    affected_slots.append(target_before[target_before != group_before.owned.holder])
    # A release may be asked for by an earlier coordinator, or of a task that returned since.
    affected_slots.append(draft.owned.holder[draft.owned.revoking])
    affected_pairs = [draft.owned.duplicate]
    for role in COPY_ROLES:
        wanted, kept, releasing = draft.owned.copies[role]
        affected_pairs += (minus(wanted, kept), minus(kept, wanted), releasing)
    affected_slots.append(slot_of(np.concatenate(affected_pairs)))
    affected_slots.append(np.array([o.slot for o in draft.owned.orphans], dtype=np.int32))
    may_step = np.zeros(count, dtype=np.bool_)
    for slots_part in affected_slots:
        may_step[slots_part] = True
    may_step[list(draft.addressed | draft.acknowledged)] = True
    if lost_checkpoint.is_halted(group_before):  # members may wait for nothing more
        may_step[list(draft.roster.slots)] = True
    may_step[-1] = False
    for slot in np.flatnonzero(may_step).tolist():
        member = draft.roster.by_slot[slot]
        waiting = member is not None and member.state is MemberState.UNREVOKED
        waiting = waiting and slot not in draft.acknowledged
        if member is None or waiting or draft.sessions.flags[slot] & FENCED:
            may_step[slot] = False
    no_slots = np.zeros(count, dtype=np.bool_)
    return _Stepping(may_step, no_slots.copy(), no_slots.copy(), no_slots.copy())


def _revoke(draft: Draft, stepping: _Stepping) -> None:
    """Pending revocation' = A − X."""
    lost_tasks = np.flatnonzero(draft.target.active != draft.owned.holder)
    lost_tasks = lost_tasks[
        stepping.open[draft.owned.holder[lost_tasks]] & ~draft.owned.revoking[lost_tasks]
    ]
    if len(lost_tasks):
        holder, revoking = draft.owned.holder.copy(), draft.owned.revoking.copy()
        stepping.changed[holder[lost_tasks]] = True
        is_away = draft.roster.columns.away
        holder_is_away = is_away[holder[lost_tasks]]  # a member that is away has stopped everything
        revoking[lost_tasks[~holder_is_away]] = True
        holder[lost_tasks[holder_is_away]] = NO_MEMBER
        draft.owned.holder, draft.owned.revoking = holder, revoking
    for role in COPY_ROLES:
        wanted, kept, releasing = draft.owned.copies[role]
        surplus_copies = minus(kept, wanted)
        if len(surplus_copies) == 0:
            continue
        surplus_copies = surplus_copies[
            stepping.open[slot_of(surplus_copies)] & ~_changes_role(draft, surplus_copies)
        ]
        if len(surplus_copies):
            stepping.changed[slot_of(surplus_copies)] = True
            is_away = draft.roster.columns.away
            kept = minus(kept, surplus_copies)
            releasing = union(releasing, surplus_copies[~is_away[slot_of(surplus_copies)]])
            draft.owned.set_copies(role, kept=kept, releasing=releasing)
    stepping.owes = releases.owing(draft)


def _changes_role(draft: Draft, pairs: Codes) -> BoolArray:
    """bool[K]: copies whose member has the task in another role in the target."""
    wanted = union(*(draft.owned.copies[role].wanted for role in COPY_ROLES))
    becomes_active: BoolArray = draft.target.active[task_of(pairs)] == slot_of(pairs)
    return becomes_active | np.isin(pairs, wanted, assume_unique=True)


def _grant(draft: Draft, stepping: _Stepping) -> None:
    """Grants = X − A − what others still hold."""
    may_gain = stepping.open & ~stepping.owes
    lacking_tasks = np.flatnonzero(draft.target.active != draft.owned.holder)
    lacking_tasks = lacking_tasks[may_gain[draft.target.active[lacking_tasks]]]
    if len(lacking_tasks):
        is_free = (draft.owned.holder[lacking_tasks] == NO_MEMBER) & ~np.isin(
            lacking_tasks, task_of(draft.owned.duplicate)
        )
        granted = lacking_tasks[is_free]
        stepping.waits[draft.target.active[lacking_tasks[~is_free]]] = True
        stepping.changed[draft.target.active[granted]] = True
        holder = draft.owned.holder.copy()
        holder[granted] = draft.target.active[granted]
        draft.owned.holder = holder
        _leave_role(draft, codes(granted.astype(np.int32), draft.target.active[granted]))
    for role in COPY_ROLES:
        wanted, kept, _ = draft.owned.copies[role]
        gained = minus(wanted, kept)
        gained = gained[may_gain[slot_of(gained)]]
        if len(gained):
            stepping.changed[slot_of(gained)] = True
            _leave_role(draft, gained)
            draft.owned.set_copies(role, kept=union(draft.owned.copies[role].kept, gained))


def _leave_role(draft: Draft, granted: Codes) -> None:
    """Drop the copies that members had of tasks granted to them in another role now."""
    for role in COPY_ROLES:
        kept = draft.owned.copies[role].kept
        draft.owned.set_copies(role, kept=minus(kept, granted))


def _transit(draft: Draft, stepping: _Stepping) -> set[int]:
    """Set states, epochs and deadlines of the members that stepped; returns their slots."""
    now_ms = draft.sessions.session_ms
    for slot in np.flatnonzero(stepping.open).tolist():
        member = draft.member(slot)
        epoch = _raised(draft, member) if slot in draft.acknowledged else member.epoch
        if stepping.owes[slot]:
            patience_ms = draft.patience_ms(slot)
            draft.update(
                slot,
                state=MemberState.UNREVOKED,
                epoch=epoch,
                previous_epoch=member.epoch if epoch != member.epoch else member.previous_epoch,
                revoke_revision=member.revision + 1,
                deadline_ms=later(now_ms, patience_ms),
            )
            draft.sessions.demand(slot)
            draft.addressed.add(slot)
            continue
        state = MemberState.UNRELEASED if stepping.waits[slot] else MemberState.STABLE
        target_epoch = max(member.epoch, draft.target.generation)
        if (member.state, member.epoch, member.revoke_revision) == (state, target_epoch, 0):
            continue
        draft.update(
            slot,
            state=state,
            epoch=target_epoch,
            previous_epoch=member.epoch if target_epoch != member.epoch else member.previous_epoch,
            revoke_revision=0,
            deadline_ms=None,
        )
        draft.sessions.cancel_demand(slot)
    return set(np.flatnonzero(stepping.open).tolist())


def _expect(draft: Draft, slots: list[int]) -> None:
    """Compute the digest that each of these members should send from now on."""
    slots = [slot for slot in slots if draft.roster.by_slot[slot] is not None]
    if not slots:
        return
    sessions = draft.sessions
    digest_before = sessions.digest.copy()
    sessions.digest[slots] = expected_digests.of_members(
        draft.owned, draft.hashes, draft.mask(slots)
    )[slots]
    sessions.flags[sessions.digest != digest_before] &= 0xFFFF & ~AGREED
    for slot in slots:
        sessions.epoch[slot] = draft.member(slot).epoch
