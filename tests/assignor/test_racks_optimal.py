"""Racks: no balanced placement costs less, by brute force and by networkx."""

from __future__ import annotations

import random
from dataclasses import replace

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignor.placing import Member, group
from support.assignor.random_groups import balanced, crossings, placed
from support.suite.examples import examples

from muster.assignor.model import NO_MEMBER, GroupView
from muster.protocol.tasks import Subtopology


def _cheapest(view: GroupView, tasks: np.ndarray, by_unit: bool) -> int:
    """Least cost over every balanced placement of the tasks, by enumeration."""
    answers = balanced(len(tasks), len(view.members))
    stateful = bool(view.tasks.stateful[tasks].any())
    traffic, overlap = (10, 1) if stateful else (1, 0)
    home = view.active[tasks]
    across = crossings(view)[tasks]
    cost = traffic * across[np.arange(len(tasks)), answers].sum(axis=1)
    cost = cost + overlap * ((answers != home) & (home != NO_MEMBER)).sum(axis=1)
    if by_unit:
        units = view.tasks.unit_of[tasks]
        fits = np.ones(len(answers), dtype=np.bool_)
        for unit in np.unique(units):
            mine = units == unit
            for member in range(len(view.members)):
                count = (answers == member).sum(axis=1)
                most = -(-int(mine.sum()) * count // len(tasks))
                fits &= (answers[:, mine] == member).sum(axis=1) <= most
        cost = cost[fits]
    return int(cost.min())


@settings(max_examples=examples(120), deadline=None)
@given(st.integers(0, 2**40))
def test_racks_are_optimal(seed: int) -> None:
    """Up to 3 members and 6 tasks of one kind: the cost is the least any balanced answer has."""
    rng = random.Random(seed)
    stateful = rng.random() < 0.6
    units = [
        Subtopology(
            str(n),
            rng.randint(1, 3),
            stateful=stateful,
            source_racks=None,
        )
        for n in range(2)
    ]
    units = [
        replace(
            u,
            source_racks=tuple(
                tuple(tuple(rng.sample(["r0", "r1", "r2"], 2)) for _ in range(rng.randint(1, 2)))
                for _ in range(u.partitions)
            ),
        )
        for u in units
    ]
    names = [f"P{n}" for n in range(rng.randint(2, 3))]
    held: dict[str, list[str]] = {n: [] for n in names}
    for unit in units:
        for p in range(unit.partitions):
            if rng.random() < 0.8:
                held[rng.choice(names)].append(f"{unit.name}_{p}")
    members = {n: Member(rack=rng.choice(["r0", "r1", "r2"]), active=held[n]) for n in names}
    for strategy in ("min_traffic", "balance_subtopology"):
        view = group(units, members, rack_aware_assignment_strategy=strategy)
        placement = placed(view)
        everything = np.arange(len(view.tasks))
        assert placement.cost_lower_bound <= placement.cost
        if len(np.unique(crossings(view), axis=1).T) == 1:  # as without racks
            assert placement.cost == 0
            continue
        best = _cheapest(view, everything, strategy == "balance_subtopology")
        assert placement.cost == best, strategy


def test_racks_are_optimal_by_networkx() -> None:
    """90 tasks on 9 members with history: the same cost as networkx's network simplex."""
    rng = random.Random(11)
    racks = ["r0", "r1", "r2"]
    lists = tuple((tuple(rng.sample(racks, 1)),) for _ in range(90))
    unit = Subtopology("0", 90, stateful=True, source_racks=lists)
    held: dict[str, list[str]] = {f"P{n}": [] for n in range(9)}
    for p in range(90):
        held[f"P{rng.randrange(9)}"].append(f"0_{p}")
    members = {n: Member(rack=racks[int(n[1]) % 3], active=a) for n, a in held.items()}
    view = group([unit], members, rack_aware_assignment_strategy="min_traffic")
    across = crossings(view)
    graph = nx.DiGraph()
    for task in range(90):
        graph.add_node(("t", task), demand=-1)
        for member in range(9):
            price = 10 * int(across[task, member]) + int(view.active[task] != member)
            graph.add_edge(("t", task), ("m", member), capacity=1, weight=price)
    for member in range(9):
        graph.add_node(("m", member), demand=10)
    placement = placed(view)
    assert placement.cost == placement.cost_lower_bound == nx.min_cost_flow_cost(graph)


def test_missing_racks_are_reported_and_racks_ignored() -> None:
    """A member without a rack, or a partition with unknown replicas: off, with the reason."""
    known = Subtopology("0", 1, source_racks=((("r0",),),))
    unknown = Subtopology("1", 1)
    strategy = {"rack_aware_assignment_strategy": "min_traffic"}
    view = group([known], {"P1": Member(rack="r0"), "P2": Member()}, **strategy)
    assert placed(view).warnings == ("racks are ignored: member P2 has no rack",)
    view = group([known, unknown], {"P1": Member(rack="r0")}, **strategy)
    assert placed(view).warnings == (
        "racks are ignored: racks of the inputs of task 1_0 are unknown",
    )


def test_balance_comes_before_rack_traffic() -> None:
    """Every replica in one rack: counts stay balanced all the same (S4-11)."""
    unit = Subtopology("0", 6, stateful=True, source_racks=((("r0",),),) * 6)
    members = {"P1": Member(rack="r0"), "P2": Member(rack="r1")}
    view = group([unit], members, rack_aware_assignment_strategy="min_traffic")
    placement = placed(view)
    assert np.bincount(placement.active).tolist() == [3, 3]
    assert placement.cost == 30
