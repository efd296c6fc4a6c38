"""Racks that cannot lower traffic change nothing (S4-F05); standbys prefer another rack (S4-29)."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignor.placing import Member, group, holdings, stateful
from support.assignor.random_groups import placed, problems
from support.suite.examples import examples

from muster.protocol.tasks import Subtopology

STRATEGIES = ["min_traffic", "balance_subtopology"]


@settings(max_examples=examples(80), deadline=None)
@given(
    problems(racks=True),
    st.sampled_from(STRATEGIES),
    st.sampled_from(["high-availability", "sticky", "fallback"]),
    st.booleans(),
)
def test_a_strategy_that_cannot_lower_traffic_is_off(
    problem: tuple, strategy: str, name: str, one_rack: bool
) -> None:
    """Every topic in every rack, or all members in one: the answer of `none`, whole."""
    units, members, config = problem
    if one_rack:
        members = {n: replace(m, rack="r1") for n, m in members.items()}
    else:
        units = [_everywhere(unit) for unit in units]
    config = {k: v for k, v in config.items() if k != "rack_aware_assignment_strategy"}
    plain = group(units, members, **config)
    racks = group(units, members, rack_aware_assignment_strategy=strategy, **config)
    one, other = placed(plain, name), placed(racks, name)
    assert holdings(plain, one) == holdings(racks, other)
    assert np.array_equal(one.destination, other.destination)
    assert (one.cost, one.warnings, one.reasons) == (other.cost, other.warnings, other.reasons)


def _everywhere(unit: Subtopology) -> Subtopology:
    racks = ((("r0", "r1", "r2"),),) * unit.partitions
    return replace(unit, source_racks=racks, changelog_racks=racks)


@pytest.mark.parametrize("name", ["high-availability", "sticky", "fallback"])
@pytest.mark.parametrize(("tasks", "members"), [(6, 4), (300, 30), (4_000, 60)])
def test_a_standby_goes_to_another_rack(name: str, tasks: int, members: int) -> None:
    """Small groups, large ones, those whose copies are dealt: none in the rack of its active."""
    fleet = {f"P{n:03}": Member(rack=f"r{n % 2}") for n in range(members)}
    view = group(stateful(tasks), fleet, num_standby_replicas=1)
    placement = placed(view, name)
    pairs = placement.standby
    assert len(pairs) == tasks
    assert (view.rack[placement.active[pairs.task]] != view.rack[pairs.member]).all()


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**40))
def test_no_standby_moves_for_its_rack(seed: int) -> None:
    """A group as it was placed without racks: when racks are known, nothing moves."""
    rng = random.Random(seed)
    names = [f"P{n}" for n in range(rng.randint(2, 6))]
    units = stateful(*(rng.randint(1, 6) for _ in range(rng.randint(1, 3))))
    view = group(units, {n: Member() for n in names}, num_standby_replicas=1)
    held = holdings(view, placed(view))
    members = {
        n: Member(
            active=held[n][0],
            standby=held[n][1],
            lag=dict.fromkeys(held[n][1], 0),
            rack=rng.choice(["r0", "r1", None]),
        )
        for n in names
    }
    again = group(units, members, num_standby_replicas=1)
    assert holdings(again, placed(again)) == held
