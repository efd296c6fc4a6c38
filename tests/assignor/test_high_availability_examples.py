"""KIP-441's worked examples for warm-ups: EX-H1 to EX-H12 on single placements.

EX-H13 and EX-H14 take several rounds and are in `test_convergence.py`.
"""

from __future__ import annotations

import pytest
from support.assignor.placing import Member, counts, group, holdings, stateful

from muster.assignor import check
from muster.assignor.high_availability_assignor import HighAvailability
from muster.assignor.model import GroupView, Placement
from muster.protocol.setting_values import LONG_MAX
from muster.protocol.tasks import Subtopology

PROBING_MS = 600_000


def _placed(view: GroupView) -> Placement:
    placement = HighAvailability().assign(view)
    check.valid(view, placement)
    return placement


NINE = [f"{u}_{p}" for u in range(3) for p in range(3)]


def _example_1(**config: object) -> GroupView:
    members = {
        "P1": Member(active=NINE, lag=dict.fromkeys(NINE, 0)),
        "P2": Member(standby=NINE, lag=dict.fromkeys(NINE, 10)),
        "P3": Member(),
    }
    return group(
        stateful(3, 3, 3), members, max_warmup_replicas=2, num_standby_replicas=1, **config
    )


@pytest.mark.parametrize("acceptable", [11, 10])
def test_EX_H1_newcomer_gets_two_warm_ups(acceptable: int) -> None:
    """A newcomer beside two warm members: it gets two warm-ups, and no member loses a copy."""
    view = _example_1(acceptable_recovery_lag=acceptable)
    placement = _placed(view)
    held = {name: sum(three) for name, three in counts(view, placement).items()}
    assert held == {"P1": 9, "P2": 9, "P3": 2}
    assert counts(view, placement)["P3"] == (0, 0, 2)
    assert placement.followup_ms == PROBING_MS


def test_S2_F27_one_offset_too_far_behind_is_cold() -> None:
    """EX-H1 with an acceptable lag of 9: P2, 10 behind, runs nothing yet, and P1 keeps all nine."""
    view = _example_1(acceptable_recovery_lag=9)
    placement = _placed(view)
    assert {name: three[0] for name, three in counts(view, placement).items()} == {
        "P1": 9,
        "P2": 0,
        "P3": 0,
    }
    assert len(placement.learner) == 2
    assert placement.followup_ms == PROBING_MS


def test_EX_H2_acceptable_lags_move_at_once() -> None:
    """Every lag is acceptable: 3 actives and 3 standbys each at once, no follow-up."""
    view = _example_1(acceptable_recovery_lag=LONG_MAX)
    placement = _placed(view)
    assert counts(view, placement) == {"P1": (3, 3, 0), "P2": (3, 3, 0), "P3": (3, 3, 0)}
    assert placement.followup_ms is None


@pytest.mark.parametrize(
    "first",
    [Member(active=["0_0", "0_1"]), Member(lag={"0_0": 0, "0_1": 0})],
    ids=["runs both", "has caught up with both"],
)
def test_EX_H3_empty_member_warms_up_one_task(first: Member) -> None:
    """P1 is warm for two tasks, P2 is empty: P1 runs both, P2 warms one up."""
    view = group(stateful(2), {"P1": first, "P2": Member()})
    placement = _placed(view)
    assert counts(view, placement) == {"P1": (2, 0, 0), "P2": (0, 0, 1)}
    assert placement.followup_ms == PROBING_MS


FOUR = ["0_0", "0_1", "0_2", "0_3"]


@pytest.mark.parametrize(("standbys", "newcomer"), [(0, (0, 0, 1)), (1, (0, 4, 0))])
def test_EX_H4_EX_H5_standbys_need_no_warm_up_budget(
    standbys: int, newcomer: tuple[int, int, int]
) -> None:
    """Four tasks on P1, one warm-up allowed: P2 gets one copy, or all four as standbys."""
    view = group(
        stateful(4),
        {"P1": Member(active=FOUR), "P2": Member()},
        max_warmup_replicas=1,
        num_standby_replicas=standbys,
    )
    placement = _placed(view)
    assert counts(view, placement) == {"P1": (4, 0, 0), "P2": newcomer}
    assert placement.followup_ms == PROBING_MS


