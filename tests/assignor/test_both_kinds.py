"""Stateful tasks leave the sum fair: the stateless tasks, however few, give each member its share.

Capacities differ here. Where they are equal, every choice of extras leaves the sum fair.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignor.placing import Member, group
from support.assignor.random_groups import placed
from support.suite.examples import examples

from muster.assignor.model import GroupView
from muster.assignor.solvers.shares import left_to_others, shares
from muster.protocol.tasks import Subtopology

RACKS = ("r0", "r1", "r2")


def distance(counts: np.ndarray, capacity: np.ndarray) -> int:
    """Tasks held below or above the exact share by capacity, rounded down or up."""
    due = counts.sum() * capacity
    below = np.maximum(due // capacity.sum() - counts, 0)
    return int((below + np.maximum(counts - -(-due // capacity.sum()), 0)).sum())


def assert_both_fair(view: GroupView, name: str) -> None:
    """Each member has its share of the sum and, with learners, of the stateful tasks."""
    destination, members = placed(view, name).destination, len(view.members)
    counts = np.bincount(destination, minlength=members)
    assert distance(counts, view.capacity) == 0, (counts, view.capacity)
    if name == "high-availability":
        stateful = np.bincount(destination[view.tasks.stateful], minlength=members)
        assert distance(stateful, view.capacity) == 0, (stateful, view.capacity)


def some_group(rng: random.Random, members: int, stateful: int, **config: object) -> GroupView:
    """Uneven capacities, few stateless tasks, and owners among some of the members."""
    units = []
    for name, size, keeps in (("0", stateful, True), ("1", rng.randint(1, 4), False)):
        racks = tuple((tuple(rng.sample(RACKS, 2)),) for _ in range(size))
        units.append(Subtopology(name, size, stateful=keeps, source_racks=racks))
    names = [f"P{n:02}" for n in range(members)]
    held: dict[str, list[str]] = {name: [] for name in names}
    for unit in units:
        for n in range(unit.partitions):
            if rng.random() < 0.8:
                held[rng.choice(names[: rng.randint(1, members)])].append(f"{unit.name}_{n}")
    capacities = rng.choice(((1, 3), (1, 2, 3), (1, 2, 5), (1, 40)))
    there = {
        name: Member(capacity=rng.choice(capacities), rack=rng.choice(RACKS), active=held[name])
        for name in names
    }
    return group(units, there, **config)


def test_one_stateless_task_raises_one_member_only() -> None:
    """Of five tasks each large member is due one; the one stateless task can serve one of them."""
    units = [Subtopology("0", 4, stateful=True), Subtopology("1", 1)]
    members = {
        "A": Member(active=["0_0"]),
        "B": Member(active=["0_1"]),
        "C": Member(capacity=3, active=["0_2"]),
        "D": Member(capacity=3, active=["0_3"]),
        "E": Member(capacity=3, active=["1_0"]),
        "F": Member(capacity=3),
    }
    placement = placed(group(units, members))
    assert np.bincount(placement.destination).tolist() in ([0, 1, 1, 1, 1, 1], [1, 0, 1, 1, 1, 1])


@pytest.mark.parametrize("strategy", [None, "min_traffic", "balance_subtopology"])
@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**40))
def test_small_groups(strategy: str | None, seed: int) -> None:
    """Placed exactly."""
    rng = random.Random(seed)
    config: dict[str, object] = {"num_standby_replicas": rng.randint(0, 2)}
    if strategy is not None:
        config["rack_aware_assignment_strategy"] = strategy
    assert_both_fair(
        some_group(rng, rng.randint(2, 8), rng.randint(1, 12), **config), "high-availability"
    )


@pytest.mark.parametrize("strategy", [None, "min_traffic", "balance_subtopology"])
@pytest.mark.parametrize("name", ["high-availability", "sticky"])
@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**40))
def test_large_groups(name: str, strategy: str | None, seed: int) -> None:
    """Placed by counts, or by one flow where racks count."""
    rng = random.Random(seed)
    config: dict[str, object] = {}
    if strategy is not None:
        config["rack_aware_assignment_strategy"] = strategy
    assert_both_fair(some_group(rng, rng.randint(41, 60), rng.randint(30, 90), **config), name)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**40))
def test_the_later_tasks_suffice(seed: int) -> None:
    """Shares of the first kind never leave a member lower than the later tasks can raise it.

    Without `later` they do: the rule says so, and only then.
    """
    rng = random.Random(seed)
    capacity = np.array([rng.choice((1, 2, 3, 7, 40)) for _ in range(rng.randint(1, 12))])
    total, later = rng.randint(1, 40), rng.randint(1, 6)
    held = np.array([rng.randint(0, 4) for _ in capacity])
    share = shares(total, capacity, held, later=later)
    assert share.sum() == total
    assert distance(share, capacity) == 0
    least = (total + later) * capacity // capacity.sum()
    assert np.maximum(least - share, 0).sum() <= later
    others = left_to_others(total, capacity, later)
    if others is None:
        assert np.array_equal(share, shares(total, capacity, held))
    else:
        assert others.room(share) >= 0
