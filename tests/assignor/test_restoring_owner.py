"""Owners that report they are still restoring; draining members; copies that differ in lag."""

from __future__ import annotations

import pytest
from support.assignor.placing import Member, group, holdings

from muster.assignor import check, registry
from muster.assignor.high_availability_assignor import HighAvailability
from muster.assignor.model import Placement
from muster.protocol.tasks import Subtopology

FOUR = [Subtopology("0", 4, stateful=True)]


def placed(
    members: dict[str, Member], units: list[Subtopology] = FOUR, **config: object
) -> tuple[Placement, dict[str, tuple[list[str], list[str], list[str]]]]:
    """The default assignor's placement, and (active, standby, learner) by member."""
    view = group(units, members, **config)
    placement = HighAvailability().assign(view)
    check.valid(view, placement)
    by_member = holdings(view, placement)
    return placement, {name: tuple(map(sorted, by_member[name])) for name in by_member}


def test_a_caught_up_copy_runs_what_its_owner_restores() -> None:
    """S restores all four tasks; R is back with the state of two, and runs these at once."""
    behind = dict.fromkeys(("0_0", "0_1", "0_2", "0_3"), 1_000_000)
    members = {
        "R": Member(lag={"0_1": 0, "0_3": 40}),
        "S": Member(active=list(behind), lag=behind),
    }
    placement, by_member = placed(members)
    assert (by_member["R"][0], by_member["S"][0]) == (["0_1", "0_3"], ["0_0", "0_2"])
    assert placement.followup_ms is None
    assert {r.text for r in placement.reasons} == {"S is still restoring it; copy caught up"}


def test_only_assignors_with_learners_take_a_task_from_an_owner_that_restores() -> None:
    """`sticky` leaves it there; where it has to move a task anyway, the reason is the balance."""
    for tasks, reasons in ((1, []), (2, ["balance 2/0 -> 1/1; copy caught up"])):
        behind = dict.fromkeys(("0_0", "0_1")[:tasks], 1_000_000)
        members = {"R": Member(lag={"0_0": 0}), "S": Member(active=list(behind), lag=behind)}
        view = group([Subtopology("0", tasks, stateful=True)], members)
        assert [reason.text for reason in registry.get("sticky").assign(view).reasons] == reasons


def test_the_old_owner_becomes_the_warm_up_where_the_task_belongs_to_it() -> None:
    """R has all four tasks' state and runs all; S goes on restoring those of its share."""
    behind = dict.fromkeys(("0_0", "0_1", "0_2", "0_3"), 1_000_000)
    members = {
        "R": Member(lag=dict.fromkeys(behind, 0)),
        "S": Member(active=list(behind), lag=behind),
    }
    placement, by_member = placed(members, max_warmup_replicas=1)
    assert len(by_member["R"][0]) == 4
    assert len(by_member["S"][2]) == 1
    assert placement.followup_ms is not None
    texts = {r.text for r in placement.reasons if r.destination == 1}
    assert texts == {"goes on restoring; R runs it meanwhile"}


@pytest.mark.parametrize("lag", [{}, {"0_0": 10_000}])
def test_an_owner_without_a_reported_lag_has_caught_up(lag: dict[str, int]) -> None:
    """So has one within acceptable.recovery.lag: nothing moves, however good another copy is."""
    members = {"R": Member(active=["0_1"], lag={"0_0": 0}), "S": Member(active=["0_0"], lag=lag)}
    placement, _ = placed(members, [Subtopology("0", 2, stateful=True)])
    assert len(placement.reasons) == 0


def test_an_owner_that_restores_keeps_what_no_other_member_has() -> None:
    """A copy that is not caught up does not take over."""
    one = [Subtopology("0", 1, stateful=True)]
    members = {"R": Member(lag={"0_0": 20_000}), "S": Member(active=["0_0"], lag={"0_0": 90_000})}
    assert placed(members, one)[1]["S"][0] == ["0_0"]


@pytest.mark.parametrize("assignor", ["high-availability", "learner"])
def test_a_member_that_drains_learns_nothing(assignor: str) -> None:
    """Also when all drain: the member that runs a task goes on, and no follow-up is asked for."""
    members = {
        "A": Member(active=["0_0", "0_1", "0_2", "0_3"], draining=True),
        "B": Member(draining=True),
    }
    view = group(FOUR, members)
    placement = registry.get(assignor).assign(view)
    check.valid(view, placement)
    assert len(placement.learner) == 0
    assert placement.active.tolist() == placement.destination.tolist() == [0, 0, 0, 0]
    assert placement.followup_ms is None


def test_of_two_caught_up_copies_the_fresher_runs() -> None:
    """Two tasks without an owner, copies of both on both members: the less behind one runs each."""
    two = [Subtopology("0", 2, stateful=True)]
    for mine, other in (("0_0", "0_1"), ("0_1", "0_0")):
        members = {
            "A": Member(standby=["0_0", "0_1"], lag={mine: 10, other: 900}),
            "B": Member(standby=["0_0", "0_1"], lag={mine: 900, other: 10}),
        }
        by_member = placed(members, two)[1]
        assert (by_member["A"][0], by_member["B"][0]) == ([mine], [other])


def test_of_two_warm_ups_the_one_less_behind_starts() -> None:
    """B and C both have old state of A's task: it goes to the member with less to restore."""
    units = [Subtopology("0", 3, stateful=True)]
    for fresher, older in (("B", "C"), ("C", "B")):
        members = {
            "A": Member(active=["0_0", "0_1", "0_2"]),
            fresher: Member(lag={"0_1": 20_000, "0_2": 500_000}),
            older: Member(lag={"0_1": 500_000, "0_2": 20_000}),
        }
        _, by_member = placed(members, units)
        assert (by_member[fresher][2], by_member[older][2]) == (["0_1"], ["0_2"])


def test_of_two_standbys_the_fresher_stays() -> None:
    """Of two spare copies the one that is less behind keeps its place."""
    one = [Subtopology("0", 1, stateful=True)]
    for fresher, older in (("B", "C"), ("C", "B")):
        members = {
            "A": Member(active=["0_0"]),
            fresher: Member(lag={"0_0": 20_000}),
            older: Member(lag={"0_0": 500_000}),
        }
        assert placed(members, one, num_standby_replicas=1)[1][fresher][1] == ["0_0"]


def test_under_topics_nothing_is_restored_that_then_stays_where_it_runs() -> None:
    """B restores 0_1 and 0_2, of which A has caught up: two and one are even, so both stay on A."""
    tasks = ["0_0", "0_1", "0_2"]
    members = {
        "A": Member(lag={"0_1": 0, "0_2": 0}),
        "B": Member(topics=["0"], active=tasks, lag={"0_1": 1_000_000, "0_2": 1_000_000}),
    }
    placement, by_member = placed(members, [Subtopology("0", 3, stateful=True)])
    assert by_member == {"A": (["0_1", "0_2"], [], []), "B": (["0_0"], [], [])}
    assert placement.followup_ms is None
