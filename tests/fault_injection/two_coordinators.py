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
    chance = Random(f"two coordinators/{seed}")
    found: list[Timed] = [(n, faults.Starts(name)) for n, name in enumerate(faults.NAMES[:3])]
    found.append((100, faults.Configures(0, 0, 0)))  # sticky, stateless and stateful tasks
    found.append((CLAIMS_MS, faults.Usurps(ALIVE_MS, 10, ALIVE_MS)))
    at = CLAIMS_MS + 50
    end = CLAIMS_MS + ALIVE_MS - 250
    while at < end:
        name = chance.choice(faults.NAMES[:4])
        found += [(at, faults.Stops(name)), (at + 60, faults.Starts(name))]
        at += chance.randrange(120, 400)
    last = chance.choice(faults.NAMES[:4])
    found += [(end, faults.Stops(last)), (end + 60, faults.Starts(last))]
    found += [(end + chance.randrange(120, 300), faults.Dies(last))]
    found += [(CLAIMS_MS + ALIVE_MS + 4_000, faults.Starts(last))]
    return sorted(found, key=lambda timed: timed[0])


def lost_batch(seed: int) -> list[Timed]:
    """After many generations a coordinator ends while it writes, and its checkpoint is lost.

    Some of its members have read what no state of the group says, and are dead before they are
    asked.
    """
    chance = Random(f"lost batch/{seed}")
    found: list[Timed] = [(n, faults.Starts(name)) for n, name in enumerate(faults.NAMES[:3])]
    found.append((100, faults.Configures(0, 0, 0)))
    for at in range(1_000, 4_000, 250):
        name = faults.NAMES[at // 250 % 3]
        found += [(at, faults.Stops(name)), (at + 60, faults.Starts(name))]
    first, second = chance.sample(faults.NAMES[:3], 2)
    ends = 5_000 + chance.randrange(8, 40)
    found += [(5_000, faults.Stops(first)), (ends, faults.Restarts(50, checkpoint=False))]
    found += [(ends + chance.randrange(10, 40), faults.Dies(second))]
    found += [(ends + 8_000, faults.Starts(second))]
    return sorted(found, key=lambda timed: timed[0])


def silent(seed: int) -> list[Timed]:
    """Members freeze with what the first coordinator gave them, before the second asks them.

    They keep their tasks for a session of 5 s, and the second gives out free tasks before that.
    """
    chance = Random(f"silent/{seed}")
    names = chance.sample(faults.NAMES[:4], 4)
    found: list[Timed] = [(n, faults.Starts(name)) for n, name in enumerate(names[:2])]
    found.append((100, faults.Configures(0, 0, 3)))  # a session of 5 s
    found.append((CLAIMS_MS, faults.Usurps(900, 10, 1_000)))
    joins = CLAIMS_MS + chance.randrange(20, 100)
    found.append((joins, faults.Starts(names[2])))
    if chance.random() < 0.5:
        found.append((joins + chance.randrange(200, 400), faults.Stops(names[2])))
    for name in names[:3]:
        span_ms = 4_700 if name == names[2] else chance.choice((1_200, 4_700))
        found.append((CLAIMS_MS + 850, faults.Freezes(name, span_ms)))
    found.append((CLAIMS_MS + 1_500, faults.Starts(names[3])))
    if chance.random() < 0.5:  # the second ends, and asks again
        found.append((CLAIMS_MS + 1_300, faults.Restarts(100, checkpoint=True)))
    return sorted(found, key=lambda timed: timed[0])
