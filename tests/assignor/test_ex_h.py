"""KIP-441's worked examples, warm-ups: EX-H1 to EX-H12 on single placements.

EX-H13 and EX-H14 are lives of a group and stand in `test_convergence.py`.
"""

from __future__ import annotations

import pytest
from support.placing import Member, counts, group, holdings, stateful

from muster.assignor import check
from muster.assignor.availability import HighAvailability
from muster.assignor.model import GroupView, Placement
from muster.protocol.accepted import LONG_MAX
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


def test_EX_H1() -> None:
    """A newcomer beside two warm members: no member loses a copy, it gets two warm-ups."""
    view = _example_1(acceptable_recovery_lag=11)
    placement = _placed(view)
    held = {name: sum(three) for name, three in counts(view, placement).items()}
    assert held == {"P1": 9, "P2": 9, "P3": 2}
    assert counts(view, placement)["P3"] == (0, 0, 2)
    assert placement.followup_ms == PROBING_MS


def test_EX_H2() -> None:
    """Every lag acceptable: 3 actives and 3 standbys each at once, no follow-up."""
    view = _example_1(acceptable_recovery_lag=LONG_MAX)
    placement = _placed(view)
    assert counts(view, placement) == {"P1": (3, 3, 0), "P2": (3, 3, 0), "P3": (3, 3, 0)}
    assert placement.followup_ms is None


def test_EX_H3() -> None:
    """Two tasks on P1, P2 empty: P1 keeps both, P2 warms one up."""
    view = group(stateful(2), {"P1": Member(active=["0_0", "0_1"]), "P2": Member()})
    placement = _placed(view)
    assert counts(view, placement) == {"P1": (2, 0, 0), "P2": (0, 0, 1)}
    assert placement.followup_ms == PROBING_MS


FOUR = ["0_0", "0_1", "0_2", "0_3"]


@pytest.mark.parametrize(("standbys", "newcomer"), [(0, (0, 0, 1)), (1, (0, 4, 0))])
def test_EX_H4_EX_H5(standbys: int, newcomer: tuple[int, int, int]) -> None:
    """Four tasks on P1, one warm-up allowed: without standbys one copy, with one all four."""
    view = group(
        stateful(4),
        {"P1": Member(active=FOUR), "P2": Member()},
        max_warmup_replicas=1,
        num_standby_replicas=standbys,
    )
    placement = _placed(view)
    assert counts(view, placement) == {"P1": (4, 0, 0), "P2": newcomer}
    assert placement.followup_ms == PROBING_MS


def test_EX_H6() -> None:
    """No member is caught up: the furthest runs, the target warms up, the other keeps a copy."""
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


def test_EX_H7() -> None:
    """One member cannot keep standbys of its own tasks: a warning, not an error, no follow-up."""
    view = group(stateful(2), {"P1": Member()}, num_standby_replicas=1)
    placement = _placed(view)
    assert counts(view, placement) == {"P1": (2, 0, 0)}
    assert placement.followup_ms is None
    assert len(placement.warnings) == 1


def test_EX_H8() -> None:
    """No copy anywhere is caught up: assigned anyway, nothing to wait for."""
    lag = {"0_0": 20_000, "0_1": 20_000}
    view = group(stateful(2), {"P1": Member(lag=lag), "P2": Member(lag=lag)})
    placement = _placed(view)
    assert counts(view, placement) == {"P1": (1, 0, 0), "P2": (1, 0, 0)}
    assert placement.followup_ms is None


def test_EX_H9() -> None:
    """Nine tasks over 6 and 3 threads: 6 and 3."""
    view = group(stateful(9), {"P1": Member(capacity=6), "P2": Member(capacity=3)})
    assert counts(view, _placed(view)) == {"P1": (6, 0, 0), "P2": (3, 0, 0)}


def test_EX_H10() -> None:
    """Capacities 100, 50 and 1, all caught up: everybody gets at least one of nine tasks."""
    members = {
        "P1": Member(capacity=100, active=NINE),
        "P2": Member(capacity=50, lag=dict.fromkeys(NINE, 0)),
        "P3": Member(capacity=1, lag=dict.fromkeys(NINE, 0)),
    }
    view = group(stateful(3, 3, 3), members)
    assert all(active > 0 for active, _, _ in counts(view, _placed(view)).values())


def test_EX_H11() -> None:
    """Two owners, one standby each wanted: actives stay, standbys cross, no follow-up."""
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


def test_EX_H12() -> None:
    """Stateless tasks have no standbys."""
    view = group([Subtopology("0", 4)], {"P1": Member(), "P2": Member()}, num_standby_replicas=1)
    assert counts(view, _placed(view)) == {"P1": (2, 0, 0), "P2": (2, 0, 0)}
