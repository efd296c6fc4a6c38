"""Racks optimised from the previous placement as it stands, as KIP-924's utilities do (S1-20, 21).

Every member keeps as many stateful actives, stateless actives and standbys as it has, every task as
many standbys (S4-21); within these counts the placement with the least cost is found (KIP-925).

What a member may not have any more (its topics changed, the task has lost its state) does not
stand: copies are given up, actives have no owner, and nothing is placed anew.

Standbys are one exact flow. Where tags are configured, the copies of a task lose no distinct value
(EX-R10): with one key that is part of the flow; with several keys, cheaper exchanges of two
standbys are made until there are none. That is a local optimum, so the lower bound told is the cost
of the flow that leaves tags aside.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from muster.assignor.copies import Copies, code, contains
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, Placement
from muster.assignor.reasons import Moves, Reasons, changed, stopped
from muster.assignor.solvers.balance import held
from muster.assignor.solvers.copyflow import Choices, chosen
from muster.assignor.targets.actives import Actives
from muster.assignor.targets.exchange import exchanged
from muster.assignor.targets.ground import changelog_toll
from muster.assignor.targets.racks import (
    AVAILABILITY,
    STATELESS,
    STICKINESS,
    Prices,
    Racks,
    racks_of,
    settled_by_cost,
)
from muster.assignor.targets.standby import choices
from muster.assignor.targets.tags import Zones
from muster.assignor.targets.wanted import Wanted
from muster.assignor.why import gained
from muster.protocol.ids import Role
from muster.protocol.tasks import IntArray

OWN_PRICES = {"sticky": STICKINESS, "fallback": STICKINESS}
"""Prices of assignors that prefer staying; all others prefer less traffic (S4-F02)."""


class FromPrevious:
    """Optimises racks and changes nothing else.

    Args:
        assignor: whose prices count where the settings name none.
    """

    def __init__(self, assignor: str = "high-availability") -> None:
        self.name = assignor
        self.prices = OWN_PRICES.get(assignor, AVAILABILITY)

    def assign(self, view: GroupView) -> Placement:
        """The view's own placement, as cheap as its counts allow."""
        everything = np.ones(len(view.tasks), dtype=np.bool_)
        standing = _standing(view)
        found = optimized(standing, self.prices, actives=everything, standbys=True)

        def text(_task: int, source: int, _no_member: int) -> str:
            return f"{view.members[source]} does not take it any more; nothing is placed anew"

        def moves() -> list[Moves]:
            given_up = Moves(Role.ACTIVE, *stopped(view.active, standing.active), text)
            return [given_up, *_moves(standing, found.active, found.standby)]

        return replace(found, reasons=Reasons(moves))


def _standing(view: GroupView) -> GroupView:
    """The view without what its members may not have."""
    active = view.active.copy()
    owned = np.flatnonzero(active != NO_MEMBER).astype(np.int32)
    active[owned[~view.may_take(owned, active[owned])]] = NO_MEMBER

    def allowed(copies: Pairs) -> Pairs:
        kept = view.tasks.stateful[copies.task] & view.may_take(copies.task, copies.member)
        return copies.only(kept)

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
    """Optimise some actives, and the standbys if wanted.

    Args:
        view: the group; its holdings are the placement that is optimised.
        default: prices where the settings name none.
        actives: bool[T], which actives may be exchanged.
        standbys: whether standbys may be exchanged.
        stateless: prices of tasks without state.
    """
    want = standbys and len(view.standby) > 0
    racks, warning = racks_of(view, default, standbys=want)
    owner, pairs, cost, bound = view.active, view.standby, 0, 0
    if racks is not None:
        stateful = view.tasks.stateful
        for prices, kind in ((racks.stateful, stateful), (stateless, ~stateful)):
            mine = np.flatnonzero(kind & actives & (view.active != NO_MEMBER)).astype(np.int32)
            owner, spent = _optimised_actives(view, racks, owner, mine, prices)
            cost, bound = cost + spent, bound + spent
        if want:
            found = optimised_standbys(view, racks, owner)
            pairs = found.pairs
            cost += found.cost
            bound += found.bound
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
    """Cheapest owners of some tasks, counts per member kept; and the cost, the optimum."""
    if len(tasks) == 0:
        return active, 0
    owner, cost = settled_by_cost(
        view, Copies(view), Actives(tasks, active[tasks]), view.capacity, racks, prices,
        counts=held(active[tasks], len(view.members)),
    )  # fmt: skip
    settled = active.copy()
    settled[tasks] = owner
    return settled, cost


