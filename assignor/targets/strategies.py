"""The strategies of a plan, chosen once from its inputs; nothing else asks which one applies.

Strategies stand in order and the first that answers wins: one answers None where the tasks at hand
are not its own, or where it finds nothing. The last of each list always answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from muster.assignor.model import NO_MEMBER
from muster.assignor.solvers.exact import small
from muster.assignor.solvers.shares import Counts
from muster.assignor.targets.actives import ByCopies
from muster.assignor.targets.exact import Exact
from muster.assignor.targets.least_cost import ByCost
from muster.assignor.targets.plan_data import Actives, Inputs, Settled, copies_apart
from muster.assignor.targets.refinement import Refinement
from muster.assignor.targets.restricted import ByTopics
from muster.assignor.targets.standby import standbys
from muster.assignor.targets.standby_request import PlacedStandbys, StandbyRequest
from muster.assignor.targets.tags import tagged_standbys
from muster.assignor.targets.weighted import ByWeight
from muster.protocol.tasks import IntArray


class _Places(Protocol):
    def actives(self, actives: Actives, placed: IntArray, /) -> Settled | None:
        """Owners of the actives, with `placed` (int32[T]) the owners so far; None = not mine."""
        ...


class _PlacesWithin(Protocol):
    def within(self, actives: Actives, room: Counts) -> Settled:
        """Owners of the actives; each member takes `room` (int64[M]) tasks."""
        ...


class Strategies(NamedTuple):
    """How one group is planned.

    Attributes:
        actives: place actives with balanced counts.
        within: places actives within counts that are given.
        standbys: place standbys.
        weight: what balances by weight; None = all tasks weigh alike.
        exact: what solves small groups; None = it would not pay, or the group is not small.
        refinement: improves what the others have placed; None = off.
        by_kind: whether stateful and stateless actives are always placed apart.
    """

    actives: tuple[_Places, ...]
    within: _PlacesWithin
    standbys: tuple[Callable[[StandbyRequest], PlacedStandbys | None], ...]
    weight: ByWeight | None
    exact: Exact | None
    refinement: Refinement | None
    by_kind: bool


def chosen(inputs: Inputs) -> Strategies:
    """Choose the strategies."""
    view, settings = inputs.view, inputs.view.settings
    by_cost, by_copies = ByCost(inputs), ByCopies(inputs)
    plain = inputs.racks is None and view.unrestricted
    actives: tuple[_Places, ...] = (by_cost,)
    if plain and inputs.bound is None:
        actives = (by_copies,)
    elif inputs.racks is None and inputs.bound is None:
        actives = (ByTopics(inputs), by_cost)
    place_standbys: tuple[Callable[[StandbyRequest], PlacedStandbys | None], ...]
    place_standbys = (partial(standbys, view, inputs.copies),)
    weight = exact = refinement = None
    if not view.tasks.weigh_alike:
        weight = ByWeight(inputs, by_cost)
        actives = (weight, *actives)
    elif view.unrestricted and small(len(view.tasks), inputs.capacity) and _exact_pays(inputs):
        exact = Exact(inputs)
        actives = (exact, *actives)
        if not copies_apart(view):
            place_standbys = (exact.standbys, *place_standbys)
        if inputs.racks is None or settings.rack_aware_standby_strategy == "traffic":
            refinement = Refinement(inputs, exact)
    if settings.rack_aware_assignment_tags:
        place_standbys = (partial(tagged_standbys, view, inputs.copies),)
    return Strategies(
        actives=actives,
        within=by_copies if plain else by_cost,
        standbys=place_standbys,
        weight=weight,
        exact=exact,
        refinement=refinement,
        by_kind=inputs.racks is not None and exact is None,  # their prices differ
    )


def _exact_pays(inputs: Inputs) -> bool:
    """Whether the methods for large groups might be worse than the exact one for this small group.

    They are exact too, and faster, for members of equal capacity when none has a task or state, no
    standbys are wanted and `subtopology.imbalance.max` is off: counts are plain, and racks, if they
    count, are one flow where all tasks are of one kind. They are not for a plan that starts at once
    with racks, because its counts may ignore racks.
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
