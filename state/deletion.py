"""Deletes a group in order, remembers its generations, and says when nothing of it is kept.

The tasks leave the table at once, so the members are asked to release all they have. A member that
has stopped everything gets a fault and a tombstone and is removed. Its process asks to join again,
and gets the fault until there is a config; so it needs no restart and does not recreate the group.

The record stays in state `Dead` with the last generation. A later config under the same name
continues from it, so the fencing tokens of a task only grow.
"""

from __future__ import annotations

from muster.protocol.events import GroupDeleted
from muster.protocol.records import Fault, MemberAssignment, group_deleted
from muster.protocol.settings import DEFAULT_ASSIGNOR, Settings
from muster.protocol.tasks import TaskTable
from muster.state import config_events, member_records, reconcile, removed_tasks
from muster.state.causes import Causes
from muster.state.draft import Draft
from muster.state.group import Group, Member
from muster.state.liveness import FENCED
from muster.state.roster import Roster

DISMISSED_MAX = 500
"""Members that a deleted group dismisses in one batch: each gets two records, and the other groups
of the batch wait for them. The next batch follows at once."""


def delete(draft: Draft, event: GroupDeleted) -> None:
    """Mark the group as deleted; no effect if it already is."""
    if draft.dead:
        return
    draft.dead = True
    draft.cause = group_deleted(event.group, event.origin)
    draft.sources = draft.found = ()
    removed_tasks.declare(draft, TaskTable(()))
    draft.causes, draft.possible_causes = Causes(), Causes()
    draft.target.generation = draft.generation
    draft.target.moves, draft.drains, draft.timers.drain_until_ms = (), (), {}
    draft.target.memory = draft.target.deferred = draft.target.asked_ms = None
    draft.timers.followup_ms = draft.timers.delay_until_ms = None
    draft.target.is_overtaken = draft.target.again = False


def wind_up(draft: Draft) -> None:
    """Ask the members of a deleted group to stop, and remove those that have."""
    draft.causes, draft.possible_causes = Causes(), Causes()
    answered_slots = reconcile.settle(draft)
    owing_slots = {orphan.slot for orphan in draft.owned.orphans} | draft.recovery.asked
    leaving_slots = [
        slot
        for slot in draft.roster.slots
        if slot not in owing_slots and not draft.sessions.flags[slot] & FENCED
    ]
    for slot in leaving_slots[:DISMISSED_MAX]:
        _dismiss(draft, draft.remove_member(slot))
    waiting_slots = set(leaving_slots[DISMISSED_MAX:])
    draft.dismisses_more = bool(waiting_slots)
    draft.drop_gone()
    member_records.write(draft, [slot for slot in answered_slots if slot not in waiting_slots])
    draft.acknowledged.clear()
    if not draft.roster:
        draft.assignor, draft.settings = DEFAULT_ASSIGNOR, Settings()
        # Slots start again at 0; otherwise those of ten thousand members would stay for ever.
        draft.freed_slots, draft.sessions = set(), draft.sessions.emptied()
        if draft.roster.by_slot:
            draft.roster = Roster()


def _dismiss(draft: Draft, member: Member) -> None:
    """Write the fault and the tombstone to a member that has stopped everything."""
    if not member.away:
        record = MemberAssignment(
            group=draft.id,
            member=member.id,
            incarnation=member.incarnation,
            coordinator_epoch=draft.coordinator_epoch,
            generation=draft.generation,
            epoch=0,
            revision=member.revision + 1,
            fault=Fault.GROUP_ID_NOT_FOUND,
            session_timeout_ms=draft.settings.session_timeout_ms,
            heartbeat_interval_ms=draft.settings.heartbeat_interval_ms,
            message=draft.cause,
        )
        draft.replies.append((member.id, record))
    draft.tombstone(member.id)


def may_be_forgotten(group: Group) -> bool:
    """Whether nothing of a group needs to be kept: it has no member and never had a config.

    A deleted group is kept because of its generation number, unless it never had one.
    """
    if group.dead:
        return not group.roster and max(group.generation, group.recovery.floor) == 0
    return (
        not (group.roster or len(group.table))
        and group.assignor == DEFAULT_ASSIGNOR
        and config_events.offset_of(group.sessions.through) < 0
    )
