"""Refinement of small plans: no free change is left, and no figure gets worse."""

from __future__ import annotations

import numpy as np
import pytest
from support.assignor.placing import Member, group, holdings, stateful

from muster.assignor import check, registry
from muster.assignor.model import GroupView, Placement
from muster.assignor.targets.plan import Planner
from muster.protocol.tasks import Subtopology


def _placed(view: GroupView, name: str) -> Placement:
    placement = registry.get(name).assign(view)
    check.valid(view, placement)
    return placement


def _with_and_without(
    view: GroupView, name: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Placement, Placement]:
    """The placement, and the placement without refinement."""
    refined = _placed(view, name)
    with monkeypatch.context() as patch:
        patch.setattr(Planner, "refine", lambda self: None)
        return refined, _placed(view, name)


def test_a_standby_with_state_is_not_given_up_for_evenness() -> None:
    """P4 keeps both standbys: the sum of all roles differs by one in either case."""
    members = {
        "P1": Member(active=["0_0"]),
        "P2": Member(active=["0_1"]),
        "P3": Member(active=["0_2"], standby=["0_1"], lag={"0_1": 5000}),
        "P4": Member(standby=["0_0", "0_2"], lag={"0_0": 5000, "0_2": 100}),
    }
    view = group(stateful(3), members, "sticky", num_standby_replicas=1)
    assert holdings(view, _placed(view, "sticky"))["P4"] == ([], ["0_0", "0_2"], [])


@pytest.mark.parametrize("name", ["sticky", "fallback"])
def test_a_task_without_an_owner_starts_where_state_is(name: str) -> None:
    """P3 is 101 behind, P1 far behind: P3 runs the task and P1's copy becomes the standby."""
    members = {
        "P1": Member(lag={"0_0": 50_000}),
        "P2": Member(capacity=2),
        "P3": Member(capacity=2, standby=["0_0"], lag={"0_0": 101}),
    }
    config = {"num_standby_replicas": 1, "acceptable_recovery_lag": 100}
    view = group(stateful(1), members, name, **config)
    assert holdings(view, _placed(view, name)) == {
        "P1": ([], ["0_0"], []),
        "P2": ([], [], []),
        "P3": (["0_0"], [], []),
    }


def test_a_standby_stays_where_state_is_if_another_makes_room() -> None:
    """P1 keeps its former active as a standby: the standby planned there goes to P2."""
    tags = [{"zone": zone} for zone in ("r0", "r2", "r1")]
    members = {
        "P1": Member(active=["0_0", "0_3"], standby=["0_1"], tags=tags[0]),
        "P2": Member(capacity=2, standby=["0_2"], lag={"0_2": 5000}, tags=tags[1]),
        "P3": Member(capacity=4, active=["0_2"], tags=tags[2]),
    }
    config = {"num_standby_replicas": 1, "rack_aware_assignment_tags": "zone"}
    view = group(stateful(5), members, "sticky", acceptable_recovery_lag=100, **config)
    held = holdings(view, _placed(view, "sticky"))
    assert held["P1"] == (["0_0"], ["0_3"], [])
    assert "0_2" in held["P2"][1]


@pytest.mark.parametrize("name", ["sticky", "high-availability"])
def test_fresh_unequal_members_are_as_even_as_possible(name: str) -> None:
    """Three threads and two, four stateful tasks and a stateless one, which reads in P2's rack."""
    local = ((("r2",),),)
    units = [
        Subtopology("0", 4, stateful=True, source_racks=((("r1", "r2"),),) * 4),
        Subtopology("1", 1, source_racks=local),
    ]
    members = {"P1": Member(capacity=3, rack="r1"), "P2": Member(capacity=2, rack="r2")}
    view = group(units, members, name, rack_aware_assignment_strategy="min_traffic")
    placement = _placed(view, name)
    assert placement.cost == 0
    assert np.bincount(placement.active).tolist() == [3, 2]


@pytest.mark.parametrize("keeper", ["P1", "P2", "P3"])
def test_the_only_copy_runs_the_task_at_once(keeper: str) -> None:
    """It is far behind, but the others have nothing, and the standby restores in any case."""
    members = {f"P{n}": Member() for n in range(1, 4)}
    members[keeper] = Member(lag={"0_0": 50_000})
    view = group(stateful(1), members, num_standby_replicas=1, acceptable_recovery_lag=100)
    placement = _placed(view, "high-availability")
    assert view.members[placement.destination[0]] == keeper
    assert placement.followup_ms is None


def test_racks_cause_no_useless_move() -> None:
    """Both tasks may stay with P3 of 4 threads: a move would change neither spread nor traffic."""
    racks = ((("r1", "r0"),), (("r1", "r0"),))
    unit = Subtopology("0", 2, stateful=True, source_racks=racks, changelog_racks=racks)
    members = {
        "P3": Member(capacity=4, rack="r1", active=["0_0", "0_1"]),
        "P4": Member(capacity=1, rack="r2"),
        "P6": Member(capacity=2, rack="r1"),
    }
    config = {"rack_aware_assignment_strategy": "min_traffic"}
    view = group([unit], members, "sticky", **config)
    placement = _placed(view, "sticky")
    assert holdings(view, placement)["P3"] == (["0_0", "0_1"], [], [])
    assert placement.cost == placement.cost_lower_bound == 0


