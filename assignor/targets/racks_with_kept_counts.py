"""Racks optimised with the counts of the previous placement, as KIP-924's utilities do (S1-20, 21).

Every member keeps its number of stateful actives, stateless actives and standbys, every task its
number of standbys (S4-21). Within these counts the placement is the cheapest (KIP-925). A draining
member exchanges nothing, because it may get nothing new. A member gives up copies that it may no
longer have (its topics changed, the task lost its state); an active that it gives up gets no new
owner.

Standbys are one exact flow. Where tags are configured, the copies of a task lose no distinct value
(EX-R10): one key is part of the flow; with several keys, pairs of standbys are exchanged until no
exchange is cheaper. That is a local optimum; the flow that ignores tags gives its lower bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from muster.assignor.copy_lags import Copies, code, contains
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, Placement
from muster.assignor.reason_arrays import Moves, Reasons, changed, stopped
from muster.assignor.reason_texts import gained
from muster.assignor.solvers.copyflow import Choices, chosen
from muster.assignor.solvers.fewest_moves import held
from muster.assignor.targets.least_cost import settled_by_cost
from muster.assignor.targets.plan_data import Actives, changelog_toll, usable_capacity
from muster.assignor.targets.racks import (
    AVAILABILITY,
    STATELESS,
    STICKINESS,
    Prices,
    Racks,
    racks_of,
)
from muster.assignor.targets.standby import choices
from muster.assignor.targets.standby_exchange import exchanged
from muster.assignor.targets.standby_request import StandbyRequest
from muster.assignor.targets.tag_zones import Zones
from muster.protocol.ids import Role
from muster.protocol.tasks import IntArray

OWN_PRICES = {"sticky": STICKINESS, "fallback": STICKINESS}
"""Prices of assignors that prefer few moves; all others prefer less traffic (S4-F02)."""


class FromPrevious:
    """Optimises racks, at the assignor's own prices where settings name none, and nothing else."""

    def __init__(self, assignor: str = "high-availability") -> None:
        self.name = assignor
        self.prices = OWN_PRICES.get(assignor, AVAILABILITY)

    def assign(self, view: GroupView) -> Placement:
        """The view's placement at the least cost that its counts allow."""
        all_actives = np.ones(len(view.tasks), dtype=np.bool_)
        standing = _standing(view)
        placement = optimized(standing, self.prices, actives=all_actives, standbys=True)

        def text(_task: int, source: int, _no_member: int) -> str:
            return f"{view.members[source]} does not take it any more; nothing is placed anew"

        def moves() -> list[Moves]:
            given_up = Moves(Role.ACTIVE, *stopped(view.active, standing.active), text)
            return [given_up, *_moves(standing, placement.active, placement.standby)]

        return replace(placement, reasons=Reasons(moves))


def _standing(view: GroupView) -> GroupView:
    """The view without copies and actives that its members may not have."""
    active = view.active.copy()
    owned = np.flatnonzero(active != NO_MEMBER).astype(np.int32)
    active[owned[~view.may_take(owned, active[owned])]] = NO_MEMBER

    def allowed(copies: Pairs) -> Pairs:
        keeps = view.tasks.stateful[copies.task] & view.may_take(copies.task, copies.member)
        return copies.only(keeps)

    return replace(
        view,
        active=active,
        standby=allowed(view.standby),
        learner=allowed(view.learner),
        ready=allowed(view.ready),
    )


def optimized(
    view: GroupView,
    default: Prices,
    *,
    actives: BoolArray,
    standbys: bool,
    stateless: Prices = STATELESS,
) -> Placement:
    """Optimise the given actives, and the standbys if asked.

    Args:
        view: the group; its holdings are the placement that is optimised.
        default: prices where the settings name none.
        actives: bool[T], which actives may be exchanged.
        standbys: whether standbys may be exchanged.
        stateless: prices of tasks without state.
    """
    with_standbys = standbys and len(view.standby) > 0
    racks, warning = racks_of(view, default, standbys=with_standbys)
    owner, pairs, cost, bound = view.active, view.standby, 0, 0
    if racks is not None:
        stateful = view.tasks.stateful
        # The last entry stands for no member: an active without an owner is not exchanged either.
        exchanges = np.append(usable_capacity(view) > 0, False)[view.active] & actives
        for prices, kind in ((racks.stateful, stateful), (stateless, ~stateful)):
            tasks = np.flatnonzero(kind & exchanges).astype(np.int32)
            owner, spent = _optimised_actives(view, racks, owner, tasks, prices)
            cost, bound = cost + spent, bound + spent
        if with_standbys:
            optimised = optimised_standbys(view, racks, owner)
            pairs = optimised.pairs
            cost += optimised.cost
            bound += optimised.bound
    return Placement(
        active=owner,
        destination=owner,
        standby=pairs,
        learner=_free(view.learner, owner, pairs),
        reasons=Reasons(lambda: _moves(view, owner, pairs)),
        unassigned=np.flatnonzero(owner == NO_MEMBER).astype(np.int32),
        cost=cost,
        cost_lower_bound=bound,
        warnings=(warning,) if warning else (),
    )


