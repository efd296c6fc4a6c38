"""Rack optimisation of a placement as it stands: every member keeps its counts (S4-21).

What KIP-924's utilities do, and what ``"start": "previous"`` of a problem asks for. The cost of a
copy counts moves away from the placement that is optimised.

Standbys are one exact flow. Where they must not lose diversity (a move keeps the tag values of a
task's copies distinct) and one key is configured, that is part of the flow; with several keys,
cheaper exchanges of two standbys are made until there are none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.assignor.actives import Actives
from muster.assignor.copies import Copies, code, contains
from muster.assignor.copyflow import Choices, chosen
from muster.assignor.exchange import exchanged
from muster.assignor.model import NOBODY, GroupView, Pairs, Placement
from muster.assignor.plan import changelog_toll
from muster.assignor.racks import (
    AVAILABILITY,
    STATELESS,
    STICKINESS,
    Prices,
    Racks,
    racks_of,
    settled_by_cost,
)
from muster.assignor.reasons import Moves, Reasons, changed
from muster.assignor.standby import Wanted, choices
from muster.assignor.tags import Zones
from muster.assignor.why import gained
from muster.protocol.ids import Role
from muster.protocol.tasks import IntArray

DEFAULTS = {"high-availability": AVAILABILITY, "sticky": STICKINESS}
"""Prices of the assignors that optimise racks; all others take high-availability's."""


def from_previous(view: GroupView, assignor: str) -> Placement:
    """Optimise racks from the view's own placement: actives, then standbys, then stateless.

    Args:
        view: the group; what has no owner stays without.
        assignor: whose default prices count.

    Returns:
        The placement; the view's own, with a warning, where racks are not known.
    """
    has_standbys = len(view.standby) > 0
    racks, warning = racks_of(view, DEFAULTS.get(assignor, AVAILABILITY), standbys=has_standbys)
    active, standby, cost = view.active, view.standby, 0
    if racks is not None:
        for tasks in (view.tasks.stateful, ~view.tasks.stateful):
            stateful = bool(view.tasks.stateful[tasks].any())
            prices = racks.stateful if stateful else STATELESS
            active, step = optimised_actives(
                view, racks, active, np.flatnonzero(tasks).astype(np.int32), prices
            )
            cost += step
            if stateful and has_standbys:
                standby, step = optimised_standbys(view, racks, active)
                cost += step
    return Placement(
        active=active,
        destination=active,
        standby=standby,
        reasons=_why(view, active, standby),
        unassigned=np.flatnonzero(active == NOBODY).astype(np.int32),
        cost=cost,
        cost_lower_bound=cost,
        warnings=(warning,) if warning else (),
    )


def optimised_actives(
    view: GroupView, racks: Racks, active: IntArray, tasks: IntArray, prices: Prices
) -> tuple[IntArray, int]:
    """Cheapest owners of some tasks, counts per member kept.

    Args:
        view: the group (members and tasks; its owners are not used).
        racks: what is read where, from `racks_of`.
        active: int32[T], the owners to optimise.
        tasks: tasks to optimise, ascending.
        prices: of traffic and moves.

    Returns:
        int32[T] the new owners, and the cost: the optimum for these counts.
    """
    if len(tasks) == 0:
        return active, 0
    capacity = np.ones(len(view.members), dtype=np.int64)
    owner, cost = settled_by_cost(
        view, Copies(view), Actives(tasks, active[tasks]), capacity, racks, prices,
        keep_counts=True,
    )  # fmt: skip
    settled = active.copy()
    settled[tasks] = owner
    return settled, cost


def optimised_standbys(
    view: GroupView, racks: Racks, active: IntArray, prices: Prices | None = None
) -> tuple[Pairs, int]:
    """Cheapest members for the view's standbys; counts per member and per task kept.

    Args:
        view: the group; its standbys are optimised.
        racks: what is read where, from `racks_of` with standbys.
        active: int32[T], owners no standby may stand beside.
        prices: other prices than the assignor's.

    Returns:
        The pairs and the cost.
    """
    if prices is not None:
        racks = replace(racks, stateful=prices)
    toll = changelog_toll(view, racks)
    if toll is None or len(view.standby) == 0:
        return view.standby, 0
    tasks = np.unique(view.standby.task)
    wanted = Wanted(
        tasks=tasks,
        target=active,
        copies=0,
        capacity=np.ones(len(view.members), dtype=np.int64),
        toll=toll,
        leaving=racks.stateful.overlap,
        tolls_first=racks.stateful.tolls_first,
    )
    if len(view.settings.rack_aware_assignment_tags) > 1:
        pairs = exchanged(view, Zones(view), wanted)
    else:
        pairs = _by_flow(view, wanted)
    return pairs, wanted.cost(view, pairs)


def _by_flow(view: GroupView, wanted: Wanted) -> Pairs:
    tasks = wanted.tasks
    room = np.bincount(view.standby.member, minlength=len(view.members))
    task, member = choices(view, wanted, tasks, np.flatnonzero(room).astype(np.int32))
    new = ~contains(view.standby, code(tasks[task], member))
    need = np.bincount(view.standby.task, minlength=len(view.tasks))[tasks]
    price = wanted.price(view, tasks[task], member)
    asked = Choices(
        need=need,
        room=room,
        task=task,
        member=member,
        price=price * (len(view.standby) + 1) + new,
    )
    if view.settings.rack_aware_assignment_tags:
        asked = _diverse(view, wanted, asked)
    found, _ = chosen(asked)
    return Pairs(tasks[found.task], found.member)


def _diverse(view: GroupView, wanted: Wanted, asked: Choices) -> Choices:
    """No fewer tag values per task than before."""
    zones = Zones(view)
    owner = wanted.target[wanted.tasks]
    taken = np.where(owner == NOBODY, NOBODY, zones.of[owner]).astype(np.int32)
    used = np.zeros((len(view.tasks), len(zones.value)), dtype=np.bool_)
    used[view.standby.task, zones.of[view.standby.member]] = True
    owned = wanted.tasks[owner != NOBODY]
    used[owned, zones.of[wanted.target[owned]]] = True
    distinct = used[wanted.tasks].sum(axis=1) - (owner != NOBODY)
    return replace(asked, value=zones.of, taken=taken, repeats=asked.need - distinct)


def _why(view: GroupView, active: IntArray, standby: Pairs) -> Reasons:
    def text(task: int, source: int, destination: int) -> str:
        return "less traffic across racks, counts kept"

    return Reasons(
        lambda: [
            Moves(Role.ACTIVE, *changed(view.active, active), text),
            gained(Role.STANDBY, view.standby, standby, text),
        ]
    )
