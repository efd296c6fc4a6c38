"""The session clock: time by which sessions and demands end, counted from what was really read.

- It follows the group clock (the newest broker timestamp that was read), but one jump counts for at
  most one *step* (`step_of`). So a coordinator or a broker that was away for an hour expires no
  member: the hour counts for one step, and members have the rest of their sessions to be heard.
- Where a member heartbeats apart (`protocol.tick_covers`), the heartbeats are not among the group's
  records, so a later record does not prove that a member was silent. The session clock then moves
  only with the covers of ticks; `Liveness.covered_ms` is the broker time up to which it counted.
- An event that is read from `muster.membership` in between counts from its own time, and a
  second more, because the two topics may have their leaders on brokers whose clocks differ.

`Liveness` keeps the clocks; `deadlines.move_to` decides what has ended when they have moved.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muster.protocol.settings import Settings
from muster.state.draft import Draft
from muster.state.liveness import APART, BROKERS_DIFFER_MS, MUTE, Liveness

Times = NDArray[np.int64]


def longest_step_ms(draft: Draft) -> int:
    """The longest time in ms that one jump of the session clock counts for."""
    return longest_step_of(draft.settings, draft.sessions)


def longest_step_of(settings: Settings, sessions: Liveness) -> int:
    """As `longest_step_ms`, of a group's parts."""
    step = step_of(settings)
    return max(step, settings.session_timeout_ms // 2) if sessions.is_apart else step


def step_of(settings: Settings) -> int:
    """Two heartbeat intervals, or a fortieth of the session timeout if that is more, in ms.

    The second bound avoids needless ticks in groups with short intervals and a long session.
    """
    return max(2 * settings.heartbeat_interval_ms, settings.session_timeout_ms // 40)


def move_to(sessions: Liveness, at_ms: int, step_ms: int) -> None:
    """Move both clocks; the session clock by `step_ms` at most."""
    if at_ms <= sessions.clock_ms:
        return
    if sessions.clock_ms == 0:
        sessions.clock_ms = sessions.session_ms = sessions.covered_ms = at_ms
        return
    if not sessions.is_apart:
        sessions.session_ms += min(at_ms - sessions.covered_ms, step_ms)
        sessions.covered_ms = at_ms
    sessions.clock_ms = at_ms


def catch_up(sessions: Liveness, step_ms: int) -> None:
    """Let the session clock follow the group clock once no member heartbeats apart."""
    if sessions.covered_ms < sessions.clock_ms and not sessions.is_apart:
        sessions.session_ms += min(sessions.clock_ms - sessions.covered_ms, step_ms)
        sessions.covered_ms = sessions.clock_ms
        np.minimum(sessions.last_ms, sessions.session_ms, out=sessions.last_ms)
        sessions.reset_earliest()


def cover(sessions: Liveness, from_ms: int, through_ms: int, at_ms: int, step_ms: int) -> None:
    """Move the session clock by the time from `from_ms` through `through_ms`, `step_ms` at most.

    No cover vouches for time after its tick, whose broker time is `at_ms`, so a forged one ends no
    session before its time.
    """
    claimed_before_ms = max(sessions.covered_ms, sessions.claimed_ms)
    sessions.claimed_ms = max(sessions.claimed_ms, min(through_ms, at_ms + BROKERS_DIFFER_MS))
    through_ms = min(through_ms, at_ms)
    newly_covered_ms = through_ms - max(from_ms, sessions.covered_ms)
    if through_ms <= sessions.covered_ms:
        return
    if from_ms > claimed_before_ms:
        # In the time that no clock vouches for, a member may have begun a new lease.
        listening = (sessions.flags & (APART | MUTE)) == APART
        sessions.last_ms[listening] = np.maximum(sessions.last_ms[listening], sessions.session_ms)
    sessions.session_ms += min(max(newly_covered_ms, 0), step_ms)
    sessions.covered_ms = through_ms
    # A time that no clock vouches for must not lengthen a session either.
    np.minimum(
        sessions.last_ms, sessions.activity_of(max(sessions.clock_ms, at_ms)), out=sessions.last_ms
    )
    sessions.reset_earliest()


def session_times(draft: Draft, clock_times: Times, is_apart: bool) -> Times:
    """Session time when each heartbeat is read; where members heartbeat apart, it stands still."""
    sessions = draft.sessions
    clock_before = sessions.clock_ms or int(clock_times[0])
    session_now = sessions.session_ms or clock_before
    if is_apart:
        return np.full(len(clock_times), session_now, dtype=np.int64)
    steps = np.diff(clock_times, prepend=sessions.covered_ms or clock_before)
    steps = np.minimum(steps, longest_step_ms(draft))
    return session_now + np.cumsum(steps)
