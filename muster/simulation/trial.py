"""Many lives in a row, each a storm of invented faults and the calm after; a broken law made small.

A life is a seed and a list of faults. One that breaks a law is tried again with parts of its list
left out, again and again (delta debugging), until nothing can be left out any more; what remains
is played once more with the story switched on.
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

Each = TypeVar("Each")
STORM_MS = (5_000, 60_000)
"""How long faults happen in a life, from the shortest to the longest."""
EVERY_MS = (60, 800)
"""How far faults are apart in a life, on average."""
BEGINNING_MS = 300
"""Every process has started by then, unless a fault comes first."""
PLAYS_MAX = 600
"""How often a broken life is played to make it small."""
LIVES_A_TURN = 8
"""Lives handed to a process at once."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A law that a life broke.

    Attributes:
        law: what happened, in words.
        seed: of the life.
        faults: the fewest that were found to break it.
        of: how many the life had.
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
    """How one life went.

    Attributes:
        seed: which one.
        generations: opened in it.
        changes: how often a task got another process.
        faults: how many of each kind happened.
        settled_ms: how long the group took to settle after the last one.
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
    """What many lives come to.

    Attributes:
        lives: how many.
        generations, changes, faults, lasted_ms: sums over them.
        settled_ms: the longest any of them took to settle.
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
        """One more."""
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
    """The faults of a life: everybody starts, then trouble; `stressed` kinds more often."""
    chance = Random(f"life/{seed}")  # noqa: S311 — a play, not a secret
    until_ms = int(_between(chance, *STORM_MS))
    every_ms = int(_between(chance, *EVERY_MS))
    starts: list[Timed] = [
        (chance.randrange(BEGINNING_MS), faults.Starts(name)) for name in faults.NAMES
    ]
    found = [*starts, *faults.invented(seed, 0, until_ms, every_ms, stressed)]
    return sorted(found, key=lambda timed: timed[0])


def _between(chance: Random, low: float, high: float) -> float:
    """Each power of two as often as any other."""
    return float(low * (high / low) ** chance.random())


def play(seed: int, given: Sequence[Timed], *, told: bool = False) -> tuple[Ordeal, float, str]:
    """One life.

    Returns:
        The world as it was at its end, how long it took to settle, and the law it broke ("": none).
    """
    world = Ordeal(seed, told=told)
    try:
        world.play(given)
        return world, world.settle(), ""
    except LawBroken as broken:
        return world, 0.0, str(broken)
    except Exception as error:  # the machine under test may raise anything
        return world, 0.0, f"{type(error).__name__}: {error}"


def live(seed: int) -> Life:
    """One life, and if it breaks a law the smallest one like it."""
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
    """The smallest part of a stream that still breaks a law, and its story."""

    def breaks(part: Sequence[Timed]) -> bool:
        return bool(play(seed, part)[2])

    small = shrunk(given, breaks, PLAYS_MAX)
    world, _, law = play(seed, small, told=True)
    return Broken(law, seed, tuple(small), len(given), tuple(world.story.lines))


def shrunk(
    given: Sequence[Each], breaks: Callable[[Sequence[Each]], bool], plays_max: int
) -> list[Each]:
    """Delta debugging: leave out halves, quarters … single faults as long as it still breaks."""
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
    """Lives from a seed on until they have opened so many generations, or one breaks a law.

    The same lives in the same order whatever the number of processes.
    """
    opened = 0
    for life in _lives(seed, processes):
        yield life
        opened += life.generations
        if opened >= generations or life.broken is not None:
            return


def tried(seed: int, generations: int, processes: int = 1) -> Tally:
    """A trial to its end."""
    tally = Tally()
    for life in trial(seed, generations, processes):
        tally.add(life)
    return tally


def _lives(seed: int, processes: int) -> Iterator[Life]:
    seeds = count(seed)
    if processes == 1:
        yield from map(live, seeds)
        return
    # Not forked: the caller may have threads (Kafka clients, a test runner).
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        while True:
            yield from pool.map(live, islice(seeds, processes * LIVES_A_TURN), chunksize=2)
