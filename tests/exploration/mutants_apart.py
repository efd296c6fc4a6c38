"""Broken rules of members that heartbeat apart, and the scenario in which walks find each.

These laws break far from the beginning: a clock has to be away for seconds, or a tick to be lost.
A search of 20,000 states does not get there; a few dozen random walks do.
"""

from __future__ import annotations

from exploration.model import Budget, Scenario
from exploration.mutants import Mutant
from exploration.scenarios import ONE, TWO
from exploration.steps import System

from muster.state import heartbeats, session_clock, wake_ups
from muster.streams.heartbeat_covers import Heartbeats

PLAIN = Scenario(ONE, 1, clocks=1)
ALONE = Scenario(ONE, 1, Budget(crash=1), clocks=1, settled=True)
AWAY = Scenario(ONE, 1, Budget(halt=1, late=5), clocks=1, settled=True, waits=False)
LOST = Scenario(ONE, 1, Budget(lost=2, late=3), clocks=1, settled=True, waits=False)
CRASH = Scenario(TWO, 1, Budget(crash=1), clocks=1, settled=True)

APART = (
    Mutant(
        "records of the group's own log move no session clock",
        session_clock.move_to,
        "if not sessions.is_apart:",
        "if True:",
        AWAY,
        walks=100,
    ),
    Mutant(
        "the session clock moves with covers",
        session_clock.cover,
        "sessions.session_ms += min(max(newly_covered_ms, 0), step_ms)",
        "pass",
        CRASH,
        walks=20,
    ),
    Mutant(
        "a clock vouches for no time before it listened",
        Heartbeats.cover,
        "from_ms = max(group.through_ms, partition.since_ms)",
        "from_ms = group.through_ms - 60_000",
        AWAY,
        walks=100,
    ),
    Mutant(
        "heartbeats of a tick that was not stored come again",
        Heartbeats.done,
        "self._come_back(group, group.sent)",
        "pass",
        LOST,
        walks=300,
    ),
    Mutant(
        "a clock writes a marker where no member writes",
        System._clocks,
        "if wake.apart and not clock.marked:",
        "if False:",
        ALONE,
        walks=20,
    ),
    Mutant(
        "a group whose members heartbeat apart asks for covers",
        wake_ups.publish,
        "apart=wanted_ms is not None and sessions.is_apart",
        "apart=False",
        ALONE,
        walks=20,
    ),
    Mutant(
        "members in a cover are heard",
        heartbeats._hear,
        "if not len(slots):",
        "if True:",
        PLAIN,
        walks=20,
    ),
)
