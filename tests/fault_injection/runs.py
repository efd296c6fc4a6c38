"""Plays many runs, each with random faults and then none, and shrinks one that breaks a law.

A run is a seed and a list of faults. In one run in four, by the seed, all placements are computed
aside. If a run breaks a law, it is played again and again with parts of its list left out (delta
debugging), until no fault can be left out. The rest is played once more to keep its trace.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import TypeAlias

from fault_injection import faults
from fault_injection.checker import CheckedJob, LawBroken
from fault_injection.fault_run import FaultRun
from fault_injection.faults import Timed
from fault_injection.faulty_jobs import FaultyJob
from fault_injection.placements_aside import AsideJob

from muster import parallel
from muster.simulation.shrinking import shrunk

STORM_MS = (5_000, 60_000)
"""Shortest and longest time in which faults happen in a run."""
EVERY_MS = (60, 800)
"""Smallest and greatest mean time between two faults in a run."""
BEGINNING_MS = 300
"""Every process starts before this, unless a fault happens first."""
PLAYS_MAX = 600
"""How often a broken run is played to shrink it."""
ASIDE_EVERY = 4
"""The placements of every so many-th seed are computed aside."""
RUNS_AHEAD = 8
"""Runs given out for each process before the result of the first is needed."""


Invent: TypeAlias = Callable[[int], list[Timed]]
"""Seed → the faults of its run: `stream`, or `usual_days.day`."""
World: TypeAlias = Callable[..., FaultRun]
"""`FaultRun`, or a class that is made like it."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A law that a run broke.

    Attributes:
        law: a description of what happened.
        seed: of the run.
        faults: the smallest list found that breaks it.
        of: number of faults in the run.
        trace: what happened, line by line.
    """

    law: str
    seed: int
    faults: tuple[Timed, ...]
    of: int
    trace: tuple[str, ...]

    def __str__(self) -> str:
        head = f"seed {self.seed}, {len(self.faults)} faults of {self.of}: {self.law}"
        return "\n".join((head, *self.trace))


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run.

    Attributes:
        seed: of the run.
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
    """The results of many runs.

    Attributes:
        runs: how many.
        generations, changes, faults, lasted_ms: sums over the runs.
        settled_ms: the longest time that one of them took to settle.
        broken: the law that the last one broke, None = none.
    """

    runs: int = 0
    generations: int = 0
    changes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    lasted_ms: float = 0.0
    settled_ms: float = 0.0
    broken: Broken | None = None

    def add(self, result: Result) -> None:
        """Add a run."""
        self.runs += 1
        self.generations += result.generations
        self.changes += result.changes
        self.faults += result.faults
        self.lasted_ms += result.lasted_ms
        self.settled_ms = max(self.settled_ms, result.settled_ms)
        self.broken = result.broken

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.faults.most_common())
        return (
            f"{self.generations:,} generations in {self.runs:,} runs of "
            f"{self.lasted_ms / 3_600_000:,.1f} h in all, {self.changes:,} changes of owner\n"
            f"{self.faults.total():,} faults: {kinds}\n"
            f"settled at the latest {self.settled_ms / 1_000:,.1f} s after the last fault"
        )


def stream(seed: int, stressed: Collection[type] = ()) -> list[Timed]:
    """The faults of a run: all processes start, then faults, `stressed` kinds more often."""
    rng = Random(f"life/{seed}")
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


def job_of(seed: int) -> type[FaultyJob]:
    """The kind of coordinators in the random run of a seed."""
    return CheckedJob if seed % ASIDE_EVERY else AsideJob


def play(
    seed: int,
    given: Sequence[Timed],
    *,
    traced: bool = False,
    job: type[FaultyJob] = CheckedJob,
    world: World = FaultRun,
) -> tuple[FaultRun, float, str]:
    """Play one run.

    Args:
        seed: of the run.
        given: its faults.
        traced: whether to keep its trace.
        job: the kind of its coordinators.
        world: the kind of the run.

    Returns:
        The run at its end, how long it took to settle in ms, and the law it broke ("" = none).
    """
    run = world(seed, traced=traced, job=job)
    try:
        run.play(given)
        return run, run.settle(), ""
    except LawBroken as broken:
        return run, 0.0, str(broken)
    except Exception as error:  # the code under test may raise anything
        return run, 0.0, f"{type(error).__name__}: {error}"


def played(seed: int, invent: Invent = stream, world: World = FaultRun) -> Result:
    """Play the random run of a seed, and shrink it if it breaks a law."""
    given = invent(seed)
    run, settled_ms, law = play(seed, given, job=job_of(seed), world=world)
    return Result(
        seed=seed,
        generations=run.generations,
        changes=run.changes,
        faults=Counter(type(fault).__name__ for _, fault in given),
        settled_ms=settled_ms,
        lasted_ms=run.clock_ms,
        broken=broken(seed, given, world) if law else None,
    )


def broken(seed: int, given: Sequence[Timed], world: World = FaultRun) -> Broken:
    """Shrink a stream that breaks a law; return the smallest part found, and its trace."""

    def breaks(part: Sequence[Timed]) -> bool:
        return bool(play(seed, part, job=job_of(seed), world=world)[2])

    small = shrunk(given, breaks, PLAYS_MAX)
    run, _, law = play(seed, small, traced=True, job=job_of(seed), world=world)
    return Broken(law, seed, tuple(small), len(given), tuple(run.lines))


def results(
    seed: int,
    generations: int,
    processes: int = 1,
    invent: Invent = stream,
    world: World = FaultRun,
) -> Iterator[Result]:
    """Play runs from a seed on, until they have opened `generations` or one breaks a law.

    The runs and their order do not depend on the number of processes.
    """
    opened = 0
    for result in _results(seed, processes, partial(played, invent=invent, world=world)):
        yield result
        opened += result.generations
        if opened >= generations or result.broken is not None:
            return


def tally_of(seed: int, generations: int, processes: int = 1, invent: Invent = stream) -> Tally:
    """Play runs as `results` does; return their tally."""
    tally = Tally()
    for result in results(seed, generations, processes, invent):
        tally.add(result)
    return tally


def _results(seed: int, processes: int, one: Callable[[int], Result]) -> Iterator[Result]:
    seeds = count(seed)
    if processes == 1:
        yield from map(one, seeds)
        return
    with parallel.pool(processes) as pool:
        # As one result is taken another run is given out: no process waits for a longer run.
        given = deque(pool.submit(one, next(seeds)) for _ in range(processes * RUNS_AHEAD))
        try:
            while True:
                yield given.popleft().result()
                given.append(pool.submit(one, next(seeds)))
        finally:
            pool.shutdown(cancel_futures=True)
