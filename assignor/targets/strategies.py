"""The strategies of a plan, chosen once from its inputs; no other module decides which applies.

The planner asks strategies in order and takes the first answer. A strategy answers None for tasks
that it does not handle, or when it finds no placement. The last of each list always answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from muster.assignor.model import NO_MEMBER
from muster.assignor.solvers.shares import Counts
from muster.assignor.solvers.small_exact import small
from muster.assignor.targets.actives import ByCopies
from muster.assignor.targets.least_cost import ByCost
from muster.assignor.targets.plan_data import (
    Actives,
    Inputs,
    Plan,
    Settled,
    copies_in_distinct_racks,
)
from muster.assignor.targets.refinement import refine
from muster.assignor.targets.restricted import by_topics
from muster.assignor.targets.small_groups import Exact
from muster.assignor.targets.standby import standbys
from muster.assignor.targets.standby_request import PlacedStandbys, StandbyRequest
from muster.assignor.targets.tag_zones import tagged_standbys
from muster.assignor.targets.weighted import ByWeight
from muster.protocol.tasks import IntArray

PlacesActives: TypeAlias = Callable[[Actives, IntArray], Settled | None]
"""Owners of actives, given the owners so far (int32[T])."""
PlacesStandbys: TypeAlias = Callable[[StandbyRequest], PlacedStandbys | None]


class Strategies(NamedTuple):
    """How one group is planned.

    Attributes:
        actives: place actives with balanced counts.
        within: places actives so that each member takes a given number (int64[M]).
        standbys: place standbys.
        weight: balances by weight; None = all tasks weigh alike.
        exact: solves small groups; None = it would not pay, or the group is not small.
        refine: improves what the others have placed; None = off.
        by_kind: whether stateful and stateless actives are always placed apart.
    """

    actives: tuple[PlacesActives, ...]
    within: Callable[[Actives, Counts], Settled]
    standbys: tuple[PlacesStandbys, ...]
    weight: ByWeight | None
    exact: Exact | None
    refine: Callable[[Plan, StandbyRequest | None], None] | None
    by_kind: bool


def chosen(inputs: Inputs) -> Strategies:
    """Choose the strategies."""
    view, settings = inputs.view, inputs.view.settings
    by_cost, by_copies = ByCost(inputs), ByCopies(inputs)
    plain = inputs.racks is None and view.unrestricted
    actives: tuple[PlacesActives, ...] = (by_cost.actives,)
    if plain and inputs.bound is None:
        actives = (by_copies.actives,)
    elif inputs.racks is None and inputs.bound is None:
        actives = (partial(by_topics, inputs), by_cost.actives)
    place_standbys: tuple[PlacesStandbys, ...] = (partial(standbys, inputs.copies),)
    weight = exact = refined = None
    if not view.tasks.weigh_alike:
        weight = ByWeight(inputs, by_cost)
        actives = (weight.actives, *actives)
    elif view.unrestricted and small(len(view.tasks), inputs.capacity) and _exact_pays(inputs):
        exact = Exact(inputs)
        actives = (exact.actives, *actives)
        if not copies_in_distinct_racks(view):
            place_standbys = (exact.standbys, *place_standbys)
        if inputs.racks is None or settings.rack_aware_standby_strategy == "traffic":
            refined = partial(refine, inputs, exact)
    if settings.rack_aware_assignment_tags:
        place_standbys = (partial(tagged_standbys, inputs.copies),)
    return Strategies(
        actives=actives,
        within=by_copies.within if plain else by_cost.within,
        standbys=place_standbys,
        weight=weight,
        exact=exact,
        refine=refined,
        by_kind=inputs.racks is not None and exact is None,  # their prices differ
    )


def _exact_pays(inputs: Inputs) -> bool:
    """Whether the exact method may do better in this small group than those for large groups.

    Those are exact too, and faster, where members have equal capacity, no member has a task or
    state, no standbys are wanted and `subtopology.imbalance.max` is off. With racks, they also need
    tasks of one kind and a plan that uses learners: other plans may fix counts without racks.
    """
    view, capacity, stateful = inputs.view, inputs.capacity, inputs.view.tasks.stateful
    return bool(
        view.settings.num_standby_replicas
        or not inputs.copies.none
        or inputs.bound is not None
        or int(view.active.max(initial=NO_MEMBER)) != NO_MEMBER
        or (capacity != capacity[0]).any()
        or (inputs.racks and (inputs.at_once or (stateful != stateful[0]).any()))
    )
