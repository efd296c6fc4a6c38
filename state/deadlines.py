"""Every deadline of a group, and the wake-up that follows from them.

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
absorbed. While a group has members, its wake-up is at most one step (`step_of`) after its newest
record, because the session clock counts no more than a step between two records.

The time of a demand starts with a *proof* that the member could have read it, because a coordinator
that is behind reads records older than its own demands. Each wake-up has a mark: all records that
follow from the inputs up to it are acknowledged by Kafka. The tick repeats the mark, and every
record behind that tick in the log is younger than the demands before the mark.
"""

from __future__ import annotations

import numpy as np

from muster.protocol.events import Mark, Tick
from muster.protocol.expected_heartbeats import Agreement, checksum
from muster.protocol.records import MemberState, Record, WakeUp
from muster.protocol.settings import Settings
from muster.state import causes, deafness, fencing, membership, recovery, start_delay
from muster.state.draft import Draft
from muster.state.group import UNPROVED, Group, places
from muster.state.liveness import (
    AGREED,
    APART,
    DEAF,
    FENCED,
    MUTE,
    NEVER,
    OFFERED,
    REFUSED,
    UNREAD,
)

ASK_AGAIN_MS = 250
"""A group asks so often for a placement that is computed aside."""
QUIET_MS = 600_000
"""The longest time without a tick in a group whose members all write the expected heartbeats."""
LONG_AGO = 0
"""A wake-up time that has passed, so that another one is published."""


