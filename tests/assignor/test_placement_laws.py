"""Properties of `high-availability`: fewest moves, balance, warm actives, learner budget, order."""

from __future__ import annotations

import random
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.assignor.placing import Member, group, holdings
from support.assignor.random_groups import allowed, caught_up, placed, problems, restricted
from support.suite.examples import examples

from muster.assignor.model import NO_MEMBER
from muster.protocol.tasks import Subtopology


def assert_fair(counts: np.ndarray, capacity: np.ndarray) -> None:
    """Every count is the exact share by capacity, rounded down or up."""
    due = counts.sum() * capacity
    assert (due // capacity.sum() <= counts).all()
    assert (counts <= -(-due // capacity.sum())).all()


@settings(max_examples=examples(150), deadline=None)
@given(problems())
def test_high_availability_obeys_its_laws(problem: tuple) -> None:
    """Any group: valid, balanced, no cold active beside a warm copy, learners in budget."""
    units, members, config = problem
    view = group(units, members, **config)
    placement = placed(view)
    draining = view.draining & ~view.draining.all()
    capacity = np.where(draining, 0, view.capacity)
    stateful = view.tasks.stateful
    if not restricted(view):
        assert_fair(np.bincount(placement.destination, minlength=len(capacity)), capacity)
        stateful_owners = placement.destination[stateful]
        assert_fair(np.bincount(stateful_owners, minlength=len(capacity)), capacity)
    warm = caught_up(view)
    for task in np.flatnonzero(stateful).tolist():
        candidates = (
            warm[task]
            & allowed(view)[task]
            & (~draining | (view.active[task] == np.arange(len(capacity))))
        )
        if candidates.any():
            assert warm[task, placement.active[task]]
    assert len(placement.learner) <= view.settings.max_warmup_replicas
    expected = min(view.settings.num_standby_replicas, int((capacity > 0).sum()) - 1)
    copies = np.bincount(placement.standby.task, minlength=len(view.tasks))
    assert restricted(view) or (copies[stateful] == max(expected, 0)).all()


WARM_FOR_TWO = (
    [Subtopology("0", 2, stateful=True)],
    {
        "A": Member(active=["0_0"], draining=True),
        "B": Member(learner=["0_0"], lag={"0_0": 0, "0_1": 0}),
        "C": Member(),
    },
    {},
)
"""B is warm for both tasks. It keeps 0_1, which has no owner; 0_0 has to move anyway, so to C."""


@settings(max_examples=examples(150), deadline=None)
@given(problems())
@example(WARM_FOR_TWO)
def test_high_availability_moves_no_stateful_task_in_vain(problem: tuple) -> None:
    """Moves of stateful tasks, now and to come, are as few as networkx finds for balanced counts.

    A task whose owner is gone runs where it is warm; if it belongs elsewhere, it will move. Where
    all members drain, none restores a task: fewer tasks move, and counts stay uneven.
    """
    units, members, config = problem
    view = group(
        units, {n: replace(m, capacity=1, topics=None) for n, m in members.items()}, **config
    )
    placement = placed(view)
    usable = np.flatnonzero(~view.draining | view.draining.all()).tolist()
    tasks = np.flatnonzero(view.tasks.stateful).tolist()
    runs = np.where((view.active == NO_MEMBER)[:, None], caught_up(view), False)
    runs[np.flatnonzero(view.active != NO_MEMBER), view.active[view.active != NO_MEMBER]] = True
    runs = runs[:, usable]

    def moves(task: int, position: int) -> int:
        return int(runs[task].any() and not runs[task, position])

    graph = nx.DiGraph()
    floor, extras = divmod(len(tasks), len(usable))
    graph.add_node("sink", demand=extras)
    for position in range(len(usable)):
        graph.add_node(position, demand=floor)
        graph.add_edge(position, "sink", capacity=1)
    for task in tasks:
        graph.add_node(f"task {task}", demand=-1)
        for position in range(len(usable)):
            graph.add_edge(f"task {task}", position, capacity=1, weight=moves(task, position))
    made = sum(moves(task, usable.index(int(placement.destination[task]))) for task in tasks)
    fewest = nx.min_cost_flow_cost(graph)
    assert made == fewest or (view.draining.all() and made < fewest)


@pytest.mark.parametrize("name", ["high-availability", "sticky"])
@pytest.mark.parametrize("stateful", [True, False])
def test_a_share_is_rounded_down_or_up(name: str, stateful: bool) -> None:
    """6 tasks, 3 each, on members of capacity 2 and 4: in the end 2 and 4, never 3 and 3.

    7 tasks on capacities 1, 2 and 4 of which the smaller two hold 3 each: exactly 1, 2 and 4.
    """
    unit = Subtopology("0", 6, stateful=stateful)
    three, rest = [f"0_{n}" for n in range(3)], [f"0_{n}" for n in range(3, 6)]
    view = group(
        [unit], {"A": Member(capacity=2, active=three), "B": Member(capacity=4, active=rest)}
    )
    destination = placed(view, name).destination
    assert np.bincount(destination).tolist() == [2, 4]
    unit = Subtopology("0", 7, stateful=stateful)
    members = {
        "A": Member(capacity=1),
        "B": Member(capacity=2, active=three),
        "C": Member(capacity=4, active=rest),
    }
    destination = placed(group([unit], members), name).destination
    assert np.bincount(destination).tolist() == [1, 2, 4]


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**40), st.sampled_from(["high-availability", "sticky"]))
def test_shares_of_large_groups_are_rounded_down_or_up(seed: int, name: str) -> None:
    """Groups too large to be placed exactly, any capacities and history: the same shares."""
    rng = random.Random(seed)
    units = [Subtopology(str(n), rng.randint(1, 90), stateful=rng.random() < 0.6) for n in range(3)]
    names = [f"P{n}" for n in range(rng.randint(41, 60))]
    held: dict[str, list[str]] = {n: [] for n in names}
    for unit in units:
        for p in range(unit.partitions):
            held[rng.choice(names[: rng.choice([10, 40])])].append(f"{unit.name}_{p}")
    max_capacity = rng.choice([1, 2, 5, 40])
    members = {n: Member(capacity=rng.randint(1, max_capacity), active=held[n]) for n in names}
    view = group(units, members)
    counts = np.bincount(placed(view, name).destination, minlength=len(names))
    assert_fair(counts, view.capacity)


@settings(max_examples=examples(100), deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_input_order_does_not_matter(problem: tuple, rng: random.Random) -> None:
    """Members and units in another order: the same placement, reasons included."""
    units, members, config = problem
    names = list(members)
    rng.shuffle(names)
    shuffled = group(rng.sample(units, len(units)), {n: members[n] for n in names}, **config)
    view = group(units, members, **config)
    for name in ("high-availability", "sticky", "learner", "fallback"):
        ordered, reordered = placed(view, name), placed(shuffled, name)
        assert holdings(view, ordered) == holdings(shuffled, reordered)
        assert ordered.reasons == reordered.reasons
