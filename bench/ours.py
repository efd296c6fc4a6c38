"""Our side of the comparison: problems of format 1 to arrays, placements back to task ids.

What the running job does for a generation is `place`: the view is built from the arrays a group
already holds, then the assignor runs. That is what is timed; `read` and `answer` are not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from muster.assignor.check import valid
from muster.assignor.model import NOBODY, GroupView, Lags, Pairs, Placement, group_view
from muster.assignor.registry import get
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector, RackLists, Subtopology, TaskTable, Unit

Problem = Mapping[str, Any]
Arrays = dict[str, Any]


def read(problem: Problem) -> Arrays:
    """The arguments of `group_view`."""
    tasks = TaskTable([_unit(u) for u in problem["tasks"]])
    members = sorted(problem["members"], key=lambda m: str(m["id"]))
    index = {str(tasks.task(i)): i for i in range(len(tasks))}
    owner = np.full(len(tasks), NOBODY, dtype=np.int32)
    place = np.zeros(len(tasks), dtype=np.int32)
    for number, member in enumerate(members):
        held = [index[t] for t in member.get("active", ())]
        owner[held] = number
        place[held] = np.arange(len(held))
    topics = [frozenset(m["topics"]) if "topics" in m else None for m in members]
    return {
        "tasks": tasks,
        "settings": parse_settings(problem.get("config", {}), problem["assignor"]),
        "members": tuple(m["id"] for m in members),
        "capacity": np.array([m.get("capacity", 1) for m in members], dtype=np.int64),
        "active": owner,
        "report_order": place,
        "standby": _pairs(members, "standby", index),
        "learner": _pairs(members, "learner", index),
        "ready": _pairs(members, "ready", index),
        "lags": _lags(members, index),
        "rack": tuple(m.get("rack") for m in members),
        "tags": tuple(m.get("tags", {}) for m in members),
        "topics": tuple(topics),
        "now_ms": problem.get("now_ms", 0),
    }


def place(arrays: Arrays, assignor: str, memory: Mapping[str, object] | None = None) -> Placement:
    """Build the view and place: what is timed."""
    return get(assignor).assign(group_view(**arrays, memory=memory))


def answer(problem: Problem) -> dict[str, Any]:
    """Our answer in the output form of format 1, checked against the law."""
    arrays = read(problem)
    view = group_view(**arrays)
    placement = get(problem["assignor"]).assign(view)
    valid(view, placement)
    return printed(view, placement)


def printed(view: GroupView, placement: Placement) -> dict[str, Any]:
    """A placement in task ids."""
    names = [str(view.tasks.task(i)) for i in range(len(view.tasks))]
    members: dict[str, dict[str, list[str]]] = {
        m: {"active": [], "standby": [], "learner": [], "revoked": []} for m in view.members
    }
    for task, member in enumerate(placement.active.tolist()):
        if member != NOBODY:
            members[view.members[member]]["active"].append(names[task])
    for role in ("standby", "learner", "revoked"):
        pairs = getattr(placement, role)
        for task, member in zip(pairs.task.tolist(), pairs.member.tolist(), strict=True):
            members[view.members[member]][role].append(names[task])
    return {
        "members": members,
        "followup_ms": placement.followup_ms,
        "delay_ms": placement.delay_ms,
        "cost": placement.cost,
        "cost_lower_bound": placement.cost_lower_bound,
    }


def timed_ms(
    problem: Problem, repeat: int, before: Problem | None = None, limit_s: float = 60
) -> float:
    """Median CPU time of `place`, all threads, after one call to warm up.

    Args:
        problem: what to place.
        repeat: how many calls.
        before: the round before, for assignors that remember.
        limit_s: stop repeating after this long.
    """
    memory = None
    if before is not None:
        memory = place(read(before), before["assignor"]).memory
    arrays, assignor = read(problem), problem["assignor"]
    place(arrays, assignor, memory)
    taken: list[float] = []
    end = time.perf_counter() + limit_s
    while len(taken) < repeat and (not taken or time.perf_counter() < end):
        start = time.process_time_ns()
        place(arrays, assignor, memory)
        taken.append((time.process_time_ns() - start) / 1e6)
    return statistics.median(taken)


def _unit(unit: Problem) -> Unit:
    weight = unit.get("weight", 1)
    if "connector" in unit:
        return Connector(unit["connector"], unit["tasks"], weight, unit.get("connector_weight", 1))
    return Subtopology(
        unit["subtopology"],
        unit["partitions"],
        unit.get("stateful", False),
        weight,
        _racks(unit.get("source_racks")),
        _racks(unit.get("changelog_racks")),
    )


def _racks(partitions: list[Any] | None) -> RackLists | None:
    if partitions is None:
        return None
    return tuple(
        tuple(tuple(topic) for topic in (p if p and isinstance(p[0], list) else [p]))
        for p in partitions
    )


def _pairs(members: list[Any], role: str, index: Mapping[str, int]) -> Pairs:
    found = [(index[t], n) for n, m in enumerate(members) for t in m.get(role, ())]
    columns = np.array(found, dtype=np.int32).reshape(-1, 2)
    return Pairs.of(columns[:, 0], columns[:, 1])


def _lags(members: list[Any], index: Mapping[str, int]) -> Lags:
    found = [
        (index[t], n, lag) for n, m in enumerate(members) for t, lag in m.get("lag", {}).items()
    ]
    columns = np.array(sorted(found), dtype=np.int64).reshape(-1, 3)
    return Lags(
        columns[:, 0].astype(np.int32), columns[:, 1].astype(np.int32), columns[:, 2].copy()
    )
