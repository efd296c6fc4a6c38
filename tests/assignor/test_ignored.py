"""What an assignor cannot honour is said in the placement's warnings, and bounds stay true."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.placing import Member, group

from muster.assignor import registry
from muster.assignor.targets import standby
from muster.assignor.targets.previous import optimised_standbys
from muster.assignor.targets.racks import AVAILABILITY, racks_of
from muster.protocol.tasks import Subtopology

RACKS = ("r0", "r1", "r2")
STRATEGY = {"rack_aware_assignment_strategy": "min_traffic"}


def _unit(size: int, *, stateful: bool = True, weight: int = 1, name: str = "0") -> Subtopology:
    racks = tuple(((RACKS[n % 3],),) for n in range(size))
    return Subtopology(name, size, stateful, weight, racks, racks if stateful else None)


def test_learner_says_what_it_leaves_aside() -> None:
    """Weights: the drafts' due is a number of tasks (S2-28); racks count like for the others."""
    members = {f"P{n}": Member(rack=RACKS[n]) for n in range(3)}
    learner = registry.get("learner")
    assert learner.assign(group([_unit(3)], members, "learner", **STRATEGY)).warnings == ()
    units = [_unit(3), _unit(3, stateful=False, weight=5, name="1")]
    assert learner.assign(group(units, members, "learner")).warnings == (
        "task weights are ignored: learner balances the number of tasks (S2-28)",
    )
    assert learner.assign(group([_unit(3)], members, "learner")).warnings == ()


def test_reliability_is_not_given_up_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    """More choices than the exact flow takes: a warning names the setting (S4-31)."""
    members = {f"P{n}": Member(rack=RACKS[n % 3]) for n in range(6)}
    config = {
        **STRATEGY,
        "num_standby_replicas": 1,
        "rack_aware_standby_strategy": "reliability_then_traffic",
    }
    view = group([_unit(6)], members, **config)
    assert registry.get("high-availability").assign(view).warnings == ()
    monkeypatch.setattr(standby, "MOST_ARCS", 0)
    (warning,) = registry.get("high-availability").assign(view).warnings
    assert warning.startswith(
        "rack.aware.standby.strategy=reliability_then_traffic is not honoured"
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_of_several_tags_is_true(seed: int) -> None:
    """Brute force over all standbys at equal counts, tags left aside, gives the bound told."""
    chance = np.random.default_rng(seed)
    names = [f"P{n}" for n in range(5)]
    owner = chance.permutation(5)[:4]
    copy = [int(chance.choice([m for m in range(5) if m != owner[t]])) for t in range(4)]
    members = {
        name: Member(
            rack=RACKS[int(chance.integers(3))],
            tags={"zone": str(n % 2), "cluster": str(n % 3)},
            active=[f"0_{t}" for t in range(4) if owner[t] == n],
            standby=[f"0_{t}" for t in range(4) if copy[t] == n],
        )
        for n, name in enumerate(names)
    }
    config = {**STRATEGY, "rack_aware_assignment_tags": "zone,cluster"}
    view = group([_unit(4)], members, **config)
    racks, _ = racks_of(view, AVAILABILITY, standbys=True)
    assert racks is not None
    assert racks.changelogs is not None
    found = optimised_standbys(view, racks, view.active)
    across = racks.changelogs.across[racks.changelogs.class_of][:, view.rack]
    least = min(
        sum(int(across[t, m]) for t, m in enumerate(holders)) * racks.stateful.traffic
        for holders in set(itertools.permutations(copy))
        if all(m != owner[t] for t, m in enumerate(holders))
    )
    assert found.bound == least <= found.cost
