"""Starting from a published snapshot: what the new coordinator must ask before it may act.

Every member in the snapshot is asked what it holds (`Group.recover`), and nothing is granted or
revoked before all have answered. The answer must name the new coordinator: reports that were
written before the question, and are read again because the snapshot is older, say nothing of what
the old coordinator did afterwards. Who joins is asked as well while the old one may have let it in:
until there is proof that what is read now was written after the start, and two heartbeat intervals
longer, in which a coordinator that still runs reads the later claim and stops.

"New" is the coordinator that met the group without a checkpoint (`Group.since_epoch`). One that
goes on from its checkpoints takes what was said to it as said to itself: it may take the batch
again of which that one published a part, and must decide alike.
"""

from __future__ import annotations

from muster.protocol.events import Report
from muster.state.draft import Draft
from muster.state.group import UNPROVED


def ask_newcomer(draft: Draft, slot: int) -> None:
    """A member joins: it may have been let in by a coordinator that is gone."""
    until = draft.wary_until_ms
    if until is None or slot in draft.recovering:
        return
    if draft.soft.clock_ms >= until:
        draft.wary_until_ms = None
        return
    draft.recovering |= {slot}
    draft.ask(slot)
    draft.soft.demand(slot)
    draft.changed = True


def prove(draft: Draft, coordinator_epoch: int | None) -> None:
    """A client wrote this that had read something of this coordinator, or of a later one."""
    told = coordinator_epoch is not None and coordinator_epoch >= draft.since_epoch
    if told and draft.wary_until_ms == UNPROVED:
        draft.wary_until_ms = draft.soft.clock_ms + 2 * draft.settings.heartbeat_interval_ms


def is_answer(draft: Draft, slot: int, event: Report) -> bool:
    """Whether a report of a member that was asked was written after it had read the question."""
    if event.coordinator_epoch is None:  # a worker that does not say; no answer in the same batch
        return slot in draft.group.recovering and draft.group.since_epoch is not None
    return event.coordinator_epoch >= draft.since_epoch