def step_ms(draft: Draft) -> int:
    """The longest time in ms that one jump of the session clock counts for."""
    step = step_of(draft.settings)
    return max(step, draft.settings.session_timeout_ms // 2) if draft.sessions.is_apart else step


def step_of(settings: Settings) -> int:
    """Two heartbeat intervals, or a fortieth of the session timeout if that is more, in ms.

    The second bound avoids needless ticks in groups with short intervals and a long session.
    """
    return max(2 * settings.heartbeat_interval_ms, settings.session_timeout_ms // 40)


def move_to(draft: Draft, at_ms: int) -> None:
    """Move the clocks to an event's time and decide the deadlines that have passed."""
    sessions = draft.sessions
    sessions.catch_up(step_ms(draft))
    if at_ms <= sessions.clock_ms:
        return
    before_ms = sessions.clock_ms
    sessions.move_to(at_ms, step_ms(draft))
    silent, slow = sessions.overdue()
    for slot in silent:
        if sessions.flags[slot] & (REFUSED | MUTE) == REFUSED:
            fencing.fence(draft, slot, "its events are refused: see the dead letters")
        else:
            membership.remove(draft, slot, causes.EXPIRED)
    for slot in slow:
        if sessions.flags[slot] & (FENCED | DEAF) == FENCED | DEAF:
            deafness.free_tasks(draft, slot)
        elif sessions.flags[slot] & FENCED:
            membership.remove(draft, slot, causes.EXPIRED)
        else:
            fencing.fence_late(draft, slot)
    _decide_clock(draft, before_ms)


def prove(draft: Draft, tick: Tick) -> None:
    """Start the time of members whose demands the tick proves to be readable.

    A tick with an older coordinator's mark proves nothing, because that one may have decided
    differently. Its records may be the newest on compacted topics, so the group publishes again.
    """
    if tick.published is None:
        return
    recovery.prove(draft, tick.published.coordinator_epoch, by_tick=True)
    if tick.published.coordinator_epoch < draft.group.coordinator_epoch:
        draft.publishes_again = True
        renew_wake_up(draft)
        return
    if tick.published == draft.sessions.published_mark and draft.sessions.is_apart:
        # The clock may write this tick a little early. Without a new wake-up, the old one would
        # stay in force and bring a second tick.
        renew_wake_up(draft)
    # The demands of this batch are not published yet.
    counted_before = min(tick.published.taken, draft.group.sessions.taken)
    for slot in draft.sessions.demands_without_deadline(counted_before):
        member = draft.member(slot)
        patience_ms = member.rebalance_timeout_ms or draft.settings.rebalance_timeout_ms
        if draft.sessions.flags[slot] & FENCED:
            patience_ms = int(draft.sessions.timeout_ms[slot])
        elif draft.sessions.flags[slot] & UNREAD:
            patience_ms = max(patience_ms, int(draft.sessions.timeout_ms[slot]))
        draft.sessions.set_response_deadline(slot, patience_ms, step_ms(draft))


def renew_wake_up(draft: Draft) -> None:
    """Publish another wake-up after this batch."""
    draft.sessions.wake_ms = LONG_AGO
    draft.sessions.agreement = None


def _decide_clock(draft: Draft, before_ms: int) -> None:
    now_ms = draft.sessions.clock_ms
    if draft.timers.delay_until_ms is not None and draft.timers.delay_until_ms <= now_ms:
        draft.timers.delay_until_ms = None
        draft.causes.add("delay ended")
    for slot, at_ms in draft.timers.drain_until_ms.items():
        if before_ms < at_ms <= now_ms:
            draft.causes.add(f"{draft.member(slot).id} drained for scale.down.timeout.ms")


def drained(draft: Draft) -> list[int]:
    """Slots of draining members whose scale-down timeout has passed."""
    now_ms = draft.sessions.clock_ms
    return sorted(slot for slot, at_ms in draft.timers.drain_until_ms.items() if at_ms <= now_ms)


def is_settled(draft: Draft) -> bool:
    """Whether every member is stable."""
    return not draft.roster.columns.unsettled.any()


def is_pending(group: Draft | Group) -> bool:
    """Whether the newest generation has no target yet."""
    return group.generation > group.target.generation


def is_releasing(draft: Draft) -> bool:
    """Whether a member that is not fenced still holds something it must give up."""
    return any(
        draft.member(slot).state is MemberState.UNREVOKED
        and slot not in draft.acknowledged
        and not draft.sessions.flags[slot] & FENCED
        for slot in draft.roster.slots
    )


def gate_ms(group: Draft | Group) -> int:
    """The group clock's time before which no placement is made.

    The assignment interval and the delay of a starting fleet (`start_delay.py`) set it.
    """
    earliest_ms = start_delay.over_ms(group)
    if group.settings.assignment_interval_ms and group.target.generation:
        interval_ms = group.settings.assignment_interval_ms
        earliest_ms = max(earliest_ms, group.target.placed_ms + interval_ms)
    return earliest_ms


def is_shut(group: Draft | Group) -> bool:
    """Whether the pending generation may not be placed before a later time."""
    return is_pending(group) and gate_ms(group) > group.sessions.clock_ms


def follow_up_is_due(draft: Draft) -> bool:
    """Whether a follow-up's time has passed and every member has settled (S1-F06).

    Not in the batch that applies a plug-in's answer, because no member has its record yet.
    """
    at_ms = draft.timers.followup_ms
    is_over = at_ms is not None and at_ms <= draft.sessions.clock_ms
    return is_over and is_settled(draft) and not draft.answered


def next_ms(draft: Draft) -> int | None:
    """The earliest deadline of the group clock; None = none."""
    deadlines_ms: list[int] = []
    if draft.timers.delay_until_ms is not None:
        deadlines_ms.append(draft.timers.delay_until_ms)
    if draft.timers.followup_ms is not None and is_settled(draft):
        deadlines_ms.append(draft.timers.followup_ms)
    if draft.target.deferred is not None or (draft.target.again and not is_releasing(draft)):
        deadlines_ms.append(draft.sessions.clock_ms)
    if draft.target.is_overtaken and draft.target.asked_ms is None:
        deadlines_ms.append(draft.sessions.clock_ms)
    if draft.target.asked_ms is not None and is_pending(draft):
        deadlines_ms.append(draft.sessions.clock_ms + ASK_AGAIN_MS)
    deadlines_ms += [
        at for at in draft.timers.drain_until_ms.values() if at > draft.sessions.clock_ms
    ]
    if draft.roster and places(draft.table, draft.assignor) and is_shut(draft):
        deadlines_ms.append(gate_ms(draft))
    if draft.roster and recovery.is_unverified(draft) and not draft.recovery.asked:
        until_ms = draft.recovery.unverified_until_ms
        deadlines_ms += [] if until_ms is None or until_ms == UNPROVED else [until_ms]
    return min(deadlines_ms, default=None)


def wake_ms(draft: Draft) -> int | None:
    """The latest time for the group's next tick; None = it needs none."""
    if not draft.roster:
        return None
    wake_times_ms = [_session_wake_ms(draft)]
    group_clock_ms = next_ms(draft)
    if group_clock_ms is not None:
        wake_times_ms.append(max(group_clock_ms, draft.sessions.clock_ms))
    return min(wake_times_ms)


def _session_wake_ms(draft: Draft) -> int:
    """The latest time for the tick that moves the session clock."""
    sessions = draft.sessions
    sessions.reset_earliest()
    wake_up_ms = NEVER
    if sessions.earliest_ms < NEVER:
        wake_up_ms = sessions.covered_ms + sessions.earliest_ms - sessions.session_ms
    if not sessions.is_apart:
        return min(wake_up_ms, sessions.clock_ms + step_ms(draft))
    wake_up_ms = min(wake_up_ms, _digests_wake_ms(draft))
    # Covers may be behind, or no clock may hear the heartbeats: further ticks are not urgent then.
    return (
        wake_up_ms
        if wake_up_ms > sessions.clock_ms
        else sessions.clock_ms + step_of(draft.settings)
    )


def _digests_wake_ms(draft: Draft) -> int:
    """When the heartbeats that members write apart must be looked at again.

    While all is well, after almost half of the session timeout. A member whose expected digest
    has changed, or whose digest has just become wrong, is looked at after one heartbeat interval;
    at the second wrong one in a row the coordinator publishes its record again.
    """
    sessions, settings = draft.sessions, draft.settings
    audible = (sessions.flags & (APART | MUTE)) == APART
    agreed = (sessions.flags & AGREED) != 0
    if (audible & ~agreed & (sessions.misses < 2)).any():
        return sessions.clock_ms + settings.heartbeat_interval_ms
    is_quiet = bool(agreed[audible].all()) and not sessions.response_due.any()
    longest_ms = step_ms(draft) * 9 // 10
    return sessions.covered_ms + (longest_ms if is_quiet else min(step_of(settings), longest_ms))


def publish(draft: Draft, wanted_ms: int | None) -> list[Record]:
    """A new `WakeUp` if the published one has passed, is too late, or has too old a mark."""
    sessions = draft.sessions
    published_ms = sessions.wake_ms
    new_mark = Mark(draft.coordinator_epoch, draft.group.sessions.taken)
    mark_suffices = new_mark == sessions.published_mark or not _would_prove(draft, new_mark)
    if sessions.agreement is not None:
        time_suffices = _may_go_on_waiting(draft, wanted_ms)
    elif published_ms is None or wanted_ms is None:
        time_suffices = wanted_ms == published_ms
    else:
        time_suffices = wanted_ms == published_ms or sessions.clock_ms < published_ms <= wanted_ms
    if mark_suffices and time_suffices:
        return []
    is_listened_to = sessions.is_listened_to(draft.settings.session_timeout_ms)
    agreement = _agreement(draft, wanted_ms) if is_listened_to else None
    sessions.wake_ms = wanted_ms
    sessions.agreement = agreement
    sessions.published_mark = new_mark
    mark_of_wake_up = None if wanted_ms is None else new_mark
    apart = wanted_ms is not None and sessions.is_apart
    return [
        WakeUp(
            group=draft.id,
            at_ms=wanted_ms,
            published=mark_of_wake_up,
            apart=apart,
            agreement=agreement,
        )
    ]


def _agreement(draft: Draft, wanted_ms: int | None) -> Agreement | None:
    """The heartbeats with which the group needs no tick at `wanted_ms`; None = it needs one.

    Only where each member heartbeats apart, its newest heartbeat was right, and the coordinator
    waits for none of them.
    """
    sessions, roster = draft.sessions, draft.roster
    flags = sessions.flags[sessions.timeout_ms > 0]
    if wanted_ms is None or not roster or (flags != np.uint16(APART | OFFERED | AGREED)).any():
        return None
    if sessions.response_due.any():
        return None
    other_ms = next_ms(draft)
    until_ms = min(sessions.clock_ms + QUIET_MS, NEVER if other_ms is None else other_ms)
    if until_ms <= wanted_ms:
        return None
    slots = [*roster.slots]
    members = [draft.member(slot).id for slot in slots]
    expected = checksum(members, sessions.digest[slots])
    return Agreement(until_ms, step_of(draft.settings), len(members), expected)


def _may_go_on_waiting(draft: Draft, wanted_ms: int | None) -> bool:
    """Whether the published agreement is still true."""
    published, agreement = draft.sessions.agreement, _agreement(draft, wanted_ms)
    return (
        published is not None
        and agreement is not None
        and published[1:] == agreement[1:]
        and draft.sessions.clock_ms < published.until_ms <= agreement.until_ms
    )


def _would_prove(draft: Draft, new_mark: Mark) -> bool:
    """Whether this mark would start a member's time that the published mark does not start."""
    published = draft.sessions.published_mark
    unstarted_slots = set(draft.sessions.demands_without_deadline(new_mark.taken))
    if published.coordinator_epoch == new_mark.coordinator_epoch:
        unstarted_slots -= set(draft.sessions.demands_without_deadline(published.taken))
    return bool(unstarted_slots)
