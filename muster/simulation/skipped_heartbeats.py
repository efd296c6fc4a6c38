"""Finds spans of a simulation that have only heartbeats, so that the simulation can skip them.

A settled group has tens of thousands of heartbeats a day, which change only clocks. The simulation
shortens a span of them by whole heartbeat intervals: the group sees a gap in its log, as after an
outage of the broker, and a gap advances each session's clock by at most one step. After the gap a
few intervals are simulated, so that every member sends a heartbeat.

The group's state decides whether a span is quiet. `quiet_until` checks all of the group's own
deadlines. Deadlines of sessions and of releases have passed, because only heartbeats were written
for longer than both together (`calm_ms`).
"""

from __future__ import annotations

import math
from collections.abc import Collection

from muster.protocol.records import MemberState
from muster.simulation.member import SimulatedMember
from muster.state.group import Group
from muster.state.session_clock import step_of

FOREVER = 2**62
_ROUNDS = 4
"""Rounds of heartbeats that are simulated after a gap."""


def quiet_until(group: Group, processes: Collection[SimulatedMember]) -> int | None:
    """Broker time of the group's next deadline, if only heartbeats happen before it; else None.

    The processes include those that have ended.
    """
    settings, live = group.settings, list(group.roster)
    heard = [process for process in processes if process.is_heard]
    step_ms = step_of(settings)
    if (
        {process.id for process in heard} != {member.id for member in live}
        or any(process.next_ms is not None for process in processes)
        or any(process.heartbeat_ms + step_ms >= settings.session_timeout_ms for process in heard)
        or any(member.state is not MemberState.STABLE for member in live)
        or group.generation > group.target.generation
        or group.target.again
        or group.target.deferred is not None
    ):
        return None
    deadlines = (
        group.timers.delay_until_ms,
        group.timers.followup_ms,
        *group.timers.drain_until_ms.values(),
    )
    clock_ms = group.sessions.clock_ms
    return min((at for at in deadlines if at is not None and at > clock_ms), default=FOREVER)


def calm_ms(group: Group) -> int:
    """How long nothing but heartbeats must have been written before a span may be skipped."""
    return 2 * group.settings.session_timeout_ms + group.settings.rebalance_timeout_ms


def skipped_ms(span_ms: int, group: Group, processes: Collection[SimulatedMember]) -> int:
    """How much of a quiet span to skip: whole rounds of all members' heartbeats."""
    heard = [process.heartbeat_ms for process in processes if process.is_heard]
    if not heard:
        return 0
    rest_ms = _ROUNDS * max(*heard, step_of(group.settings))
    period_ms = math.lcm(*heard)
    return max(span_ms - rest_ms, 0) // period_ms * period_ms
