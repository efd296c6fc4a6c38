"""Groups and placements by name, in the notation of the worked examples."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from muster.assignor.model import NO_MEMBER, GroupView, Lags, Pairs, Placement, group_view
from muster.protocol.settings import KEYS, parse_settings
from muster.protocol.tasks import Subtopology, TaskTable


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member of an example; tasks by printed id."""

    capacity: int = 1
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    active: Iterable[str] = ()
    standby: Iterable[str] = ()
    learner: Iterable[str] = ()
    ready: Iterable[str] = ()
    lag: Mapping[str, int] = field(default_factory=dict)
    draining: bool = False
    topics: Iterable[str] | None = None


def stateful(*partitions: int) -> list[Subtopology]:
    """Stateful subtopologies 0, 1, … of these sizes."""
    return [Subtopology(str(n), size, stateful=True) for n, size in enumerate(partitions)]


_KEY = {key.replace(".", "_"): key for key in KEYS}


def group(
    units: Iterable[Subtopology],
    members: Mapping[str, Member],
    assignor: str = "high-availability",
    **config: object,
) -> GroupView:
    """Build a view. Settings are named with underscores for dots."""
    table = TaskTable(units)
    names = tuple(sorted(members))
    ordered = [members[name] for name in names]

    def pairs(role: str) -> Pairs:
        rows = [
            (table.index(task), place)
            for place, member in enumerate(ordered)
            for task in getattr(member, role)
        ]
        array = np.array(rows, dtype=np.int32).reshape(len(rows), 2)
        return Pairs.of(array[:, 0], array[:, 1])

    active = np.full(len(table), NO_MEMBER, dtype=np.int32)
    for place, member in enumerate(ordered):
        for task in member.active:
            active[table.index(task)] = place
    lags = sorted(
        (table.index(task), place, offsets)
        for place, member in enumerate(ordered)
        for task, offsets in member.lag.items()
    )
    lag_rows = np.array(lags, dtype=np.int64).reshape(len(lags), 3)
    return group_view(
        tasks=table,
        settings=parse_settings({_KEY[k]: v for k, v in config.items()}, assignor),
        members=names,
        capacity=np.array([m.capacity for m in ordered], dtype=np.int64),
        active=active,
        standby=pairs("standby"),
        learner=pairs("learner"),
        ready=pairs("ready"),
        lags=Lags(lag_rows[:, 0].astype(np.int32), lag_rows[:, 1].astype(np.int32), lag_rows[:, 2]),
        draining=np.array([m.draining for m in ordered], dtype=np.bool_),
        rack=tuple(m.rack for m in ordered),
        tags=tuple(m.tags for m in ordered),
        topics=tuple(None if m.topics is None else frozenset(m.topics) for m in ordered),
    )


Held = dict[str, tuple[list[str], list[str], list[str]]]
"""Per member its actives, standbys, learners."""


def holdings(view: GroupView, placement: Placement) -> Held:
    """Member → what it holds under a placement."""
    held: Held = {name: ([], [], []) for name in view.members}
    for task, member in enumerate(placement.active.tolist()):
        if member != NO_MEMBER:
            held[view.members[member]][0].append(str(view.tasks.task(task)))
    for role, pairs in ((1, placement.standby), (2, placement.learner)):
        for task, member in zip(pairs.task.tolist(), pairs.member.tolist(), strict=True):
            held[view.members[member]][role].append(str(view.tasks.task(task)))
    return held


def counts(view: GroupView, placement: Placement) -> dict[str, tuple[int, int, int]]:
    """How many actives, standbys and learners each member holds."""
    return {
        name: (len(active), len(standby), len(learner))
        for name, (active, standby, learner) in holdings(view, placement).items()
    }


def random_cluster(
    rng: random.Random, members: int, units: int, config: dict[str, object]
) -> GroupView:
    """A group with random racks for all and a random placement, standbys included."""
    racks = [f"r{n}" for n in range(4)]
    tasks = [
        Subtopology(
            str(n),
            3,
            stateful=n % 4 > 0,
            source_racks=tuple((tuple(rng.sample(racks, 2)),) for _ in range(3)),
            changelog_racks=tuple((tuple(rng.sample(racks, 2)),) for _ in range(3)),
        )
        for n in range(units)
    ]
    held: list[tuple[list[str], list[str]]] = [([], []) for _ in range(members)]
    for unit in tasks:
        for task in (f"{unit.name}_{p}" for p in range(3)):
            owner, copy = rng.sample(range(members), 2)
            held[owner][0].append(task)
            if unit.stateful:
                held[copy][1].append(task)
    present = {
        f"P{n:02}": Member(
            rack=rng.choice(racks),
            active=active,
            standby=standby,
            tags={"zone": str(n % 2), "cluster": str(n % 3)},
        )
        for n, (active, standby) in enumerate(held)
    }
    return group(tasks, present, num_standby_replicas=1, **config)
