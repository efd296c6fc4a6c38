"""`muster simulate --lives N`: plays many random lives, each of which must keep every promise.

A life that breaks a promise is shrunk: members, events, settings and tasks are left out as long as
the rest breaks the same promise. The result is printed as a scenario for `muster simulate`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from muster import parallel, plugins
from muster.documents.scenario import parse_scenario
from muster.errors import BadInput
from muster.protocol.errors import MusterError
from muster.simulation.lives import random_scenario
from muster.simulation.promises import Promises, broken_at_end
from muster.simulation.scenario_player import SimulatedGroup
from muster.simulation.shrinking import shrunk

PLAYS_MAX = 120
"""How often a broken life is played to shrink its list of events."""
CHUNK = 8
"""Lives given to a process at once."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Life:
    """The outcome of one life.

    Attributes:
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
        assignor=world.group.assignor,
        generations=len(world.timeline.entries),
        moved=world.timeline.moved,
        broken=tuple(broken),
    )


def live(seed: int, scenario: Mapping[str, Any] | None = None) -> Life:
    """Play the life of a seed."""
    return checked(random_scenario(seed, scenario), seed)


def lives(
    seed: int, count: int, scenario: Mapping[str, Any] | None = None, processes: int = 1
) -> Iterator[Life]:
    """Play `count` lives, from `seed` on; their order does not depend on `processes`."""
    one = partial(live, scenario=scenario)
    seeds = range(seed, seed + count)
    if processes == 1:
        yield from map(one, seeds)
        return
    with parallel.pool(processes) as pool:
        yield from pool.map(one, seeds, chunksize=CHUNK)


# -------------------------------------------------------------------------------- shrinking


def small(raw: Row, law: str) -> Row:
    """The smallest scenario found that breaks the same promise (`law`)."""

    def breaks(part: Row) -> bool:
        try:
            return any(_law(text) == law for text in checked(part).broken)
        except MusterError:
            return False

    def of(events: Sequence[Row]) -> Row:
        return {**raw, "events": list(events)}

    names = [row["join"]["id"] for row in raw["events"] if "join" in row]
    stay = shrunk(
        names, lambda some: breaks(of([e for e in raw["events"] if _name(e) in (None, *some)])), 40
    )
    events: Sequence[Row] = [e for e in raw["events"] if _name(e) in (None, *stay)]
    events = shrunk(events, lambda some: breaks(of(some)), PLAYS_MAX)
    life = of(events)
    while (simpler := next(filter(breaks, _simpler(life)), None)) is not None:
        life = simpler
    return life


def _law(text: str) -> str:
    return text.partition(":")[0]


def _name(event: Row) -> str | None:
    """The member an event is about."""
    for key in ("join", "leave", "crash", "return", "drain"):
        if key in event:
            what = event[key]
            name: str = what["id"] if isinstance(what, dict) else what
            return name
    return None


def _simpler(raw: Row) -> Iterator[Row]:
    """Scenarios that each have one thing less."""
    for key in raw["group"].get("config", {}):
        yield _without(raw, "group", "config", key)
    units = raw["group"].get("tasks", [])  # an event may give the group its tasks
    for nth, unit in enumerate(units):
        if len(units) > 1:
            yield _without(raw, "group", "tasks", nth)
        if unit.get("partitions", 1) > 1:
            less = deepcopy(raw)
            less["group"]["tasks"][nth]["partitions"] -= 1
            for racks in ("source_racks", "changelog_racks"):
                less["group"]["tasks"][nth].get(racks, [None]).pop()
            yield less
        for key in ("source_racks", "changelog_racks", "weight"):
            if key in unit:
                yield _without(raw, "group", "tasks", nth, key)
    for nth, event in enumerate(raw["events"]):
        for key in event.get("join", {}):
            if key != "id":
                yield _without(raw, "events", nth, "join", key)


def _without(raw: Row, *path: str | int) -> Row:
    """A copy of a scenario that lacks what is at a path."""
    less = deepcopy(raw)
    holder: Any = less
    for step in path[:-1]:
        holder = holder[step]
    del holder[path[-1]]
    return less


def smallest(life: Life, scenario: Mapping[str, Any] | None = None) -> str:
    """The smallest scenario found that breaks a life's first broken promise, and how it does."""
    raw = small(random_scenario(life.seed, scenario), _law(life.broken[0]))
    return "\n".join([as_scenario(raw), *checked(raw).broken[:1]])


def as_scenario(raw: Row) -> str:
    """A scenario as JSON, one event per line."""
    events = ",\n  ".join(json.dumps(event) for event in raw["events"])
    group = json.dumps(raw["group"])
    return f'{{"group": {group},\n "events": [\n  {events}],\n "until_ms": {raw["until_ms"]}}}'
