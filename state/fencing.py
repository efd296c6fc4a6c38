"""Turning members away: those that broke the rules, and strangers."""

from __future__ import annotations

import numpy as np

from muster.protocol.ids import MemberId
from muster.protocol.records import Fault
from muster.state import causes, drains
from muster.state.draft import Draft
from muster.state.group import COPY_ROLES, slot_of, task_of
from muster.state.liveness import ASKED, FENCED, MUTE, REFUSED

NAMED = 3
"""So many tasks that were not stopped are named in a cause."""
ANYBODY = 0
"""Incarnation of a fault that answers an event which named none (a heartbeat)."""


def fence(draft: Draft, slot: int, message: str) -> None:
    """Tell a member to drop everything; what it holds stays its own until that is sure."""
    member = draft.member(slot)
    if draft.soft.flags[slot] & FENCED:
        return
    draft.soft.flags[slot] = (draft.soft.flags[slot] & (0xFF & ~ASKED)) | FENCED | MUTE
    member = draft.update(slot, revision=member.revision + 1, deadline_ms=None)
    drains.expel(draft, slot)
    draft.soft.demand(slot)
    draft.answer.discard(slot)
    draft.causes.member(causes.FENCED, member.id)
    tell(draft, slot, message)


def fence_late(draft: Draft, slot: int) -> None:
    """A member had its time and has not done what it was told; the cause says what that was."""
    member = draft.member(slot)
    patience_ms = member.rebalance_timeout_ms or draft.settings.rebalance_timeout_ms
    owed = np.flatnonzero(draft.revoking & (draft.holder == slot)).tolist()
    for role in COPY_ROLES:
        going = draft.copies[role].going
        owed += task_of(going[slot_of(going) == slot]).tolist()
    named = [str(draft.table.task(task)) for task in owed[:NAMED]]
    more = f" and {len(owed) - NAMED} more" if len(owed) > NAMED else ""
    what = f"stop {', '.join(named)}{more}" if named else "answer"
    late = f"did not {what} within {patience_ms} ms (rebalance.timeout.ms)"
    draft.causes.add(f"{member.id} {late}")
    fence(draft, slot, late)


def tell(draft: Draft, slot: int, message: str) -> None:
    """Say to a fenced member that it is.

    One that never answered a new coordinator may not be the one that is alive: the old coordinator
    may have let in another process of that name after what was read back. It is meant as well.
    """
    member = draft.member(slot)
    to = ANYBODY if slot in draft.recovering else member.incarnation
    draft.fault(member.id, to, Fault.FENCED_MEMBER_EPOCH, message, member.revision)


def unknown(draft: Draft, member: str, incarnation: int) -> None:
    """An event of a client that is no member."""
    message = "not a member of the group (any more); drop everything and join"
    draft.fault(member, incarnation, Fault.UNKNOWN_MEMBER_ID, message)


def refused(draft: Draft, member: str) -> None:
    """An event in a member's name was not believed: a member that falls silent is told."""
    slot = draft.by_id.get(MemberId(member))
    if slot is not None:
        draft.soft.flags[slot] |= REFUSED


def take_back(draft: Draft) -> None:
    """Behind the answers to those who are no members put tombstones.

    `muster.assignments` is compacted: an answer under a stranger's key would stay for ever.
    Readers take it first, and by then they ignore the tombstone.
    """
    strangers = {member for member, _, _ in draft.turned_away if member not in draft.by_id}
    for member in sorted(strangers):
        draft.tombstone(MemberId(member))
