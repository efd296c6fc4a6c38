"""Racks together with task weights, and with the order of `learner`."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from support.assignor.histories import Life
from support.assignor.placing import Member, group

from muster.assignor import check, registry
from muster.assignor.model import GroupView, Placement
from muster.assignor.score import score
from muster.protocol.tasks import Subtopology

RACKS = ("r0", "r1")


def _unit(name: str, size: int, weight: float, rng: random.Random, stateful: bool) -> Subtopology:
    racks = tuple(((rng.choice(RACKS),),) for _ in range(size))
    return Subtopology(name, size, stateful, weight, racks, racks if stateful else None)


def _placed(view: GroupView, name: str) -> Placement:
    placement = registry.get(name).assign(view)
    check.valid(view, placement)
    return placement


def _across(view: GroupView, owner: np.ndarray) -> int:
    """Tasks whose owner is in a rack without their replica."""
    lists = [racks for unit in view.tasks.units for racks in unit.source_racks]
    return sum(
        view.racks[view.rack[member]] not in racks[0]
        for racks, member in zip(lists, owner.tolist(), strict=True)
    )


@pytest.mark.parametrize("name", ["sticky", "high-availability"])
@pytest.mark.parametrize("seed", range(25))
def test_weights_balance_and_racks_choose_among_equals(seed: int, name: str) -> None:
    """Load within the heaviest task; no exchange of equally heavy tasks would save traffic.

    Brute force over all owners with the same load per member and weight.
    """
    rng = random.Random(seed)
    units = [_unit("a", 3, 1, rng, False), _unit("b", 3, 4, rng, False)]
    members = {f"P{n}": Member(rack=RACKS[n % 2]) for n in range(rng.randint(2, 3))}
    view = group(units, members, name, rack_aware_assignment_strategy="min_traffic")
    placement = _placed(view, name)
    assert placement.warnings == ()
    assert score(view, placement).imbalance <= 4

    def loads(owner: np.ndarray) -> list[list[int]]:
        return [np.bincount(owner[part], minlength=len(members)).tolist() for part in halves]

    halves = (slice(0, 3), slice(3, 6))
    every = (np.array(o) for o in itertools.product(range(len(members)), repeat=6))
    alike = [o for o in every if loads(o) == loads(placement.active)]
    assert _across(view, placement.active) == min(_across(view, o) for o in alike)
    assert placement.cost == placement.cost_lower_bound == _across(view, placement.active)


@pytest.mark.parametrize("seed", range(15))
def test_learner_reaches_the_least_traffic(seed: int) -> None:
    """From anywhere: in the end no answer with these counts reads less across racks.

    Meanwhile every round is lawful and no member stops before a learner is ready.
    """
    rng = random.Random(seed)
    units = [_unit("0", rng.randint(2, 6), 1, rng, True)]
    tasks = [f"0_{n}" for n in range(units[0].partitions)]
    names = ["P0", "P1", "P2"]
    owner = {task: rng.choice(names[:2]) for task in tasks}
    members = {
        n: Member(rack=RACKS[k % 2], active=[t for t in tasks if owner[t] == n])
        for k, n in enumerate(names)
    }
    config = {"rack_aware_assignment_strategy": "min_traffic"}
    life = Life(registry.get("learner"), units, members, config)
    for _ in range(30):
        view, placement = life.round()
        check.valid(view, placement)
    assert len(placement.learner) == 0
    counts = np.bincount(placement.active, minlength=3).tolist()
    every = map(np.array, itertools.product(range(3), repeat=len(tasks)))
    least = min(_across(view, o) for o in every if np.bincount(o, minlength=3).tolist() == counts)
    assert _across(view, placement.active) == least
    assert max(counts) - min(counts) <= 1
