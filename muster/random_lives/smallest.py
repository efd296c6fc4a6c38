"""Shrinks a life that breaks a promise to a small scenario that breaks the same one.

Members are left out first, then events, settings and tasks, as long as the rest breaks the same
promise. The result is printed as a scenario for `muster simulate`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from muster.protocol.errors import MusterError
from muster.random_lives.lives import Life, Row, checked
from muster.random_lives.random_scenario import random_scenario
from muster.simulation.shrinking import shrunk

PLAYS_MAX = 120
"""How often a broken life is played to shrink its list of events."""


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
    for key in ("join", "leave", "crash", "return", "drain", "undrain"):
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


def smallest(
    life: Life, scenario: Mapping[str, Any] | None = None, *, changes: bool = False
) -> str:
    """The smallest scenario found that breaks a life's first broken promise, and how it does.

    `scenario` and `changes` are those that the life was played with.
    """
    raw = small(random_scenario(life.seed, scenario, changes=changes), _law(life.broken[0]))
    return "\n".join([as_scenario(raw), *checked(raw).broken[:1]])


def as_scenario(raw: Row) -> str:
    """A scenario as JSON, one event per line."""
    events = ",\n  ".join(json.dumps(event) for event in raw["events"])
    group = json.dumps(raw["group"])
    return f'{{"group": {group},\n "events": [\n  {events}],\n "until_ms": {raw["until_ms"]}}}'
