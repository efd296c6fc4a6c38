"""Fleets and faults invented from a seed: the same number, the same life."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from muster.protocol.events import Join
from muster.protocol.ids import MemberId
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.simulation.scenario import (
    Configured,
    Crashes,
    Drains,
    Happening,
    Joins,
    Leaves,
    Rejoins,
    Scenario,
)
from muster.simulation.world import GROUP

ASSIGNORS = ("sticky", "learner", "high-availability")
MEMBERS_MAX = 12
EVENTS = 40
SPACING_MS = 20_000
_FAULTS: dict[str, Callable[[str], Happening]] = {
    "leave": Leaves,
    "crash": Crashes,
    "drain": Drains,
    "rejoin": Rejoins,
}
QUIET_MS = 600_000
"""No more faults for so long at the end, so that the group can settle."""


def invented(seed: int, given: Scenario | None = None) -> Scenario:
    """A life.

    Args:
        seed: any number.
        given: whose group it is, and what happens besides; None = the group is invented too.
    """
    chance = Random(f"muster/{seed}")  # noqa: S311 — a play, not a secret
    group = given.group if given is not None else _group(chance)
    events = list(given.events) if given is not None else []
    at_ms, names = 0, 0
    members: list[str] = []
    for _ in range(EVENTS):
        what = chance.choice(("join", "join", "leave", "crash", "drain", "rejoin"))
        if what == "join" or not members:
            if len(members) < MEMBERS_MAX:
                names += 1
                members.append(f"M{names}")
                events.append((at_ms, _join(chance, members[-1])))
        else:
            member = chance.choice(members)
            happening = _FAULTS[what](member)
            if what in ("leave", "crash"):
                members.remove(member)
            events.append((at_ms, happening))
        at_ms += chance.randrange(SPACING_MS)
    until_ms = max(at_ms + QUIET_MS, given.until_ms if given is not None else 0)
    events.sort(key=lambda event: event[0])
    return Scenario(group=group, events=tuple(events), until_ms=until_ms)


def _group(chance: Random) -> Configured:
    assignor = chance.choice(ASSIGNORS)
    tasks = tuple(
        Subtopology(str(n), chance.randint(1, 12), stateful=chance.random() < 0.6)
        for n in range(chance.randint(1, 3))
    )
    values = {"num.standby.replicas": chance.randint(0, 1)}
    return Configured(assignor=assignor, settings=parse_settings(values, assignor), tasks=tasks)


def _join(chance: Random, name: str) -> Joins:
    return Joins(
        join=Join(
            group=GROUP, member=MemberId(name), incarnation=0, capacity=chance.choice((1, 1, 1, 2))
        ),
        ack_ms=chance.choice((0, 50, 2_000)),
        restore_ms=chance.choice((0, 5_000, 60_000)),
    )
