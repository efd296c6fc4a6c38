"""Broken rules of members that heartbeat apart, and the scenario that finds each."""

from __future__ import annotations

from exploration.model import Budget, Scenario
from exploration.mutants import Mutant
from exploration.scenarios import ONE, TWO
from exploration.world import System

from muster.state import deadlines, hearing, liveness
from muster.streams.heartbeats import Heartbeats
from muster.worker.steps import Steps

PLAIN = Scenario(ONE, 1, clocks=1)
AWAY = Scenario(ONE, 1, Budget(halt=1, late=5), clocks=1, settled=True)
TWICE = Scenario(ONE, 1, Budget(more=1, halt=1, late=4), clocks=1, settled=True)
LOST = Scenario(ONE, 1, Budget(lost=2, late=3), clocks=1, settled=True)
DIFFER = Scenario(ONE, 1, Budget(late=2), clocks=1, skew_ms=-900)
ALONE = Scenario(ONE, 1, Budget(crash=1), clocks=1, settled=True)
CRASH = Scenario(TWO, 1, Budget(crash=1), clocks=1, settled=True)

APART = (
    Mutant(
        "records of the group's own log move no session clock",
        liveness.Liveness.move_to,
        "if not self.is_apart:",
        "if True:",
        AWAY,
        states=60_000,
    ),
    Mutant(
        "the session clock moves by covered time only",
        liveness.Liveness.cover,
        "new_ms = through_ms - max(from_ms, self.covered_ms)",
        "new_ms = through_ms - self.covered_ms",
        AWAY,
        states=60_000,
    ),
    Mutant(
        "the session clock moves with covers",
        liveness.Liveness.cover,
        "self.session_ms += min(max(new_ms, 0), step_ms)",
        "pass",
        CRASH,
    ),
    Mutant(
        "a clock vouches for no time before it listened",
        Heartbeats.cover,
        "from_ms = max(group.through_ms, partition.since_ms)",
        "from_ms = group.through_ms - 60_000",
        AWAY,
        states=60_000,
    ),
    Mutant(
        "a group that is heard first was not listened to before",
        Heartbeats._hear,
        "_Group(partition.through_ms)",
        "_Group(0)",
        AWAY,
        states=60_000,
    ),
    Mutant(
        "heartbeats of a tick that was not stored come again",
        Heartbeats.done,
        "group.heard = group.sent | group.heard",
        "pass",
        LOST,
        states=60_000,
    ),
    Mutant(
        "the newest heartbeat is vouched for with its time",
        Heartbeats.cover,
        "through_ms = partition.through_ms",
        "through_ms = partition.through_ms + 4_000",
        AWAY,
        states=60_000,
    ),
    Mutant(
        "a clock writes a marker where no member writes",
        System._clocks,
        "if wake.apart and not clock.marked:",
        "if False:",
        ALONE,
    ),
    Mutant(
        "members in a cover are heard",
        hearing._hear,
        "if not len(slots):",
        "if True:",
        PLAIN,
    ),
    Mutant(
        "a member that offers to heartbeat apart is told when a clock listens",
        hearing.tell,
        "draft.answer.update(slots.tolist())",
        "pass",
        PLAIN,
    ),
    Mutant(
        "a sign of life in the group's own log counts from its own time",
        liveness.Liveness.sign_of,
        "return self.session_ms + max(at_ms - self.covered_ms, 0) + BROKERS_DIFFER_MS",
        "return self.session_ms",
        DIFFER,
        states=60_000,
    ),
    Mutant(
        "the clocks of two brokers may differ by a second",
        liveness.Liveness.sign_of,
        " + BROKERS_DIFFER_MS",
        "",
        DIFFER,
        states=60_000,
    ),
    Mutant(
        "a group whose members heartbeat apart asks for covers",
        deadlines._digests_wake_ms,
        "longest_ms if is_quiet else",
        "60_000 if is_quiet else",
        CRASH,
    ),
    Mutant(
        "a member heartbeats where the newest record says",
        Steps._obey,
        "self._is_apart = record.apart",
        "pass",
        CRASH,
    ),
)
