"""Fencing members that broke the rules: what a fence does, and what the member is told.

Who decides that a member is fenced: `deadlines` (it did not answer a demand in time, or its events
are refused), `reports` (it holds what was not granted, or names an epoch that was not),
`heartbeats` (such an epoch), `deafness` (it does not read what it is sent).
"""

from __future__ import annotations

import numpy as np

from muster.protocol.ids import MemberId
from muster.protocol.records import Fault
from muster.state import causes, drains, refusal_answers
from muster.state.draft import Draft
from muster.state.liveness import ASKED, DEAF, FENCED, MUTE, REFUSED, UNREAD
from muster.state.ownership import COPY_ROLES, slot_of, task_of

NAMED = 3
"""A cause names at most this many tasks that were not stopped."""


def fence(draft: Draft, slot: int, message: str) -> None:
    """Fence a member: it must drop everything; its tasks are not granted on before that is sure."""
    member = draft.member(slot)
    if draft.sessions.flags[slot] & FENCED:
        return
    other_flags = draft.sessions.flags[slot] & (0xFFFF & ~(ASKED | UNREAD))
    draft.sessions.flags[slot] = other_flags | FENCED | MUTE
    member = draft.update(slot, revision=member.revision + 1, deadline_ms=None)
    drains.expel(draft, slot)
    draft.sessions.demand(slot)
    draft.addressed.discard(slot)
    draft.causes.member(causes.FENCED, member.id)
    notify(draft, slot, message)


def fence_late(draft: Draft, slot: int) -> None:
    """Fence a member that did not meet a demand in time; the cause names the demand."""
    member = draft.member(slot)
    if draft.sessions.flags[slot] & UNREAD:
        draft.sessions.flags[slot] |= DEAF
        message = "goes on joining and reads no answer"
        draft.causes.add(f"{member.id} {message}")
        fence(draft, slot, message)
        return
    patience_ms = draft.patience_ms(slot)
    owed_tasks = np.flatnonzero(draft.owned.revoking & (draft.owned.holder == slot)).tolist()
    for role in COPY_ROLES:
        released = draft.owned.copies[role].releasing
        owed_tasks += task_of(released[slot_of(released) == slot]).tolist()
    named_tasks = [str(draft.table.task(task)) for task in owed_tasks[:NAMED]]
    suffix = f" and {len(owed_tasks) - NAMED} more" if len(owed_tasks) > NAMED else ""
    action = f"stop {', '.join(named_tasks)}{suffix}" if named_tasks else "answer"
    message = f"did not {action} within {patience_ms} ms (rebalance.timeout.ms)"
    draft.causes.add(f"{member.id} {message}")
    fence(draft, slot, message)


def notify(draft: Draft, slot: int, message: str) -> None:
    """Write the fault to a fenced member.

    A member that has not answered a new coordinator may be another process, which the old one
    admitted later; so the fault addresses every process of its id.
    """
    member = draft.member(slot)
    is_asked = slot in draft.recovery.asked
    record = refusal_answers.fault_record(
        draft,
        member.id,
        refusal_answers.ANY_INCARNATION if is_asked else member.incarnation,
        Fault.FENCED_MEMBER_EPOCH,
        message,
        member.revision,
    )
    if (member.id, record) not in draft.replies:
        draft.replies.append((member.id, record))


def note_refused(draft: Draft, member: str) -> None:
    """Note that a member's event was refused; if its session ends, it is fenced, not removed."""
    slot = draft.roster.by_id.get(MemberId(member))
    if slot is not None:
        draft.sessions.flags[slot] |= REFUSED
