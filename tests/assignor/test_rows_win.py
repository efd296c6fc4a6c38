"""The smallest conflicts between a requirement and a cheaper placement: the requirement wins.

Comparison with Kafka's classes on random problems found them (`bench/README.md`). Each test asserts
what the row demands and what that costs, and that the cheaper placement would break the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from support.assignor.placing import Held, Member, group, holdings, stateful
from support.assignor.random_groups import caught_up, placed

from muster.assignor.model import GroupView
from muster.protocol.tasks import Subtopology


@dataclass(frozen=True)
class Price:
    """Costs of a placement.

    Attributes:
        restored: copies on members without state.
        across: changelogs that standbys read across racks.
        cold: stateful actives on members that are not caught up.
        uneven: largest difference of two members' actives by capacity.
    """

    restored: int = 0
    across: int = 0
    cold: int = 0
    uneven: float = 0


def _price(view: GroupView, held: Held) -> Price:
    """Compute the costs from the view and the names alone."""
    warm, racks = caught_up(view), {}
    for unit in view.tasks.units:
        for number, topics in enumerate(unit.changelog_racks or ()):
            racks[f"{unit.name}_{number}"] = [set(replicas) for replicas in topics]
    reported = set(zip(view.lags.task.tolist(), view.lags.member.tolist(), strict=True))
    restored = across = cold = 0
    for member, name in enumerate(view.members):
        active, standby, learner = held[name]
        for task in (*active, *standby, *learner):
            index = view.tasks.index(task)
            if view.tasks.stateful[index]:
                cold += task in active and not warm[index, member]
                restored += view.active[index] != member and (index, member) not in reported
        for task in standby:
            here = view.racks[view.rack[member]] if view.rack[member] >= 0 else None
            across += sum(here not in replicas for replicas in racks.get(task, ()))
    load = np.array([len(held[name][0]) for name in view.members]) / view.capacity
    return Price(restored, across, cold, round(float(np.ptp(load)), 3))


def test_S4_17_actives_come_before_the_racks_of_their_standbys() -> None:
    """P2 has caught up with 0_0, not with 0_1, whose standbys would read nearby if 0_1 moved.

    S2-F21 puts caught-up members first, S4-17 puts actives before standbys: 0_0 moves, and both
    standbys read across racks. If 0_1 moved they would not, but P2 would start cold.
    """
    everywhere = ((("r1", "r2"),), (("r1", "r2"),))
    unit = Subtopology(
        "0",
        2,
        stateful=True,
        source_racks=everywhere,
        changelog_racks=((("r2",),), (("r1",),)),
    )
    view = group(
        [unit],
        {
            "P1": Member(rack="r1", active=["0_0", "0_1"]),
            "P2": Member(rack="r2", lag={"0_0": 0}),
        },
        num_standby_replicas=1,
        rack_aware_assignment_strategy="min_traffic",
    )
    held = holdings(view, placed(view))
    assert held == {"P1": (["0_1"], ["0_0"], []), "P2": (["0_0"], ["0_1"], [])}
    cheaper: Held = {"P1": (["0_0"], ["0_1"], []), "P2": (["0_1"], ["0_0"], [])}
    assert _price(view, held) == Price(restored=1, across=2)
    assert _price(view, cheaper) == Price(restored=1, across=0, cold=1)


def test_S2_F21_a_caught_up_copy_comes_before_evenness() -> None:
    """Of two tasks without an owner, the smallest member has caught up with one: it runs that one.

    The two larger members with a task each would be more even, but one task would start cold.
    """
    members = {
        "P1": Member(capacity=3),
        "P2": Member(capacity=2),
        "P3": Member(capacity=1, lag={"0_0": 0}),
    }
    view = group([Subtopology("0", 1, stateful=True), Subtopology("1", 1)], members)
    held = holdings(view, placed(view))
    assert held == {"P1": (["1_0"], [], []), "P2": ([], [], []), "P3": (["0_0"], [], [])}
    cheaper: Held = {"P1": (["0_0"], [], []), "P2": (["1_0"], [], []), "P3": ([], [], [])}
    assert _price(view, held) == Price(uneven=1)
    assert _price(view, cheaper) == Price(uneven=0.5, restored=1, cold=1)


def test_EX_H6_the_least_behind_runs_and_the_target_restores() -> None:
    """No member has caught up: lags do not decide the target.

    P3 is least behind and runs the task, but P1, which has nothing, is the target and restores.
    With P3 as the target nothing would restore; the example wants a warm-up on P1 and a standby on
    P2.
    """
    members = {
        "P1": Member(),
        "P2": Member(lag={"0_0": 1000}),
        "P3": Member(lag={"0_0": 500}),
    }
    view = group(stateful(1), members, num_standby_replicas=1, acceptable_recovery_lag=100)
    held = holdings(view, placed(view))
    assert held == {"P1": ([], [], ["0_0"]), "P2": ([], ["0_0"], []), "P3": (["0_0"], [], [])}
    cheaper: Held = {"P1": ([], [], []), "P2": ([], ["0_0"], []), "P3": (["0_0"], [], [])}
    assert _price(view, held) == Price(restored=1, cold=1, uneven=1)
    assert _price(view, cheaper) == Price(restored=0, cold=1, uneven=1)


def test_S2_F28_warm_ups_start_in_task_order() -> None:
    """Two tasks are to leave P1, one warm-up is allowed: 0_1 restores first, from nothing.

    P3 has state of 0_2, which may be gone when 0_2 is next; the row counts warm copies only, and
    then goes by task.
    """
    members = {
        "P1": Member(active=["0_0", "0_1", "0_2"]),
        "P2": Member(),
        "P3": Member(lag={"0_2": 50_000}),
    }
    view = group(stateful(3), members, max_warmup_replicas=1)
    placement = placed(view)
    assert placement.destination.tolist() == [0, 1, 2]
    held = holdings(view, placement)
    everything = ["0_0", "0_1", "0_2"]
    assert held == {"P1": (everything, [], []), "P2": ([], [], ["0_1"]), "P3": ([], [], [])}
    cheaper: Held = {"P1": (everything, [], []), "P2": ([], [], []), "P3": ([], [], ["0_2"])}
    assert _price(view, held) == Price(restored=1, uneven=3)
    assert _price(view, cheaper) == Price(restored=0, uneven=3)
