"""What is explored: small groups, each with a few faults of one kind or two."""

from __future__ import annotations

from exploration import plugin
from exploration.model import Budget, Scenario

ONE = ("A",)
TWO = ("A", "B")
THREE = ("A", "B", "C")
COPIES = (("num.standby.replicas", "1"), ("acceptable.recovery.lag", "0"))
QUICK = (("rebalance.timeout.ms", "1000"),)
FRESH_MS = 1_000
"""Snapshots that are published again so soon: a later coordinator has fewer old events to read."""

SCENARIOS: dict[str, Scenario] = {
    "1 × 1, it dies and starts again": Scenario(ONE, 1, Budget(crash=1, start=1)),
    "2 × 1, all goes well": Scenario(TWO, 1),
    "2 × 1, one dies": Scenario(TWO, 1, Budget(crash=1)),
    "2 × 1, one dies and starts again": Scenario(TWO, 1, Budget(crash=1, start=1)),
    "2 × 1, a session late": Scenario(TWO, 1, Budget(late=2)),
    "2 × 1, an event twice": Scenario(TWO, 1, Budget(repeat=1)),
    "2 × 1, an event not stored": Scenario(TWO, 1, Budget(fail=1)),
    "2 × 1, the coordinator dies in a batch": Scenario(TWO, 1, Budget(stop=1)),
    "2 × 1, the checkpoint is lost": Scenario(TWO, 1, Budget(lose=1)),
    "2 × 1, a second coordinator": Scenario(TWO, 1, Budget(usurp=1)),
    "2 × 1, a standby takes over": Scenario(TWO, 1, Budget(standby=1)),
    "2 × 1, settled: a standby takes over": Scenario(TWO, 1, Budget(standby=1), settled=True),
    "2 × 1, settled: one dies, and a standby takes over": Scenario(
        TWO, 1, Budget(crash=1, standby=1, start=1), settled=True
    ),
    "2 × 1, one leaves and returns": Scenario(TWO, 1, Budget(leave=1, start=1)),
    "2 × 1, a static one is away and returns": Scenario(
        TWO, 1, Budget(away=1, start=1), static=("A",)
    ),
    "2 × 1, one is drained": Scenario(TWO, 1, Budget(drain=1)),
    "2 × 1, one is fenced": Scenario(TWO, 1, Budget(drain=1, late=2), settings=QUICK),
    "2 × 1 with a standby, one dies": Scenario(
        TWO, 1, Budget(crash=1), settings=COPIES, assignor="high-availability"
    ),
    "2 × 1, one is fenced and dies": Scenario(
        TWO, 1, Budget(drain=1, late=2, crash=1), settings=QUICK, settled=True
    ),
    "2 × 1, one is drained and dies": Scenario(TWO, 1, Budget(drain=1, crash=1), settled=True),
    "2 × 1, a signature is refused": Scenario(TWO, 1, Budget(refuse=1)),
    "2 × 1, two signatures are refused, late": Scenario(
        TWO, 1, Budget(refuse=2, late=1), settled=True
    ),
    "2 × 1, clocks drift, one dies": Scenario(TWO, 1, Budget(drift=3, crash=1), settled=True),
    "2 × 1, clocks drift, something is late": Scenario(
        TWO, 1, Budget(drift=3, late=2), settled=True
    ),
    "2 × 1, a plug-in": Scenario(TWO, 1, assignor=plugin.NAME),
    "2 × 2, a plug-in, and the coordinator dies": Scenario(
        TWO, 2, Budget(stop=1), assignor=plugin.NAME
    ),
    "2 × 2 with a learner": Scenario(TWO, 2, settings=COPIES[1:], assignor="learner"),
    "2 × 2 with a learner that reports lags": Scenario(
        TWO, 2, Budget(behind=1), settings=COPIES[1:], assignor="learner", lags=True
    ),
    "2 × 2, all goes well": Scenario(TWO, 2),
    "2 × 2 with standbys": Scenario(TWO, 2, settings=COPIES, assignor="high-availability"),
    "2 × 2, one dies": Scenario(TWO, 2, Budget(crash=1)),
    "2 × 2, one dies, and the coordinator": Scenario(TWO, 2, Budget(crash=1, stop=1)),
    "2 × 2, settled: one dies, and the coordinator": Scenario(
        TWO, 2, Budget(crash=1, stop=1), settled=True
    ),
    "2 × 2, settled: one dies, and the checkpoint is lost": Scenario(
        TWO, 2, Budget(crash=1, lose=1), settled=True
    ),
    "1 × 1 apart, two clocks": Scenario(ONE, 1, clocks=2),
    "1 × 1 apart, ticks are lost, doubted, in a hurry": Scenario(
        ONE, 1, Budget(lost=1, doubt=1, hurry=1), clocks=1
    ),
    "1 × 1 apart, an old clock ends, and is away": Scenario(
        ONE, 1, Budget(halt=1, late=4), clocks=1, waits=False
    ),
    "1 × 1 apart, the clock ends, and is away": Scenario(ONE, 1, Budget(halt=1, late=4), clocks=1),
    "1 × 1 apart, one more clock starts": Scenario(ONE, 1, Budget(more=1, halt=1), clocks=1),
    "1 × 1 apart, ticks come early": Scenario(ONE, 1, Budget(early=2, crash=1), clocks=1),
    "1 × 1 apart, a standby takes over": Scenario(ONE, 1, Budget(standby=1), clocks=1),
    "1 × 1 apart, brokers differ, it dies and starts again": Scenario(
        ONE, 1, Budget(crash=1, start=1), clocks=1, skew_ms=900
    ),
    "1 × 1 apart, brokers differ the other way": Scenario(
        ONE, 1, Budget(crash=1, start=1, late=1), clocks=1, skew_ms=-900
    ),
    "1 × 1 apart, the coordinator dies": Scenario(ONE, 1, Budget(stop=1), clocks=1),
    "1 × 1 apart, the checkpoint is lost": Scenario(ONE, 1, Budget(lose=1), clocks=1),
    "2 × 1 apart, all goes well": Scenario(TWO, 1, clocks=1),
    "2 × 1 apart, settled: one dies": Scenario(TWO, 1, Budget(crash=1), clocks=1, settled=True),
    "2 × 1 apart, settled: one dies, a tick is lost": Scenario(
        TWO, 1, Budget(crash=1, lost=1), clocks=1, settled=True
    ),
    "3 × 2, settled: one dies": Scenario(THREE, 2, Budget(crash=1), settled=True),
    "3 × 2, one dies": Scenario(THREE, 2, Budget(crash=1)),
    "2 × 1, fresh snapshots: the checkpoint is lost": Scenario(
        TWO, 1, Budget(lose=1), rebuild_ms=FRESH_MS
    ),
    "2 × 1, fresh snapshots: a second coordinator": Scenario(
        TWO, 1, Budget(usurp=1), rebuild_ms=FRESH_MS
    ),
    "2 × 2, fresh snapshots: one dies, and the checkpoint is lost": Scenario(
        TWO, 2, Budget(crash=1, lose=1), rebuild_ms=FRESH_MS
    ),
    "2 × 2, fresh snapshots: one dies, and a second coordinator": Scenario(
        TWO, 2, Budget(crash=1, usurp=1), rebuild_ms=FRESH_MS
    ),
}
"""Members × tasks, and what may happen; all orders of all messages and batches besides."""
