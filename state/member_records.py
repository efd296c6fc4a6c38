"""The records addressed to members; each has the member's whole assignment."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import numpy as np

from muster.protocol.digest import Holding
from muster.protocol.ids import Role
from muster.protocol.records import Dictionary, MemberAssignment, no_tasks
from muster.protocol.tasks import EMPTY, IntArray, TaskSet
from muster.state import fencing, next_actives
from muster.state.draft import Draft
from muster.state.group import Member
from muster.state.liveness import APART, ASKED, FENCED
from muster.state.ownership import COPY_ROLES, slot_of, task_of


def write(draft: Draft, slots: list[int]) -> None:
    """Add one record for each of these members to the replies; members that are away get none."""
    slots = [s for s in slots if draft.roster.by_slot[s] is not None and not draft.member(s).away]
    if not slots:
        return
    addressed_slots = set(slots)
    if not all(o.notified or o.slot not in addressed_slots for o in draft.owned.orphans):
        draft.owned.orphans = tuple(
            o._replace(notified=o.notified or o.slot in addressed_slots)
            for o in draft.owned.orphans
        )
    answered_before = _answered_before(draft)
    role_sets = {Role.ACTIVE: _actives(draft, slots)}
    for role in COPY_ROLES:
        kept_copies = draft.owned.copies[role].kept
        role_sets[role] = _split(draft, task_of(kept_copies), slot_of(kept_copies), slots)
    next_standbys = next_actives.standbys(draft)
    next_sets = _split(draft, task_of(next_standbys), slot_of(next_standbys), slots)
    names = Dictionary.of(draft.id, draft.table)
    for slot in slots:
        member = draft.member(slot)
        if draft.sessions.flags[slot] & FENCED:
            draft.update(slot, revision=member.revision + 1)
            fencing.notify(draft, slot, "drop everything and join again")
            continue
        if slot in draft.recovery.asked:
            # The question of a recovered group keeps the old revision: a member that has seen the
            # record only reports, because a newer one of the old coordinator may be in force.
            if draft.recovery.is_doubtful:
                # Revision 0 is newer for no member that has read a record: it only reports.
                question = replace(member, revision=0)
                draft.replies.append((member.id, _record(draft, question, Holding(), EMPTY, names)))
                continue
        elif slot not in answered_before:
            member = draft.update(slot, revision=member.revision + 1)
        holding = Holding(*(role_sets[role].get(slot, EMPTY) for role in Role))
        record = _record(draft, member, holding, next_sets.get(slot, EMPTY), names)
        draft.replies.append((member.id, record))


def _answered_before(draft: Draft) -> Set[int]:
    """Members that get the record which they have not read yet once more, with its revision."""
    is_same = draft.coordinator_epoch == draft.group.coordinator_epoch
    return draft.unread_again if draft.unread_again and is_same and not draft.changed else set()


def _record(
    draft: Draft, member: Member, holding: Holding, next_tasks: TaskSet, names: Dictionary | None
) -> MemberAssignment:
    return MemberAssignment(
        group=draft.id,
        member=member.id,
        incarnation=member.incarnation,
        coordinator_epoch=draft.coordinator_epoch,
        # A member may have reported a generation that an earlier coordinator opened: its tokens
        # must not go back until this coordinator has placed the tasks.
        generation=max(draft.target.generation, member.epoch),
        epoch=member.epoch,
        revision=member.revision,
        active=holding.active,
        standby=holding.standby,
        learner=holding.learner,
        next=next_tasks,
        report=bool(draft.sessions.flags[member.slot] & ASKED),
        session_timeout_ms=draft.settings.session_timeout_ms,
        heartbeat_interval_ms=draft.settings.heartbeat_interval_ms,
        apart=bool(draft.sessions.flags[member.slot] & APART),
        message=draft.cause
        if len(draft.table) or draft.dead
        else no_tasks(draft.id, declares=bool(draft.sources)),
        dictionary=names,
    )


def _actives(draft: Draft, slots: list[int]) -> dict[int, TaskSet]:
    is_kept = draft.mask(slots)[draft.owned.holder] & ~draft.owned.revoking
    kept_tasks = np.flatnonzero(is_kept).astype(np.int32)
    return _split(draft, kept_tasks, draft.owned.holder[kept_tasks], slots)


def _split(draft: Draft, task: IntArray, slot: IntArray, slots: list[int]) -> dict[int, TaskSet]:
    """Slot → the set of its tasks; `task` must ascend."""
    if len(task) == 0:
        return {}
    is_addressed = draft.mask(slots)[slot]
    task, slot = task[is_addressed], slot[is_addressed]
    order = np.argsort(slot, kind="stable")
    task, slot = task[order], slot[order]
    boundaries = [0, *(np.flatnonzero(slot[1:] != slot[:-1]) + 1).tolist(), len(slot)]
    owners = slot[boundaries[:-1]].tolist() if len(slot) else []
    return dict(zip(owners, draft.table.sets_of(task, boundaries), strict=False))
