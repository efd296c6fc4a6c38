"""Random walks through the states of a scenario: deep where the search is broad.

In a walk an actor sleeps now and then: it does nothing while all others go on and time passes. A
few faults happen, as the scenario's budget allows. At the end nothing fails any more and the group
must settle. The walks of a seed are the same each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from exploration.model import SETTLES_WITHIN, Scenario, SystemState
from exploration.steps import System
from exploration.values import TIME

STEPS = 250
"""Steps of a walk."""
FAULTY = 0.02
"""Probability that the next step is a fault."""
DOZES, WAKES = 0.05, 0.05
"""Probabilities that an actor falls asleep, and that it wakes up, before a step."""
FRESH_EVERY = 200
"""After so many walks the computed values are forgotten, for the memory's sake."""


class Walk(NamedTuple):
    """A walk.

    Attributes:
        seed: its seed.
        steps: its length. law: what it broke; empty = nothing. story: its steps.
    """

    seed: int
    steps: int
    law: str = ""
    story: tuple[str, ...] = ()


def walks(scenario: Scenario, seed: int, count: int, steps: int = STEPS) -> Iterator[Walk]:
    """Walk `count` times; ends with the first walk that breaks a law."""
    system = System(scenario)
    for number in range(seed, seed + count):
        if number % FRESH_EVERY == 0:
            system = System(scenario)
        found = _walked(system, number, steps)
        yield found
        if found.law:
            return


def _walked(system: System, seed: int, steps: int) -> Walk:
    rng = Random(f"walk/{seed}")
    state, story = system.first(), list[str]()
    # In every second walk a member may also write while it reads nothing.
    parts = ("",) if seed % 2 else ("", "reads")
    actors = [f"{name} {part}" for name in system.scenario.members for part in parts]
    actors += ["coordinator", "clock"]
    asleep = ""
    for step in range(steps):
        if asleep:
            asleep = "" if rng.random() < WAKES else asleep
        elif rng.random() < DOZES:
            asleep = rng.choice(actors)
        what, then = _next(system, state, rng, asleep)
        story.append(f"{(state.now - TIME) / 1000:4.0f} s  {what}")
        if isinstance(then, str):
            return Walk(seed, step, then, tuple(story))
        state = then
    story.append("from here on, nothing fails:")
    for _ in range(SETTLES_WITHIN):
        if system.unsettled(state) is None:
            return Walk(seed, steps)
        what, then = system.calm_step(state)
        story.append(f"{(state.now - TIME) / 1000:4.0f} s  {what}")
        if isinstance(then, str):
            return Walk(seed, steps, then, tuple(story))
        state = then
    law = f"the group never settles: {system.unsettled(state)}"
    return Walk(seed, steps, law, tuple(story[: steps + 100]))


def _next(
    system: System, state: SystemState, rng: Random, asleep: str
) -> tuple[str, SystemState | str]:
    calm, faults = system.calm_and_faults(state)
    if faults and rng.random() < FAULTY:
        return rng.choice(faults)
    # One by one: the events of an actor that sleeps are not written either.
    awake = [step for step in calm if not asleep or f"{asleep} ".rstrip() not in f"{step[0]} "]
    if awake:
        return rng.choice(awake)
    return system.passed(state)
