"""Opens a generation, or adds its causes to the newest one while that has not been placed yet."""

from __future__ import annotations

from muster.protocol.records import no_tasks
from muster.state import causes, lost_checkpoint, placement_pauses
from muster.state.draft import Draft
from muster.state.group import places
from muster.state.printable import cut

CAUSE_CHARS_MAX = 2_000
"""Characters that are kept of the causes of a pending generation."""


def begin(draft: Draft) -> None:
    """Open a generation for the causes of this batch, or add them to the pending one."""
    no_tasks_text = no_tasks(draft.id, declares=bool(draft.sources))
    if not places(draft.table, draft.assignor):
        parts = [str(draft.causes), no_tasks_text]  # without tasks, earlier causes decided nothing
    elif placement_pauses.is_pending(draft):
        # A generation may stay pending, with new causes in every batch: the first ones are kept.
        earlier_causes, failure = causes.parted(without_waits(draft))
        earlier_causes = cut(earlier_causes, CAUSE_CHARS_MAX)
        if draft.causes.has_members(causes.JOINED) and placement_pauses.is_starting(draft):
            # One list of all members that joined, instead of one list for each batch.
            earlier_causes = causes.without(earlier_causes, causes.JOINED)
            for slot in draft.roster.slots:
                draft.causes.member(causes.JOINED, draft.member(slot).id)
        parts = [earlier_causes, str(draft.causes), failure]
    else:
        parts = [str(draft.causes)]
    if not placement_pauses.is_pending(draft):
        draft.generation += 1
        draft.target.moves = ()
        draft.target.asked_ms = None  # a follow-up of the generation before is of no use any more
    if lost_checkpoint.is_unverified(draft) and places(draft.table, draft.assignor):
        parts.append(lost_checkpoint.WAITS)
    draft.cause = "; ".join(filter(None, parts))
    draft.timers.followup_ms = None


def without_waits(draft: Draft) -> str:
    """The cause of the pending generation without what it waits for."""
    cause = draft.cause
    without_tasks = (no_tasks(draft.id), no_tasks(draft.id, declares=True))
    for waiting_text in (lost_checkpoint.WAITS, *without_tasks):
        cause = cause.removesuffix(waiting_text).removesuffix("; ")
    return cause
