"""Lives in which the group is quarantined and released, and in which signing is turned on.

Of three lives one has quarantines, one has signing, and one has both; a few usual faults happen
beside them. Keys are made, required, rotated and given up in the order that docs/security.md says.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from fault_injection import faults
from fault_injection.faults import NAMES, Starts, Stops, Timed, Usurps
from fault_injection.keyrings import CLOCKS_DIFFER_MS, SPREAD_MS
from fault_injection.processor_run import (
    FOREVER_MS,
    JOB,
    OPERATORS,
    Kills,
    MakesKeys,
    ReleasesGroup,
    Requires,
    Rotates,
    Signs,
)

EVERY_MS = (300, 4_000)
"""Smallest and greatest mean time between two usual faults."""
LASTS_MS = (8_000, 30_000)


def _span(rng: Random, low: int, high: int) -> int:
    return int(low * (high / low) ** rng.random())


def quarantines(rng: Random, until_ms: int) -> list[Timed]:
    """Records that end processes; the group is released some time later, perhaps in vain."""
    steps: list[Timed] = []
    at = _span(rng, 100, 5_000)
    while at < until_ms:
        cured_ms = rng.choice((FOREVER_MS, _span(rng, 300, 12_000)))
        topic = rng.choice(("membership", "membership", "membership", "config", "lag"))
        steps.append((at, Kills(topic, cured_ms, rng.random() < 0.3)))
        if rng.random() < 0.3:
            steps.append((at + _span(rng, 1, 300), faults.Restarts(50, checkpoint=True)))
        for _ in range(rng.randint(1, 3)):
            at += _span(rng, 300, 12_000)
            steps.append((at, ReleasesGroup()))
            if rng.random() < 0.2:
                lost = faults.Restarts(rng.choice((0, 50, 100)), checkpoint=rng.random() < 0.4)
                steps.append((at - _span(rng, 1, 300), lost))
        at += _span(rng, 100, 6_000)
    return steps


def signing(rng: Random, until_ms: int) -> list[Timed]:
    """Signing is turned on and required, keys are rotated, and perhaps it is turned off."""
    at = _span(rng, 300, 4_000)
    steps: list[Timed] = [(at, MakesKeys())]
    at += 2 * CLOCKS_DIFFER_MS  # no clock may be before the beginning of the key
    steps.append((at, Signs(JOB, on=True)))
    at = _deployed(rng, steps, at + _span(rng, 50, 2_000), on=True)
    steps.append((at, Requires(on=True)))
    while at < until_ms:
        at += _span(rng, 200, 8_000)
        steps.append((at, Rotates(rng.random() < 0.1)))
    if rng.random() < 0.4:
        at += _span(rng, 200, 4_000)
        steps.append((at, Requires(on=False)))
        at += SPREAD_MS + _span(rng, 1, 1_000)
        steps.append((at, Signs(JOB, on=False)))
        _deployed(rng, steps, at + _span(rng, 200, 2_000), on=False)
    return steps


def _deployed(rng: Random, steps: list[Timed], at: int, *, on: bool) -> int:
    """Everyone but the job starts again, with keys or without; return when all have."""
    steps.append((at, Signs(OPERATORS, on)))
    down_ms, pause_ms = _span(rng, 20, 2_000), _span(rng, 50, 3_000)
    for name in rng.sample(NAMES, len(NAMES)):
        steps += [(at, Signs(name, on)), (at, Stops(name)), (at + down_ms, Starts(name))]
        at += pause_ms
    return at + down_ms


def life(seed: int) -> list[Timed]:
    """The steps of a life."""
    rng = Random(f"set aside and signed/{seed}")
    until_ms = _span(rng, *LASTS_MS)
    steps: list[Timed] = [(rng.randrange(300), Starts(name)) for name in NAMES]
    if seed % 3 != 1:
        steps += quarantines(rng, until_ms)
    if seed % 3 != 0:
        steps += signing(rng, until_ms)
    until_ms = max(until_ms, max(at for at, _ in steps))
    usual = faults.invented(seed, 0, until_ms, _span(rng, *EVERY_MS))
    steps += [
        (at, replace(fault, obeys=True) if isinstance(fault, Usurps) else fault)
        for at, fault in usual
    ]
    return sorted(steps, key=lambda timed: timed[0])