def test_EX_H6_member_least_behind_runs_the_task() -> None:
    """No member is caught up: P3 is least behind and runs it, P1 warms up, P2 keeps a copy."""
    view = group(
        stateful(1),
        {"P1": Member(), "P2": Member(lag={"0_0": 1000}), "P3": Member(lag={"0_0": 500})},
        acceptable_recovery_lag=100,
        num_standby_replicas=1,
    )
    placement = _placed(view)
    assert holdings(view, placement) == {
        "P1": ([], [], ["0_0"]),
        "P2": ([], ["0_0"], []),
        "P3": (["0_0"], [], []),
    }
    assert placement.followup_ms == PROBING_MS


def test_EX_H7_single_member_has_no_standbys() -> None:
    """One member cannot keep standbys of its own tasks: a warning, not an error, no follow-up."""
    view = group(stateful(2), {"P1": Member()}, num_standby_replicas=1)
    placement = _placed(view)
    assert counts(view, placement) == {"P1": (2, 0, 0)}
    assert placement.followup_ms is None
    assert len(placement.warnings) == 1


def test_EX_H8_no_warm_copy_means_no_follow_up() -> None:
    """No copy is caught up: tasks are assigned anyway, and there is nothing to wait for."""
    lag = {"0_0": 20_000, "0_1": 20_000}
    view = group(stateful(2), {"P1": Member(lag=lag), "P2": Member(lag=lag)})
    placement = _placed(view)
    assert counts(view, placement) == {"P1": (1, 0, 0), "P2": (1, 0, 0)}
    assert placement.followup_ms is None


@pytest.mark.parametrize("lag", [None, 0, 50, 20_000])
def test_EX_H9_actives_follow_threads(lag: int | None) -> None:
    """Nine tasks on members of 6 and 3 threads that are equally far behind: 6 and 3, for good."""
    lags = {} if lag is None else {f"0_{n}": lag for n in range(9)}
    members = {"P1": Member(capacity=6, lag=lags), "P2": Member(capacity=3, lag=lags)}
    view = group(stateful(9), members)
    placement = _placed(view)
    assert counts(view, placement) == {"P1": (6, 0, 0), "P2": (3, 0, 0)}
    assert placement.followup_ms is None


def test_EX_H10_every_member_gets_an_active() -> None:
    """Capacities 100, 50 and 1, all caught up: every member gets at least one of nine tasks."""
    members = {
        "P1": Member(capacity=100, active=NINE),
        "P2": Member(capacity=50, lag=dict.fromkeys(NINE, 0)),
        "P3": Member(capacity=1, lag=dict.fromkeys(NINE, 0)),
    }
    view = group(stateful(3, 3, 3), members)
    assert all(active > 0 for active, _, _ in counts(view, _placed(view)).values())


def test_EX_H11_standbys_cross() -> None:
    """Two owners, one standby per task: actives stay, each member gets the other's standby."""
    view = group(
        stateful(2),
        {"P1": Member(active=["0_0"]), "P2": Member(active=["0_1"])},
        num_standby_replicas=1,
    )
    placement = _placed(view)
    assert holdings(view, placement) == {
        "P1": (["0_0"], ["0_1"], []),
        "P2": (["0_1"], ["0_0"], []),
    }
    assert placement.followup_ms is None


def test_EX_H12_stateless_tasks_have_no_standbys() -> None:
    """Stateless tasks have no standbys."""
    view = group([Subtopology("0", 4)], {"P1": Member(), "P2": Member()}, num_standby_replicas=1)
    assert counts(view, _placed(view)) == {"P1": (2, 0, 0), "P2": (2, 0, 0)}
