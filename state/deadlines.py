"""Every deadline of a group, and what happens when it has passed.

=====================  =============  ============================================================
deadline               clock          what happens when it has passed
=====================  =============  ============================================================
session                session clock  the member expires
rebalance timeout      session clock  a member that did not answer a demand is fenced
fenced for a session   session clock  a fenced member is removed; a deaf one stays without tasks
initial delay          group clock    a starting fleet is placed: joins paused, or took too long
assignment interval    group clock    a generation that had to wait is placed
delay                  group clock    the assignor decides what becomes of lost work (Connect)
follow-up              group clock    the assignor runs again, once the group has settled
scale-down             group clock    placements leave a draining member out, learners ready or not
=====================  =============  ============================================================

A deadline passes only when a record with a later time is read, so every record before it has been
absorbed. `wake_ups.py` says when a group needs a record that only moves its clocks, and
`placement_pauses.py` until when a generation waits for its placement.

The time of a demand starts with a *proof* that the member could have read it, because a coordinator
that lags reads records that were written before its own demands. Each wake-up has a mark: Kafka has
acknowledged all records that follow from the inputs up to the mark. The tick repeats the mark. So
every record after that tick in the log was written when those demands could be read.
"""

from __future__ import annotations

from muster.protocol.events import Tick
from muster.protocol.records import MemberState
from muster.protocol.settings import CONNECT_ASSIGNORS
from muster.state import (
    causes,
    deafness,
    fencing,
    lost_checkpoint,
    membership,
    placement_pauses,
    session_clock,
)
from muster.state.draft import Draft
from muster.state.group import UNPROVED, places
from muster.state.liveness import DEAF, FENCED, MUTE, REFUSED, UNREAD

ASK_AGAIN_MS = 250
"""A group asks so often for a placement that is computed aside."""


def move_to(draft: Draft, at_ms: int) -> None:
    """Move the clocks to an event's time and decide the deadlines that have passed."""
    sessions = draft.sessions
    step_ms = session_clock.longest_step_ms(draft)
    session_clock.catch_up(sessions, step_ms)
    if at_ms <= sessions.clock_ms:
        return
    before_ms, drained_ms = sessions.clock_ms, draft.next_drained_ms()
    session_clock.move_to(sessions, at_ms, step_ms)
    silent, slow = sessions.overdue()
    heard_ms = sessions.newest_sign_ms(silent) if silent else 0
    for slot in silent:
        if sessions.flags[slot] & (REFUSED | MUTE) == REFUSED:
            fencing.fence(draft, slot, "its events are refused: see the dead letters")
        else:
            membership.remove(draft, slot, causes.EXPIRED)
    if silent:
        _note_no_member_alive(draft, heard_ms)
    for slot in slow:
        if sessions.flags[slot] & (FENCED | DEAF) == FENCED | DEAF:
            deafness.free_tasks(draft, slot)
        elif sessions.flags[slot] & FENCED:
            membership.remove(draft, slot, causes.EXPIRED)
        else:
            fencing.fence_late(draft, slot)
    _decide_clock(draft, before_ms, drained_ms)


def _note_no_member_alive(draft: Draft, heard_ms: int) -> None:
    """Note that there was a moment without living workers: all crashed before the next one joined.

    The sessions of the crashed ones went on meanwhile. In Kafka no round has both: the first round
    after such a moment has a new leader. `heard_ms`: see `Liveness.newest_sign_ms`.
    """
    if draft.assignor in CONNECT_ASSIGNORS:
        joined_ms = min((member.joined_ms for member in draft.roster), default=0)
        draft.was_empty |= joined_ms > heard_ms


