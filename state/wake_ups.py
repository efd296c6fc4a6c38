"""When a group needs its next tick, and the wake-up record that asks for it.

A *tick* is an event that only moves the group's clocks; a clock writes it when the wake-up is due.
While a group has members, its wake-up is at most one step (`session_clock.step_of`) after its
newest record, because the session clock counts no more than a step between two records. If every
member heartbeats apart, the wake-up is almost half a session timeout later, and it has an
*agreement*: the heartbeats that the coordinator expects. A clock that reads exactly these writes no
tick.
"""

from __future__ import annotations

import numpy as np

from muster.protocol.events import Mark
from muster.protocol.expected_heartbeats import Agreement, checksum
from muster.protocol.records import Record, WakeUp
from muster.state.deadlines import next_ms
from muster.state.draft import Draft
from muster.state.liveness import AGREED, APART, MISSES_OF_A_LOSS, MUTE, NEVER, OFFERED
from muster.state.session_clock import longest_step_ms, step_of

QUIET_MS = 600_000
"""The longest time without a tick in a group whose members all write the expected heartbeats."""


def wake_ms(draft: Draft) -> int | None:
    """The latest time for the group's next tick; None = it needs none."""
    if not draft.roster:
        return None
    if draft.dismisses_more:
        return draft.sessions.clock_ms
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
        return min(wake_up_ms, sessions.clock_ms + longest_step_ms(draft))
    wake_up_ms = min(wake_up_ms, _digests_wake_ms(draft))
    # Covers may be behind, or no clock may hear the heartbeats: further ticks are not urgent then.
    if wake_up_ms > sessions.clock_ms:
        return wake_up_ms
    return sessions.clock_ms + step_of(draft.settings)


def _digests_wake_ms(draft: Draft) -> int:
    """When the heartbeats that members write apart must be looked at again.

    While all is well, after almost half of the session timeout. A member whose expected digest
    has changed, or whose digest has just become wrong, is looked at after one heartbeat interval;
    at the second wrong one in a row the coordinator publishes its record again.
    """
    sessions, settings = draft.sessions, draft.settings
    audible = (sessions.flags & (APART | MUTE)) == APART
    agreed = (sessions.flags & AGREED) != 0
    if (audible & ~agreed & (sessions.misses < MISSES_OF_A_LOSS)).any():
        return sessions.clock_ms + settings.heartbeat_interval_ms
    is_quiet = bool(agreed[audible].all()) and not sessions.response_due.any()
    longest_ms = longest_step_ms(draft) * 9 // 10
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
    sessions.wake_ms, sessions.agreement = wanted_ms, agreement
    sessions.published_mark = new_mark
    return [
        WakeUp(
            group=draft.id,
            at_ms=wanted_ms,
            published=None if wanted_ms is None else new_mark,
            apart=wanted_ms is not None and sessions.is_apart,
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
    members = [member.id for member in roster]
    expected = checksum(members, sessions.digest[roster.slots])
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
    if unstarted_slots and published.coordinator_epoch == new_mark.coordinator_epoch:
        unstarted_slots -= set(draft.sessions.demands_without_deadline(published.taken))
    return bool(unstarted_slots)
