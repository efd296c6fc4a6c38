"""Plays random lives, each of which must keep every promise, and counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from muster import parallel, plugins
from muster.documents.scenario import parse_scenario
from muster.errors import BadInput
from muster.protocol.errors import MusterError
from muster.random_lives.random_scenario import random_scenario
from muster.simulation.promises import Promises, broken_at_end
from muster.simulation.scenario_player import SimulatedGroup

CHUNK = 8
"""Lives given to a process at once."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Life:
    """The outcome of one life.

    Attributes:
        assignor: that of its beginning.
        generations: how many it had.
        moved: actives that changed their owner.
        broken: promises that were broken, in words; empty = all were kept.
    """

    seed: int
    assignor: str
    generations: int
    moved: int
    broken: tuple[str, ...]

    def __str__(self) -> str:
        return f"life {self.seed} ({self.assignor}): {self.broken[0] if self.broken else 'kept'}"


@dataclass(slots=True)
class Tally:
    """Totals over many lives: how many of each assignor, and those that broke a promise."""

    lives: Counter[str] = field(default_factory=Counter)
    generations: int = 0
    moved: int = 0
    broken: list[Life] = field(default_factory=list)

    def add(self, life: Life) -> None:
        """Count one more life."""
        self.lives[life.assignor] += 1
        self.generations += life.generations
        self.moved += life.moved
        if life.broken:
            self.broken.append(life)

    def __str__(self) -> str:
        whole = self.lives.total()
        kinds = ", ".join(f"{count:,} {name}" for name, count in self.lives.most_common())
        return (
            f"{whole - len(self.broken):,} of {whole:,} lives kept every promise ({kinds};"
            f" {self.generations:,} generations, {self.moved:,} tasks moved)"
        )


def checked(raw: Row, seed: int = 0) -> Life:
    """Play a scenario and check every promise.

    Raises:
        BadInput: it is not a scenario.
    """
    scenario = parse_scenario(raw)
    promises = Promises()
    world = SimulatedGroup(lookup=plugins.get, promises=promises)
    try:
        world.play(scenario)
        still_ms = world.now_ms - world.timeline.changed_ms
        broken = [*promises.broken, *broken_at_end(world.group, world.members, still_ms)]
    except BadInput:
        raise
    except MusterError as error:
        broken = [f"{type(error).__name__}: {error}"]
    return Life(
        seed=seed,
        assignor=scenario.group.assignor,
        generations=len(world.timeline.entries),
        moved=world.timeline.moved,
        broken=tuple(broken),
    )


def live(seed: int, scenario: Mapping[str, Any] | None = None, *, changes: bool = False) -> Life:
    """Play the life of a seed; `scenario` and `changes` as for `random_scenario`."""
    return checked(random_scenario(seed, scenario, changes=changes), seed)


def lives(
    seed: int,
    count: int,
    scenario: Mapping[str, Any] | None = None,
    processes: int = 1,
    *,
    changes: bool = False,
) -> Iterator[Life]:
    """Play `count` lives, from `seed` on; their order does not depend on `processes`."""
    one = partial(live, scenario=scenario, changes=changes)
    seeds = range(seed, seed + count)
    if processes == 1:
        yield from map(one, seeds)
        return
    with parallel.pool(processes) as pool:
        yield from pool.map(one, seeds, chunksize=CHUNK)