def prove(draft: Draft, tick: Tick) -> None:
    """Start the time of members whose demands the tick proves to be readable.

    A tick with an older coordinator's mark proves nothing, because that one may have decided
    differently. Its records may be the newest on compacted topics, so the group publishes again.
    """
    if tick.published is None:
        return
    lost_checkpoint.prove(draft, tick.published.coordinator_epoch, by_tick=True)
    if tick.published.coordinator_epoch < draft.group.coordinator_epoch:
        draft.publishes_again = True
        draft.sessions.renew_wake_up()
        return
    if tick.published == draft.sessions.published_mark and draft.sessions.is_apart:
        # The clock may write this tick a little early. Without a new wake-up, the old one would
        # stay in force and bring a second tick.
        draft.sessions.renew_wake_up()
    # The demands of this batch are not published yet.
    counted_before = min(tick.published.taken, draft.group.sessions.taken)
    for slot in draft.sessions.demands_without_deadline(counted_before):
        patience_ms = draft.patience_ms(slot)
        if draft.sessions.flags[slot] & FENCED:
            patience_ms = int(draft.sessions.timeout_ms[slot])
        elif draft.sessions.flags[slot] & UNREAD:
            patience_ms = max(patience_ms, int(draft.sessions.timeout_ms[slot]))
        step_ms = session_clock.longest_step_ms(draft)
        draft.sessions.set_response_deadline(slot, patience_ms, step_ms)


def _decide_clock(draft: Draft, before_ms: int, drained_ms: int | None) -> None:
    """Decide those of the group clock; `drained_ms` is the first one of a drain after `before_ms`.

    A batch may have thousands of times, and a group thousands of drains; so the drains are looked
    through only if the clock has passed that time.
    """
    now_ms = draft.sessions.clock_ms
    if draft.timers.delay_until_ms is not None and draft.timers.delay_until_ms <= now_ms:
        draft.timers.delay_until_ms = None
        draft.causes.add("delay ended")
    if drained_ms is None or drained_ms > now_ms:
        return
    until_ms = draft.timers.drain_until_ms.items()
    # A restored group has them in another order, and must give the same cause.
    for _, slot in sorted((at_ms, slot) for slot, at_ms in until_ms if before_ms < at_ms <= now_ms):
        draft.causes.add(f"{draft.member(slot).id} drained for scale.down.timeout.ms")


def next_decided_ms(draft: Draft) -> int | None:
    """The earliest deadline of the group clock that `move_to` decides; None = there is none.

    The others are decided once, at the end of a batch.
    """
    deadlines_ms = (draft.next_drained_ms(), draft.timers.delay_until_ms)
    return min((at_ms for at_ms in deadlines_ms if at_ms is not None), default=None)


def is_settled(draft: Draft) -> bool:
    """Whether every member is stable."""
    return not draft.roster.columns.unsettled.any()


def is_releasing(draft: Draft) -> bool:
    """Whether a member that is not fenced still holds something it must give up."""
    return any(
        draft.member(slot).state is MemberState.UNREVOKED
        and slot not in draft.acknowledged
        and not draft.sessions.flags[slot] & FENCED
        for slot in draft.roster.slots
    )


def follow_up_is_due(draft: Draft) -> bool:
    """Whether a follow-up's time has passed and every member has settled (S1-F06).

    Not in the batch that applies a plug-in's answer, because no member has its record yet.
    """
    at_ms = draft.timers.followup_ms
    is_over = at_ms is not None and at_ms <= draft.sessions.clock_ms
    return is_over and is_settled(draft) and not draft.applied_answer


def next_ms(draft: Draft) -> int | None:
    """The earliest deadline of the group clock; None = none."""
    deadlines_ms: list[int] = []
    decided_ms = next_decided_ms(draft)
    if decided_ms is not None:
        deadlines_ms.append(decided_ms)
    if draft.timers.followup_ms is not None and is_settled(draft):
        deadlines_ms.append(draft.timers.followup_ms)
    if draft.target.deferred is not None or (draft.target.again and not is_releasing(draft)):
        deadlines_ms.append(draft.sessions.clock_ms)
    if draft.target.is_overtaken and draft.target.asked_ms is None:
        deadlines_ms.append(draft.sessions.clock_ms)
    if draft.target.asked_ms is not None:
        deadlines_ms.append(draft.sessions.clock_ms + ASK_AGAIN_MS)
    if draft.roster and places(draft.table, draft.assignor) and placement_pauses.is_shut(draft):
        deadlines_ms.append(placement_pauses.gate_ms(draft))
    if draft.roster and lost_checkpoint.is_unverified(draft) and not draft.recovery.asked:
        until_ms = draft.recovery.unverified_until_ms
        if until_ms is not None and until_ms != UNPROVED:
            deadlines_ms.append(until_ms)
    return min(deadlines_ms, default=None)
