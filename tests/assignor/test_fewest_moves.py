"""No balanced placement moves fewer tasks: by brute force where groups are small."""

from __future__ import annotations

import itertools
import random

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.assignor.placing import Member, group
from support.assignor.random_groups import allowed, balanced, placed
from support.suite.examples import examples

from muster.assignor import registry
from muster.assignor.model import NO_MEMBER, group_view
from muster.protocol.settings import Settings
from muster.protocol.tasks import Subtopology, TaskTable


@pytest.mark.parametrize("name", ["sticky", "high-availability"])
@pytest.mark.parametrize(
    ("members", "tasks_max"),
    [(1, 5), (2, 5), (3, 4), (4, 3), pytest.param(4, 5, marks=pytest.mark.slow)],
)
def test_fewest_moves_exhaustively(members: int, tasks_max: int, name: str) -> None:
    """Up to 4 members and 5 tasks, every previous placement: no balanced answer moves fewer."""
    for tasks in range(1, tasks_max + 1):
        answers = balanced(tasks, members)
        table = TaskTable([Subtopology("0", tasks)])
        for home in itertools.product(range(NO_MEMBER, members), repeat=tasks):
            owner = np.array(home, dtype=np.int32)
            view = group_view(
                tasks=table,
                settings=Settings(),
                members=("a", "b", "c", "d")[:members],
                active=owner,
            )
            active = registry.get(name).assign(view).active
            moved = int(((active != owner) & (owner != NO_MEMBER)).sum())
            fewest = int(((answers != owner) & (owner != NO_MEMBER)).sum(axis=1).min())
            assert moved == fewest, (home, active)
            counts = np.bincount(active, minlength=members)
            assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("seed", range(5))
def test_extras_are_spread_over_seeds(seed: int) -> None:
    """A member joins and leaves at random 40 times: moves stay at the fewest, round by round."""
    rng = random.Random(seed)
    table = TaskTable([Subtopology("0", 100)])
    members = {f"m{n}" for n in range(7)}
    owner: dict[int, str] = {}
    for _ in range(40):
        name = f"m{rng.randrange(30)}"
        members = (members - {name}) or {name} if name in members else members | {name}
        names = tuple(sorted(members))
        active = np.array(
            [names.index(owner[t]) if owner.get(t) in members else NO_MEMBER for t in range(100)],
            dtype=np.int32,
        )
        view = group_view(tasks=table, settings=Settings(), members=names, active=active)
        placement = placed(view, "sticky")
        held = np.bincount(active[active != NO_MEMBER], minlength=len(names))
        floor, extras = divmod(100, len(names))
        kept = np.minimum(held, floor).sum() + min(extras, int((held > floor).sum()))
        stayed = int((placement.active == active).sum())
        assert stayed == kept
        owner = {t: names[m] for t, m in enumerate(placement.active.tolist())}


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**40))
def test_restricted_topics_are_as_even_as_possible(seed: int) -> None:
    """3 members with topics, up to 6 tasks: sum of squared loads least, then fewest moves."""
    rng = random.Random(seed)
    units = [Subtopology(str(n), rng.randint(1, 3)) for n in range(2)]
    topics = [rng.choice([["0"], ["1"], ["0", "1"], None]) for _ in range(3)]
    tasks = [f"{u.name}_{p}" for u in units for p in range(u.partitions)]
    held: list[list[str]] = [[], [], []]
    for task in tasks:
        if rng.random() < 0.8:
            held[rng.randrange(3)].append(task)
    members = {f"P{n}": Member(active=held[n], topics=topics[n]) for n in range(3)}
    view = group(units, members)
    may = allowed(view)
    reachable = np.flatnonzero(may.any(axis=1))
    every = np.array(list(itertools.product(range(3), repeat=len(reachable))), dtype=np.int32)
    every = every[may[reachable, every].all(axis=1)]
    home = view.active[reachable]
    uneven = sum((every == m).sum(axis=1) ** 2 for m in range(3))
    best = every[uneven == uneven.min()]
    staying = (home != NO_MEMBER) & may[reachable, home]
    fewest = ((best != home) & staying).sum(axis=1).min()
    for name in ("sticky", "high-availability"):
        active = placed(view, name).active[reachable]
        counts = np.bincount(active, minlength=3)
        assert (counts**2).sum() == uneven.min()
        assert ((active != home) & staying).sum() == fewest


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**40))
@example(2_892)
@example(3_678)
def test_restricted_topics_by_networkx(seed: int) -> None:
    """Up to 7 members and 28 tasks: least sum of squared loads, then fewest moves, by networkx."""
    rng = random.Random(seed)
    units = [Subtopology(str(n), rng.randint(1, 7)) for n in range(rng.randint(2, 4))]
    names = [f"P{n}" for n in range(rng.randint(2, 7))]
    topics = {
        n: rng.sample([u.name for u in units], rng.randint(1, 3) % len(units) + 1) for n in names
    }
    held: dict[str, list[str]] = {n: [] for n in names}
    for unit in units:
        for p in range(unit.partitions):
            if rng.random() < 0.9:
                held[rng.choice(names[: 1 + len(names) // 2])].append(f"{unit.name}_{p}")
    view = group(units, {n: Member(active=held[n], topics=topics[n]) for n in names})
    may, home = allowed(view), view.active
    reachable = np.flatnonzero(may.any(axis=1)).tolist()
    staying = {t for t in reachable if home[t] != NO_MEMBER and may[t, home[t]]}
    graph = nx.DiGraph()
    graph.add_node("sink", demand=len(reachable))
    dear = len(reachable) + 1
    for member in range(len(names)):
        for level in range(len(reachable)):
            graph.add_edge(("m", member), ("level", member, level), capacity=1, weight=0)
            graph.add_edge(
                ("level", member, level), "sink", capacity=1, weight=(2 * level + 1) * dear
            )
    for task in reachable:
        graph.add_node(("t", task), demand=-1)
        for member in np.flatnonzero(may[task]).tolist():
            moves = int(task in staying and home[task] != member)
            graph.add_edge(("t", task), ("m", member), capacity=1, weight=moves)
    active = placed(view, "sticky").active
    loads = np.bincount(active[reachable], minlength=len(names))
    moved = sum(int(active[task] != home[task]) for task in staying)
    assert int((loads**2).sum()) * dear + moved == nx.min_cost_flow_cost(graph)
