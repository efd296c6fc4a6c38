"""Reports: what members say they hold, compared with what the group granted.

A report's revision is that of the newest record its sender acted on:

- below a revision reported before: the report is late or repeated, and is ignored;
- at least that of the record that asked for a release: of the tasks that it asked for, those
  that the report lacks count as released (`releases`);
- that of the newest record: the report must agree. The record is sent again if granted tasks are
  missing, and the member is fenced if it has an active that was not granted (`held_tasks`);
- an older one, with an active that was not granted: the group asks for another report.
"""

from __future__ import annotations

from muster.protocol.digest import Holding
from muster.protocol.events import Report
from muster.protocol.records import Fault, MemberState
from muster.protocol.tasks import IntArray
from muster.state import (
    deafness,
    fencing,
    held_tasks,
    lag,
    lost_checkpoint,
    refusal_answers,
    releases,
    session_timeouts,
)
from muster.state.draft import Draft
from muster.state.liveness import ASKED, FENCED
from muster.state.ownership import contains, copies_of, slot_of, task_of

COUNT_MAX = 2**30
"""Epochs and revisions that an answer to a new coordinator may name. A group with a generation a
second gets there in 34 years; a higher one would leave no numbers for the generations to come."""


def report(draft: Draft, event: Report) -> None:
    """Absorb a report, which says in full what a member holds."""
    slot = draft.roster.by_id.get(event.member)
    if slot is None:
        refusal_answers.answer_unknown(draft, event.member, event.incarnation)
        return
    member = draft.member(slot)
    if member.incarnation != event.incarnation:
        if member.instance_id is not None:
            message = f"instance id {member.instance_id} has been taken over by another process"
            refusal_answers.answer(draft, event, Fault.FENCED_INSTANCE_ID, message)
        else:
            refusal_answers.answer_unknown(draft, event.member, event.incarnation)
        return
    if member.away:
        return  # it was written before the leave, after which the process runs nothing
    draft.sessions.hear(slot)
    deafness.note_reading(draft, slot)
    if draft.sessions.flags[slot] & FENCED or event.revision < draft.sessions.reported[slot]:
        return
    lost_checkpoint.prove(draft, event.coordinator_epoch)
    answers_question = slot in draft.recovery.asked
    if answers_question:
        if not _take_answer(draft, slot, event):
            return
    elif event.epoch > member.epoch or event.revision > member.revision:
        granted = f"epoch {member.epoch}, revision {member.revision}"
        reported = f"epoch {event.epoch}, revision {event.revision}"
        fencing.fence(draft, slot, f"reported {reported}; the group gave {granted}")
        return
    elif not _compare(draft, slot, event):
        return
    draft.sessions.reported[slot] = event.revision
    draft.sessions.misses[slot] = 0
    if event.revision >= draft.member(slot).revision:
        draft.sessions.flags[slot] &= 0xFFFF & ~ASKED
        session_timeouts.adopt(draft, slot, has_read_it=not answers_question)
    held_tasks.mark_ready(draft, slot, event.holding.ready, event)
    if event.lags and member.state is MemberState.UNREVOKED:
        lag.end_given_up(draft, slot, event.lags)
    lag.absorb(draft, event.member, event.lags, event.origin, event.holding.ready)


def _take_answer(draft: Draft, slot: int, event: Report) -> bool:
    """Adopt an answer to a new coordinator's question; False = it is none, or was refused."""
    if not lost_checkpoint.is_answer(draft, slot, event):
        return False
    if max(event.epoch, event.revision) > COUNT_MAX:
        reported = f"epoch {event.epoch}, revision {event.revision}"
        fencing.fence(draft, slot, f"reported {reported}; expected at most {COUNT_MAX}")
        return False
    if not held_tasks.has_room(draft, event.holding, slot):
        fencing.fence(draft, slot, held_tasks.TOO_MANY_UNKNOWN)
        return False
    held_tasks.adopt(draft, slot, event)
    return True


def _compare(draft: Draft, slot: int, event: Report) -> bool:
    """Compare a report with what was granted and apply it; False = it was refused."""
    member = draft.member(slot)
    is_newest = event.revision >= member.revision
    active, unknown = draft.table.indexes_of(event.holding.active)
    if not held_tasks.agrees(draft, slot, active, unknown, is_newest=is_newest):
        return False
    if member.state is MemberState.UNREVOKED and event.revision >= member.revoke_revision:
        releases.release(draft, slot, event.holding, active, unknown)
    if is_newest and _lacks(draft, slot, event.holding, active):
        draft.addressed.add(slot)
    return True


def _lacks(draft: Draft, slot: int, holding: Holding, active: IntArray) -> bool:
    """Whether the report lacks a task that the member's newest record grants."""
    own_tasks = draft.tasks_of(slot)
    if not contains(active, own_tasks[~draft.owned.revoking[own_tasks]]).all():
        return True
    for role, tasks in copies_of(holding):
        kept = draft.owned.copies[role].kept
        if len(kept) == 0:
            continue
        granted = task_of(kept[slot_of(kept) == slot])
        if not contains(draft.table.indexes_of(tasks)[0], granted).all():
            return True
    return False
