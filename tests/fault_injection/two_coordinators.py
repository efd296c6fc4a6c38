"""Lives in which a coordinator goes on for seconds while the one that replaces it starts."""

from __future__ import annotations

from random import Random

from fault_injection import faults
from fault_injection.faults import Timed

ALIVE_MS = 2_500
"""So long both are alive; what the first decides meanwhile, members believe."""
CLAIMS_MS = 4_000


def life(seed: int) -> list[Timed]:
    """Members come and go under the first; who came last is dead before the second has asked."""
    rng = Random(f"two coordinators/{seed}")
    timeline: list[Timed] = [(n, faults.Starts(name)) for n, name in enumerate(faults.NAMES[:3])]
    timeline.append((100, faults.Configures(0, 0, 0)))  # sticky, stateless and stateful tasks
    timeline.append((CLAIMS_MS, faults.Usurps(ALIVE_MS, 10, ALIVE_MS)))
    at = CLAIMS_MS + 50
    end = CLAIMS_MS + ALIVE_MS - 250
    while at < end:
        name = rng.choice(faults.NAMES[:4])
        timeline += [(at, faults.Stops(name)), (at + 60, faults.Starts(name))]
        at += rng.randrange(120, 400)
    last = rng.choice(faults.NAMES[:4])
    timeline += [(end, faults.Stops(last)), (end + 60, faults.Starts(last))]
    timeline += [(end + rng.randrange(120, 300), faults.Dies(last))]
    timeline += [(CLAIMS_MS + ALIVE_MS + 4_000, faults.Starts(last))]
    return sorted(timeline, key=lambda timed: timed[0])


def lost_batch(seed: int) -> list[Timed]:
    """After many generations a coordinator ends while it writes, and its checkpoint is lost.

    Some of its members have read what no state of the group says, and are dead before they are
    asked.
    """
    rng = Random(f"lost batch/{seed}")
    timeline: list[Timed] = [(n, faults.Starts(name)) for n, name in enumerate(faults.NAMES[:3])]
    timeline.append((100, faults.Configures(0, 0, 0)))
    for at in range(1_000, 4_000, 250):
        name = faults.NAMES[at // 250 % 3]
        timeline += [(at, faults.Stops(name)), (at + 60, faults.Starts(name))]
    first, second = rng.sample(faults.NAMES[:3], 2)
    ends = 5_000 + rng.randrange(8, 40)
    timeline += [(5_000, faults.Stops(first)), (ends, faults.Restarts(50, checkpoint=False))]
    timeline += [(ends + rng.randrange(10, 40), faults.Dies(second))]
    timeline += [(ends + 8_000, faults.Starts(second))]
    return sorted(timeline, key=lambda timed: timed[0])


def silent(seed: int) -> list[Timed]:
    """Members freeze with what the first coordinator gave them, before the second asks them.

    They keep their tasks for a session of 5 s, and the second gives out free tasks before that.
    """
    rng = Random(f"silent/{seed}")
    names = rng.sample(faults.NAMES[:4], 4)
    timeline: list[Timed] = [(n, faults.Starts(name)) for n, name in enumerate(names[:2])]
    timeline.append((100, faults.Configures(0, 0, 3)))  # a session of 5 s
    timeline.append((CLAIMS_MS, faults.Usurps(900, 10, 1_000)))
    joins = CLAIMS_MS + rng.randrange(20, 100)
    timeline.append((joins, faults.Starts(names[2])))
    if rng.random() < 0.5:
        timeline.append((joins + rng.randrange(200, 400), faults.Stops(names[2])))
    for name in names[:3]:
        span_ms = 4_700 if name == names[2] else rng.choice((1_200, 4_700))
        timeline.append((CLAIMS_MS + 850, faults.Freezes(name, span_ms)))
    timeline.append((CLAIMS_MS + 1_500, faults.Starts(names[3])))
    if rng.random() < 0.5:  # the second ends, and asks again
        timeline.append((CLAIMS_MS + 1_300, faults.Restarts(100, checkpoint=True)))
    return sorted(timeline, key=lambda timed: timed[0])


def taken_over_twice(seed: int) -> list[Timed]:
    """A third coordinator replaces the second one, which may not grant anything yet.

    The second goes on until it may, and gives a task to a member that the third has not asked.
    """
    rng = Random(f"taken over twice/{seed}")
    first, second, third = rng.sample(faults.NAMES[:3], 3)
    timeline: list[Timed] = [(300, faults.Starts(first)), (1_100, faults.Deafens(first, 3_200))]
    timeline.append((1_370, faults.Usurps(50, 200, 0, obeys=False)))
    timeline += [(3_200, faults.Dies(first)), (3_270, faults.Starts(second))]
    timeline.append((4_250, faults.Starts(third)))
    timeline.append((6_000 + rng.randrange(200), faults.Usurps(780, 620, 0, obeys=False)))
    timeline.append((6_300 + rng.randrange(500), faults.Starts(first)))
    return sorted(timeline, key=lambda timed: timed[0])
