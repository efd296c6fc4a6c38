"""Figures that judge a placement: moves, imbalance, cross-rack reads, cost.

The figures are of this generation's placement, not of its destinations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.model import NO_MEMBER, GroupView, Placement


@dataclass(frozen=True, slots=True)
class Score:
    """Figures of one placement.

    Attributes:
        moved: actives that had an owner and get another one.
        imbalance: largest difference of two members' load; load is the weight of a member's
            actives by its capacity. Draining members do not count, unless all members drain. An int
            where it is a whole number.
        cross_rack: topic partitions read by members in whose rack no replica is: inputs of
            actives, changelogs of standbys. 0 where racks are unknown.
        cost: objective the assignor minimised.
        cost_lower_bound: proven bound on it.
    """

    moved: int
    imbalance: float
    cross_rack: int
    cost: int
    cost_lower_bound: int


def score(view: GroupView, placement: Placement) -> Score:
    """Compute the figures of a placement of the view."""
    active = placement.active
    moved = (view.active != NO_MEMBER) & (active != NO_MEMBER) & (view.active != active)
    return Score(
        moved=int(np.count_nonzero(moved)),
        imbalance=_imbalance(view, placement),
        cross_rack=_cross_rack(view, placement),
        cost=placement.cost,
        cost_lower_bound=placement.cost_lower_bound,
    )


def _imbalance(view: GroupView, placement: Placement) -> float:
    if not view.members:
        return 0
    weight = np.bincount(
        placement.active + 1, weights=view.tasks.weight, minlength=len(view.members) + 1
    )[1:]
    load = weight / view.capacity
    staying = load if view.draining.all() else load[~view.draining]
    spread = round(float(staying.max() - staying.min()), 9)
    return int(spread) if spread.is_integer() else spread


def _cross_rack(view: GroupView, placement: Placement) -> int:
    from muster.assignor.targets.traffic import crossings

    owned = np.flatnonzero(placement.active != NO_MEMBER).astype(np.int32)
    return crossings(view, owned, placement.active[owned], changelog=False) + crossings(
        view, placement.standby.task, placement.standby.member, changelog=True
    )