class Optimised(NamedTuple):
    """Standbys, what they cost, and what any with these counts cost at least."""

    pairs: Pairs
    cost: int
    bound: int


def optimised_standbys(view: GroupView, racks: Racks, active: IntArray) -> Optimised:
    """Cheapest members for the view's standbys; counts per member and per task kept.

    Args:
        view: the group; its standbys are optimised.
        racks: what is read where, from `racks_of` with standbys.
        active: int32[T], owners no standby may stand beside.

    Returns:
        The pairs, their cost, and a proven bound on it.
    """
    wanted = Wanted(
        tasks=np.unique(view.standby.task),
        target=active,
        copies=0,
        capacity=view.capacity,
        toll=changelog_toll(view, racks),
        leaving=racks.stateful.overlap,
        tolls_first=racks.stateful.tolls_first,
    )
    beside = (active[view.standby.task] == view.standby.member).any()
    if len(view.settings.rack_aware_assignment_tags) > 1 and not beside:
        pairs = exchanged(view, Zones(view), wanted)
        bound = wanted.cost(view, _by_flow(view, wanted, diverse=False))
        return Optimised(pairs, wanted.cost(view, pairs), bound)
    pairs = _by_flow(view, wanted, diverse=bool(view.settings.rack_aware_assignment_tags))
    cost = wanted.cost(view, pairs)
    return Optimised(pairs, cost, cost)


def _by_flow(view: GroupView, wanted: Wanted, *, diverse: bool) -> Pairs:
    tasks = wanted.tasks
    room = np.bincount(view.standby.member, minlength=len(view.members))
    task, member = choices(view, wanted, tasks, np.flatnonzero(room).astype(np.int32))
    new = ~contains(view.standby, code(tasks[task], member))
    price = wanted.price(view, len(view.standby), tasks[task], member)
    asked = Choices(
        need=np.bincount(view.standby.task, minlength=len(view.tasks))[tasks],
        room=room,
        task=task,
        member=member,
        price=price * (len(view.standby) + 1) + new,
    )
    if diverse:
        asked = _diverse(view, wanted, asked)
    found, missing = chosen(asked)
    if missing:  # an active was moved onto the only other member: that copy is given up
        return _free(view.standby, wanted.target, None)
    return Pairs(tasks[found.task], found.member)


def _diverse(view: GroupView, wanted: Wanted, asked: Choices) -> Choices:
    """No fewer values per task than before: of the tag, or of the rack where tags are not told."""
    value = view.rack
    if all(set(view.settings.rack_aware_assignment_tags) <= set(tags) for tags in view.tags):
        value = Zones(view).of
    owner = wanted.target[wanted.tasks]
    taken = np.where(owner == NO_MEMBER, NO_MEMBER, value[owner]).astype(np.int32)
    used = np.zeros((len(view.tasks), int(value.max(initial=0)) + 1), dtype=np.bool_)
    used[view.standby.task, value[view.standby.member]] = True
    owned = wanted.tasks[owner != NO_MEMBER]
    used[owned, value[wanted.target[owned]]] = True
    distinct = used[wanted.tasks].sum(axis=1) - (owner != NO_MEMBER)
    return replace(asked, value=value, taken=taken, repeats=asked.need - distinct)


def _free(pairs: Pairs, owner: IntArray, others: Pairs | None) -> Pairs:
    """Copies that do not stand on the member of the active, nor where another role is."""
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