def test_a_stateful_task_does_not_move_in_place_of_a_stateless_one() -> None:
    """One task has to move; for `sticky` a move of the stateful one costs more than both reads."""
    units = [
        Subtopology("0", 1, stateful=True, source_racks=((("r1",),),)),
        Subtopology("1", 1, source_racks=((("r0",),),)),
    ]
    members = {
        "P0": Member(rack="r0", active=["0_0", "1_0"]),
        "P1": Member(rack="r1", standby=["0_0"], lag={"0_0": 0}),
    }
    view = group(units, members, "sticky", rack_aware_assignment_strategy="min_traffic")
    placement = _placed(view, "sticky")
    assert placement.active.tolist() == [0, 1]
    assert placement.cost == placement.cost_lower_bound == 2


@pytest.mark.parametrize("name", ["sticky", "high-availability"])
def test_refinement_never_costs_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random groups with racks: the cost with refinement is no higher than without."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        members, racks = [f"P{n}" for n in range(3)], ["r0", "r1", "r2"]
        lists = [tuple(((str(rng.choice(racks)),),) for _ in range(3)) for _ in range(3)]
        units = [Subtopology(str(n), 3, n < 2, 1, lists[n], lists[n]) for n in range(3)]
        tasks = [f"{unit.name}_{n}" for unit in units for n in range(3)]
        owner = dict(zip(tasks, rng.choice(members, 9).tolist(), strict=True))
        copy = dict(zip(tasks[:6], rng.choice(members, 6).tolist(), strict=True))
        present = {
            member: Member(
                rack=rack,
                active=[t for t in tasks if owner[t] == member],
                standby=[t for t in copy if copy[t] == member != owner[t]],
                lag={t: int(rng.choice([0, 5000])) for t in copy if copy[t] == member != owner[t]},
            )
            for member, rack in zip(members, racks, strict=True)
        }
        config = {"num_standby_replicas": seed % 3, "acceptable_recovery_lag": 100}
        view = group(units, present, rack_aware_assignment_strategy="min_traffic", **config)
        refined, plain = _with_and_without(view, name, monkeypatch)
        assert refined.cost <= plain.cost, seed


@pytest.mark.parametrize("name", ["sticky", "fallback", "high-availability"])
@pytest.mark.parametrize("seed", range(15))
def test_refinement_makes_nothing_worse(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random groups: fewer or as many moves, and as even or more even actives in the end."""
    rng = np.random.default_rng(seed)
    units = [Subtopology("0", 6, stateful=True), Subtopology("1", 5)]
    names = [f"P{n}" for n in range(int(rng.integers(2, 6)))]
    tasks = [f"{unit.name}_{n}" for unit in units for n in range(unit.partitions)]
    owner = dict(zip(tasks, rng.choice(names, len(tasks)).tolist(), strict=True))
    members = {
        n: Member(
            capacity=int(rng.choice([1, 2, 4])),
            active=[t for t in tasks if owner[t] == n],
            lag={
                t: int(rng.choice([0, 50, 5000]))
                for t in tasks[:6]
                if owner[t] != n and rng.random() < 0.4
            },
        )
        for n in names
    }
    view = group(units, members, name, num_standby_replicas=1, acceptable_recovery_lag=100)

    def judged(placement: Placement) -> tuple[int, float]:
        load = np.bincount(placement.destination, minlength=len(names)) / view.capacity
        moved = int(np.count_nonzero(placement.destination != view.active))
        return moved, round(float(np.ptp(load)), 9)

    refined, plain = _with_and_without(view, name, monkeypatch)
    assert all(a <= b for a, b in zip(judged(refined), judged(plain), strict=True))


def test_stateless_tasks_fill_up_what_stateful_ones_left_uneven() -> None:
    """Stateful tasks stay within 1 by capacity; stateless ones must not add to the fullest."""
    members = {
        "P1": Member(capacity=1, active=["0_0", "0_1"]),
        "P2": Member(capacity=4, active=["0_2", "0_3", "0_4", "0_5"]),
    }
    units = [Subtopology("0", 6, stateful=True), Subtopology("1", 3)]
    view = group(units, members)
    placement = _placed(view, "high-availability")
    load = np.bincount(placement.active, minlength=2) / view.capacity
    assert float(np.ptp(load)) <= 1


def test_of_two_tasks_the_one_that_is_already_learned_goes_on() -> None:
    """A is gone; B can run both tasks. C began to restore 0_1 long ago, and has nothing of 0_0."""
    members = {
        "B": Member(active=["0_1"], standby=["0_0"], lag={"0_0": 0}),
        "C": Member(learner=["0_1"]),
    }
    view = group(stateful(2), members, num_standby_replicas=1)
    assert _placed(view, "high-availability").destination.tolist() == [0, 1]
