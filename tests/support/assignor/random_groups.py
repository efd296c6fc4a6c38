"""Random groups with any history, and what members may run, computed from the view alone."""

from __future__ import annotations

import itertools
import random
from functools import cache

import numpy as np
from hypothesis import strategies as st
from support.assignor.placing import Member

from muster.assignor import check, registry
from muster.assignor.model import NO_MEMBER, GroupView, Placement
from muster.protocol.tasks import Subtopology


def placed(view: GroupView, name: str = "high-availability") -> Placement:
    """The placement of an assignor, checked."""
    placement = registry.get(name).assign(view)
    check.valid(view, placement)
    return placement


@cache
def balanced(tasks: int, members: int) -> np.ndarray:
    """Every assignment of tasks to equal members whose counts differ by at most 1."""
    every = np.array(list(itertools.product(range(members), repeat=tasks)), dtype=np.int32)
    every = every.reshape(members**tasks, tasks)
    counts = np.stack([(every == m).sum(axis=1) for m in range(members)])
    return every[counts.max(axis=0) - counts.min(axis=0) <= 1]


LAGS = [0, 50, 100, 101, 5000]


@st.composite
def problems(draw: st.DrawFn, *, racks: bool = False) -> tuple[list[Subtopology], dict, dict]:
    """Units, members by name, and config: with any roles, lags, capacities and draining members."""
    rng = random.Random(draw(st.integers(0, 2**40)))
    units = []
    for name in range(rng.randint(1, 3)):
        size = rng.randint(1, 6)
        lists = tuple((tuple(rng.sample(["r0", "r1", "r2"], 2)),) for _ in range(size))
        units.append(
            Subtopology(
                str(name),
                size,
                stateful=rng.random() < 0.7,
                source_racks=lists if racks else None,
                changelog_racks=lists if racks else None,
            )
        )
    members = _members(rng, units, racks)
    config: dict[str, object] = {
        "num_standby_replicas": rng.randint(0, 2),
        "max_warmup_replicas": rng.randint(1, 4),
        "acceptable_recovery_lag": 100,
    }
    if racks:
        config["rack_aware_assignment_strategy"] = rng.choice(
            ["min_traffic", "balance_subtopology"]
        )
    return units, members, config


def _members(rng: random.Random, units: list[Subtopology], racks: bool) -> dict[str, Member]:
    names = [f"P{n}" for n in range(rng.randint(1, 6))]
    restricted = rng.random() < 0.3
    equal = rng.random() < 0.5
    held: dict[str, dict[str, list[str]]] = {
        n: {"active": [], "standby": [], "learner": [], "ready": []} for n in names
    }
    lag: dict[str, dict[str, int]] = {n: {} for n in names}
    for unit in units:
        for task in (f"{unit.name}_{p}" for p in range(unit.partitions)):
            roles = rng.sample(names, len(names))
            if rng.random() < 0.8:
                held[roles.pop()]["active"].append(task)
            if not unit.stateful:
                continue
            for role in ("standby", "standby", "learner"):
                if roles and rng.random() < 0.4:
                    name = roles.pop()
                    held[name][role].append(task)
                    lag[name][task] = rng.choice(LAGS)
                    if role == "learner" and rng.random() < 0.5:
                        held[name]["ready"].append(task)
            for name in roles:
                if rng.random() < 0.1:
                    lag[name][task] = rng.choice(LAGS)
    return {
        n: Member(
            capacity=1 if equal else rng.randint(1, 4),
            rack=rng.choice(["r0", "r1", "r2"]) if racks else None,
            draining=rng.random() < 0.15,
            topics=_topics(rng, units) if restricted else None,
            lag=lag[n],
            **held[n],
        )
        for n in names
    }


def _topics(rng: random.Random, units: list[Subtopology]) -> list[str] | None:
    return None if rng.random() < 0.4 else [u.name for u in units if rng.random() < 0.7]


def restricted(view: GroupView) -> bool:
    """Whether a member may not run every task."""
    return any(topics is not None for topics in view.topics)


def allowed(view: GroupView) -> np.ndarray:
    """bool[T, M]: whether a member may run a task."""
    names = [u.name for u in view.tasks.units]
    return np.array(
        [
            [topics is None or names[unit] in topics for topics in view.topics]
            for unit in view.tasks.unit_of.tolist()
        ]
    ).reshape(len(view.tasks), len(view.members))


def caught_up(view: GroupView) -> np.ndarray:
    """bool[T, M]: whether a member could run a task at once."""
    warm = np.zeros((len(view.tasks), len(view.members)), dtype=np.bool_)
    owned = view.active != NO_MEMBER
    warm[np.flatnonzero(owned), view.active[owned]] = True
    acceptable = view.lags.offsets <= view.settings.acceptable_recovery_lag
    warm[view.lags.task, view.lags.member] = acceptable
    warm[view.ready.task, view.ready.member] = True
    return warm


def crossings(view: GroupView) -> np.ndarray:
    """int[T, M]: partitions each task reads across racks on each member, from the declaration."""
    rows = []
    for unit in view.tasks.units:
        for topics in unit.source_racks:
            rows.append([sum(view.racks[r] not in racks for racks in topics) for r in view.rack])
    return np.array(rows).reshape(len(view.tasks), len(view.members))
