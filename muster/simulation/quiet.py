"""Spans of a play in which hearts beat and nothing else can happen.

A day of a settled group is tens of thousands of heartbeats that change nothing but the clocks. Such
a span is cut short by whole rounds of heartbeats: the group sees a gap in its log, as after an
outage of the broker, which counts for at most one step of the clock of anybody's session. What
comes after the gap is played beat by beat again, long enough for every member to be heard.

Whether a span is quiet is decided from the group as it is. A group has no deadline of its own that
is not asked for here; those of sessions and of demands are over, because nothing was written for
longer than either takes.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from muster.protocol.records import MemberState
from muster.simulation.member import SimulatedMember
from muster.state.deadlines import step_of
from muster.state.group import Group

FOREVER = 2**62
_ROUNDS = 4
"""Rounds of heartbeats that are played after a gap."""


def quiet_until(group: Group, processes: Collection[SimulatedMember]) -> int | None:
    """Broker time of the group's next deadline if only hearts beat until then; None = they do not.

    Args:
        group: as it is now.
        processes: all there are, those that ended included.
    """
    settings, live = group.settings, list(group.live())
    heard = [process for process in processes if process.is_heard]
    step_ms = step_of(settings)
    if (
        {process.id for process in heard} != {member.id for member in live}
        or any(process.next_ms is not None for process in processes)
        or any(process.heartbeat_ms + step_ms >= settings.session_timeout_ms for process in heard)
        or any(member.state is not MemberState.STABLE for member in live)
        or group.generation > group.target_generation
        or group.again
        or group.kept is not None
    ):
        return None
    deadlines = (group.delay_until_ms, group.followup_ms, *group.drain_until_ms.values())
    clock_ms = group.soft.clock_ms
    return min((at for at in deadlines if at is not None and at > clock_ms), default=FOREVER)


def calm_ms(group: Group) -> int:
    """How long nothing must have been written before a span may be cut."""
    return 2 * group.settings.session_timeout_ms + group.settings.rebalance_timeout_ms


def skipped_ms(span_ms: int, group: Group, processes: Collection[SimulatedMember]) -> int:
    """How much of a quiet span to leave out: whole rounds of everybody's heartbeats."""
    heard = [process.heartbeat_ms for process in processes if process.is_heard]
    if not heard:
        return 0
    rest_ms = _ROUNDS * max(*heard, step_of(group.settings))
    period_ms = math.lcm(*heard)
    return max(span_ms - rest_ms, 0) // period_ms * period_ms
