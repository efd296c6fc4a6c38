"""Tasks of different weight: heavy ones do not pile up, and balanced groups are left alone."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.histories import Life
from support.placing import Member, group

from muster.assignor import check, registry
from muster.assignor.score import score
from muster.protocol.tasks import Subtopology


def _units(chance: random.Random, *, stateful: bool) -> list[Subtopology]:
    return [
        Subtopology(
            str(n), chance.randint(1, 6), stateful=stateful, weight=chance.choice([0.5, 1, 2, 5])
        )
        for n in range(chance.randint(2, 4))
    ]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**40), st.sampled_from(["sticky", "high-availability"]))
def test_loads_differ_by_one_task_at_most(seed: int, name: str) -> None:
    """Any history: no spread beyond the heaviest task, and a second look moves nothing."""
    chance = random.Random(seed)
    units = _units(chance, stateful=False)
    names = [f"P{n}" for n in range(chance.randint(1, 5))]
    held: dict[str, list[str]] = {n: [] for n in names}
    for unit in units:
        for p in range(unit.partitions):
            if chance.random() < 0.8:
                held[chance.choice(names)].append(f"{unit.name}_{p}")
    view = group(units, {n: Member(active=a) for n, a in held.items()})
    placement = registry.get(name).assign(view)
    check.valid(view, placement)
    assert score(view, placement).imbalance <= max(u.weight for u in units)
    again = replace(view, active=placement.active)
    assert np.array_equal(registry.get(name).assign(again).active, placement.active)


def test_heavy_tasks_do_not_pile_up() -> None:
    """Two heavy and six light tasks, all on one member: one heavy task each in the end."""
    units = [Subtopology("heavy", 2, weight=6), Subtopology("light", 6, weight=1)]
    everything = ["heavy_0", "heavy_1", *(f"light_{n}" for n in range(6))]
    view = group(units, {"P1": Member(active=everything), "P2": Member()})
    placement = registry.get("sticky").assign(view)
    assert score(view, placement).imbalance == 0
    assert score(view, placement).moved == 4


@pytest.mark.parametrize("seed", range(20))
def test_weighted_groups_converge(seed: int) -> None:
    """Stateful tasks of different weight: warm-ups finish, nothing wanders for ever."""
    chance = random.Random(seed)
    units = _units(chance, stateful=True)
    life = Life(registry.get("high-availability"), units, {"P0": Member(), "P1": Member()}, {})
    life.converge(1)
    for name in ("P2", "P3"):
        life.members[name] = Member()
        life.converge(2 * sum(u.partitions for u in units))
    del life.members["P1"]
    life.converge(2 * sum(u.partitions for u in units))
    view, placement = life.round()
    assert len(placement.learner) == 0
    assert score(view, placement).imbalance <= max(u.weight for u in units)