def _optimised_actives(
    view: GroupView, racks: Racks, active: IntArray, tasks: IntArray, prices: Prices
) -> tuple[IntArray, int]:
    """Cheapest owners of the given tasks with the same counts per member, and their cost."""
    if len(tasks) == 0:
        return active, 0
    counts, actives = held(active[tasks], len(view.members)), Actives(tasks, active[tasks])
    owner, cost = settled_by_cost(Copies(view), actives, view.capacity, racks, prices, counts)
    settled = active.copy()
    settled[tasks] = owner
    return settled, cost


class Optimised(NamedTuple):
    """Standbys, their cost, and a lower bound for these counts."""

    pairs: Pairs
    cost: int
    bound: int


def optimised_standbys(view: GroupView, racks: Racks, active: IntArray) -> Optimised:
    """Cheapest members for the view's standbys; counts per member and per task are kept.

    No standby goes to the owner of its task, `active` (int32[T]).
    """
    request = StandbyRequest(
        view=view,
        tasks=np.unique(view.standby.task),
        target=active,
        copies=0,
        capacity=usable_capacity(view),
        toll=changelog_toll(view, racks),
        leaving=racks.stateful.overlap,
        tolls_first=racks.stateful.tolls_first,
    )
    beside = (active[view.standby.task] == view.standby.member).any()
    if len(view.settings.rack_aware_assignment_tags) > 1 and not beside:
        pairs = exchanged(request)
        bound = request.cost(_by_flow(request, diverse=False))
        return Optimised(pairs, request.cost(pairs), bound)
    pairs = _by_flow(request, diverse=bool(view.settings.rack_aware_assignment_tags))
    cost = request.cost(pairs)
    return Optimised(pairs, cost, cost)


def _by_flow(request: StandbyRequest, *, diverse: bool) -> Pairs:
    view, tasks = request.view, request.tasks
    room = np.bincount(view.standby.member, minlength=len(view.members))
    task, member = choices(request, tasks, np.flatnonzero(room).astype(np.int32))
    new = ~contains(view.standby, code(tasks[task], member))
    fits = ~new | (request.capacity > 0)[member]
    task, member, new = task[fits], member[fits], new[fits]
    price = request.price(len(view.standby), tasks[task], member)
    asked = Choices(
        need=np.bincount(view.standby.task, minlength=len(view.tasks))[tasks],
        room=room,
        task=task,
        member=member,
        price=price * (len(view.standby) + 1) + new,
    )
    if diverse:
        asked = _diverse(request, asked)
    picked, missing = chosen(asked)
    if missing:  # an active moved onto the only other member: give that copy up
        return _free(view.standby, request.target, None)
    return Pairs(tasks[picked.task], picked.member)


def _diverse(request: StandbyRequest, asked: Choices) -> Choices:
    """Demand no fewer distinct values per task: of the tag, or of the rack if tags are missing."""
    view = request.view
    value = view.rack
    if all(set(view.settings.rack_aware_assignment_tags) <= set(tags) for tags in view.tags):
        value = Zones(view).of
    owner = request.target[request.tasks]
    taken = np.where(owner == NO_MEMBER, NO_MEMBER, value[owner]).astype(np.int32)
    used = np.zeros((len(view.tasks), int(value.max(initial=0)) + 1), dtype=np.bool_)
    used[view.standby.task, value[view.standby.member]] = True
    owned = request.tasks[owner != NO_MEMBER]
    used[owned, value[request.target[owned]]] = True
    distinct = used[request.tasks].sum(axis=1) - (owner != NO_MEMBER)
    return replace(asked, value=value, taken=taken, repeats=asked.need - distinct)


def _free(pairs: Pairs, owner: IntArray, others: Pairs | None) -> Pairs:
    """Copies on members that neither own the active nor have another role of the task."""
    keep = owner[pairs.task] != pairs.member
    if others is not None:
        keep &= ~contains(others, pairs.code)
    return pairs.only(keep)


def _moves(view: GroupView, active: IntArray, standby: Pairs) -> list[Moves]:
    def text(task: int, source: int, destination: int) -> str:
        return "less traffic across racks, counts kept"

    return [
        Moves(Role.ACTIVE, *changed(view.active, active), text),
        gained(Role.STANDBY, view.standby, standby, text),
    ]
