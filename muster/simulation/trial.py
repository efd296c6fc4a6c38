"""Plays many lives, each with random faults and then none, and shrinks one that breaks a law.

A life is a seed and a list of faults. If it breaks a law, it is played again and again with parts
of its list left out (delta debugging), until no fault can be left out. The rest is played once more
to record its story.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count, islice
from multiprocessing import get_context
from random import Random
from typing import TypeVar

from muster.simulation import faults
from muster.simulation.faults import Timed
from muster.simulation.judge import LawBroken
from muster.simulation.ordeal import Ordeal

Item = TypeVar("Item")
STORM_MS = (5_000, 60_000)
"""Shortest and longest time in which faults happen in a life."""
EVERY_MS = (60, 800)
"""Smallest and greatest mean time between two faults in a life."""
BEGINNING_MS = 300
"""Every process starts before this, unless a fault happens first."""
PLAYS_MAX = 600
"""How often a broken life is played to shrink it."""
LIVES_A_TURN = 8
"""Lives given to each process at a time."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A law that a life broke.

    Attributes:
        law: a description of what happened.
        seed: of the life.
        faults: the smallest list found that breaks it.
        of: number of faults in the life.
        story: what happened, line by line.
    """

    law: str
    seed: int
    faults: tuple[Timed, ...]
    of: int
    story: tuple[str, ...]

    def __str__(self) -> str:
        head = f"seed {self.seed}, {len(self.faults)} faults of {self.of}: {self.law}"
        return "\n".join((head, *self.story))


@dataclass(frozen=True, slots=True)
class Life:
    """The result of one life.

    Attributes:
        seed: of the life.
        generations: number opened in it.
        changes: how often a task got another process.
        faults: how many of each kind happened.
        settled_ms: how long the group took to settle after the last fault.
        lasted_ms: its length in simulated time.
        broken: the law it broke, None = none.
    """

    seed: int
    generations: int
    changes: int
    faults: Counter[str]
    settled_ms: float
    lasted_ms: float
    broken: Broken | None = None


@dataclass(slots=True)
class Tally:
    """The results of many lives.

    Attributes:
        lives: how many.
        generations, changes, faults, lasted_ms: sums over the lives.
        settled_ms: the longest time that one of them took to settle.
        broken: the law that the last one broke, None = none.
    """

    lives: int = 0
    generations: int = 0
    changes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    lasted_ms: float = 0.0
    settled_ms: float = 0.0
    broken: Broken | None = None

    def add(self, life: Life) -> None:
        """Add a life."""
        self.lives += 1
        self.generations += life.generations
        self.changes += life.changes
        self.faults += life.faults
        self.lasted_ms += life.lasted_ms
        self.settled_ms = max(self.settled_ms, life.settled_ms)
        self.broken = life.broken

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.faults.most_common())
        return (
            f"{self.generations:,} generations in {self.lives:,} lives of "
            f"{self.lasted_ms / 3_600_000:,.1f} h in all, {self.changes:,} changes of owner\n"
            f"{self.faults.total():,} faults: {kinds}\n"
            f"settled at the latest {self.settled_ms / 1_000:,.1f} s after the last fault"
        )


def stream(seed: int, stressed: Collection[type] = ()) -> list[Timed]:
    """The faults of a life: all processes start, then faults, `stressed` kinds more often."""
    rng = Random(f"life/{seed}")  # noqa: S311 — a simulation, not a secret
    until_ms = int(_between(rng, *STORM_MS))
    every_ms = int(_between(rng, *EVERY_MS))
    starts: list[Timed] = [
        (rng.randrange(BEGINNING_MS), faults.Starts(name)) for name in faults.NAMES
    ]
    timed_faults = [*starts, *faults.invented(seed, 0, until_ms, every_ms, stressed)]
    return sorted(timed_faults, key=lambda timed: timed[0])


def _between(rng: Random, low: float, high: float) -> float:
    """A random number between the two, log-uniform."""
    return float(low * (high / low) ** rng.random())


def play(seed: int, given: Sequence[Timed], *, told: bool = False) -> tuple[Ordeal, float, str]:
    """Play one life; `told` records its story.

    Returns:
        The ordeal at its end, how long it took to settle in ms, and the law it broke ("" = none).
    """
    world = Ordeal(seed, told=told)
    try:
        world.play(given)
        return world, world.settle(), ""
    except LawBroken as broken:
        return world, 0.0, str(broken)
    except Exception as error:  # the code under test may raise anything
        return world, 0.0, f"{type(error).__name__}: {error}"


def live(seed: int) -> Life:
    """Play the random life of a seed, and shrink it if it breaks a law."""
    given = stream(seed)
    world, settled_ms, law = play(seed, given)
    return Life(
        seed=seed,
        generations=world.generations,
        changes=world.changes,
        faults=Counter(type(fault).__name__ for _, fault in given),
        settled_ms=settled_ms,
        lasted_ms=world.clock_ms,
        broken=broken(seed, given) if law else None,
    )


def broken(seed: int, given: Sequence[Timed]) -> Broken:
    """Shrink a stream that breaks a law; return the smallest part found, and its story."""

    def breaks(part: Sequence[Timed]) -> bool:
        return bool(play(seed, part)[2])

    small = shrunk(given, breaks, PLAYS_MAX)
    world, _, law = play(seed, small, told=True)
    return Broken(law, seed, tuple(small), len(given), tuple(world.story.lines))


def shrunk(
    given: Sequence[Item], breaks: Callable[[Sequence[Item]], bool], plays_max: int
) -> list[Item]:
    """Delta debugging: leave out halves, quarters, … single items while the rest still breaks."""
    small, plays = list(given), 0
    size = max(1, len(small) // 2)
    while True:
        at, left_out = 0, False
        while at < len(small) and plays < plays_max:
            part = small[:at] + small[at + size :]
            plays += 1
            if breaks(part):
                small, left_out = part, True
            else:
                at += size
        if plays >= plays_max or (size == 1 and not left_out):
            return small
        size = max(1, size // 2)


def trial(seed: int, generations: int, processes: int = 1) -> Iterator[Life]:
    """Play lives from a seed on, until they have opened `generations` or one breaks a law.

    The lives and their order do not depend on the number of processes.
    """
    opened = 0
    for life in _lives(seed, processes):
        yield life
        opened += life.generations
        if opened >= generations or life.broken is not None:
            return


def tried(seed: int, generations: int, processes: int = 1) -> Tally:
    """Play a whole trial; return its tally."""
    tally = Tally()
    for life in trial(seed, generations, processes):
        tally.add(life)
    return tally


def _lives(seed: int, processes: int) -> Iterator[Life]:
    seeds = count(seed)
    if processes == 1:
        yield from map(live, seeds)
        return
    # Spawned, not forked: the caller may have threads (Kafka clients, a test runner).
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        while True:
            yield from pool.map(live, islice(seeds, processes * LIVES_A_TURN), chunksize=2)
