"""The records addressed to members; each has the member's whole assignment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.protocol.digest import Holding
from muster.protocol.ids import Role
from muster.protocol.records import Dictionary, MemberAssignment, no_tasks
from muster.protocol.tasks import EMPTY, IntArray, TaskSet
from muster.state import fencing, takeovers
from muster.state.draft import Draft
from muster.state.group import Member
from muster.state.liveness import APART, ASKED, FENCED
from muster.state.ownership import COPY_ROLES, slot_of, task_of


def write(draft: Draft, slots: list[int]) -> None:
    """Add one record for each of these members to the replies; members that are away get none."""
    slots = [s for s in slots if draft.roster.by_slot[s] is not None and not draft.member(s).away]
    if not slots:
        return
    addressed = set(slots)
    draft.owned.orphans = tuple(
        o._replace(notified=o.notified or o.slot in addressed) for o in draft.owned.orphans
    )
    sets = {Role.ACTIVE: _actives(draft, slots)}
    for role in COPY_ROLES:
        kept = draft.owned.copies[role].kept
        sets[role] = _split(draft, task_of(kept), slot_of(kept), slots)
    coming = takeovers.standbys(draft)
    awaited = _split(draft, task_of(coming), slot_of(coming), slots)
    names = Dictionary.of(draft.id, draft.table)
    for slot in slots:
        member = draft.member(slot)
        if draft.sessions.flags[slot] & FENCED:
            draft.update(slot, revision=member.revision + 1)
            fencing.notify(draft, slot, "drop everything and join again")
            continue
        if slot not in draft.recovery.asked:
            # The question of a recovered group keeps the old revision: a member that has seen the
            # record only reports, because a newer one of the old coordinator may be in force.
            member = draft.update(slot, revision=member.revision + 1)
        elif draft.recovery.is_doubtful:
            # Revision 0 is newer for no member that has read a record: it only reports.
            question = replace(member, revision=0)
            draft.replies.append((member.id, _record(draft, question, Holding(), EMPTY, names)))
            continue
        held = Holding(*(sets[role].get(slot, EMPTY) for role in Role))
        record = _record(draft, member, held, awaited.get(slot, EMPTY), names)
        draft.replies.append((member.id, record))


def _record(
    draft: Draft, member: Member, held: Holding, awaited: TaskSet, names: Dictionary | None
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
        active=held.active,
        standby=held.standby,
        learner=held.learner,
        next=awaited,
        report=bool(draft.sessions.flags[member.slot] & ASKED),
        session_timeout_ms=draft.settings.session_timeout_ms,
        heartbeat_interval_ms=draft.settings.heartbeat_interval_ms,
        apart=bool(draft.sessions.flags[member.slot] & APART),
        message=draft.cause if len(draft.table) or draft.dead else no_tasks(draft.id),
        dictionary=names,
    )


def _actives(draft: Draft, slots: list[int]) -> dict[int, TaskSet]:
    kept = np.flatnonzero(draft.mask(slots)[draft.owned.holder] & ~draft.owned.revoking).astype(
        np.int32
    )
    return _split(draft, kept, draft.owned.holder[kept], slots)


def _split(draft: Draft, task: IntArray, slot: IntArray, slots: list[int]) -> dict[int, TaskSet]:
    """Slot → the set of its tasks; `task` must ascend."""
    mine = draft.mask(slots)[slot]
    task, slot = task[mine], slot[mine]
    order = np.argsort(slot, kind="stable")
    task, slot = task[order], slot[order]
    cuts = np.flatnonzero(np.diff(slot)) + 1
    parts = np.split(task, cuts)
    owners = slot[np.concatenate(([0], cuts))].tolist() if len(slot) else []
    return {owner: draft.table.set_of(part) for owner, part in zip(owners, parts, strict=False)}
