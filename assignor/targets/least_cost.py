"""Actives at the least cost of racks and moves, for balanced counts (KIP-925).

One flow on a collapsed network finds the optimum (`muster.assignor.solvers.transport`). Balance
comes first (S4-11): counts are shares, and which member gets an extra task is part of the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from muster.assignor.copy_lags import Copies, Longs
from muster.assignor.model import NO_MEMBER, GroupView, Pairs
from muster.assignor.solvers.fewest_moves import held
from muster.assignor.solvers.shares import DUE_NOTHING_MORE, Counts, fair_sum, left_to_others, slack
from muster.assignor.solvers.spread import Window
from muster.assignor.solvers.transport import FORBIDDEN, Freight, Room, numbered, place
from muster.assignor.targets.actives import NO_STATE, quality, uneven
from muster.assignor.targets.plan_data import Actives, Inputs, Settled
from muster.assignor.targets.racks import STATELESS, Prices, Racks
from muster.assignor.targets.restricted import restricted
from muster.assignor.targets.subtopology_bounds import windows
from muster.protocol.tasks import IntArray

_MOVES_ONLY = Prices(0, 1)


class ByCost:
    """Strategy for groups in which racks, topics or windows count."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs

    def actives(self, actives: Actives, _placed: IntArray) -> Settled:
        """Owners at the least cost, within the windows of a bound."""
        inputs, window = self._inputs, None
        if inputs.bound is not None:
            window = windows(inputs.view, actives.task, actives.home, inputs.capacity, inputs.bound)
        return self.settled(actives, window=window)

    def within(self, actives: Actives, room: Counts) -> Settled:
        """Owners at the least cost; each member takes `room` (int64[M]) tasks.

        Where topics restrict members, balance follows from the restrictions and not from `room`.
        """
        return self.settled(actives, counts=room if self._inputs.view.unrestricted else None)

    def settled(
        self, actives: Actives, *, counts: Counts | None = None, window: Window | None = None
    ) -> Settled:
        """Owners at the least cost; the arguments are those of `settled_by_cost`."""
        inputs = self._inputs
        if counts is None and not inputs.view.unrestricted and not inputs.at_once:
            counts = self._restricted_counts(actives)
        prices = _MOVES_ONLY
        if inputs.racks is not None:
            stateful = inputs.view.tasks.stateful[actives.task].any()
            prices = inputs.racks.stateful if stateful else STATELESS
        owner, cost = settled_by_cost(
            inputs.copies, actives, inputs.capacity, inputs.racks, prices, counts, window
        )
        return Settled(owner, None if inputs.racks is None else cost)

    def _restricted_counts(self, actives: Actives) -> Counts:
        """int64[M]: shares under topics, as if tasks without an owner ran on caught-up copies.

        Such a copy runs its task meanwhile, so the next generation sees any other destination as a
        move, and takes it back.
        """
        copies, capacity = self._inputs.copies, self._inputs.capacity
        home = np.full(len(copies.view.tasks), NO_MEMBER, dtype=np.int32)
        pairs = copies.of(actives.task[actives.home == NO_MEMBER])
        warm = (capacity > 0)[pairs.member] & copies.reported_warm(pairs.task, pairs.member)
        home[pairs.task[warm][::-1]] = pairs.member[warm][::-1]  # the lowest of several members
        home = np.where(actives.home == NO_MEMBER, home[actives.task], actives.home)
        return restricted(copies.view, replace(actives, home=home), capacity).share


def settled_by_cost(
    copies: Copies,
    actives: Actives,
    capacity: Counts,
    racks: Racks | None,
    prices: Prices,
    counts: Counts | None = None,
    window: Window | None = None,
) -> tuple[IntArray, int]:
    """Owners of the given actives at the least cost for balanced counts.

    Args:
        copies: the group's copies; of equally cheap placements the one with the best copies wins.
        actives: what to place.
        capacity: int64[M], 0 = takes nothing.
        racks: None = all racks cost the same.
        prices: of traffic and moves.
        counts: int64[M], how many tasks each member takes, summing up to the tasks that some member
            may take; None = its share.
        window: how many tasks of a unit a member should have, whatever the cost; None = any number.

    Returns:
        int32[K] owners, `NO_MEMBER` where no member may take a task, and the cost.
    """
    view = copies.view
    classes = _classes(view, actives.task, racks, prices, apart=window is not None)
    owner = np.full(len(actives.task), NO_MEMBER, dtype=np.int32)
    usable = (classes.toll[:, classes.zone[capacity > 0]] != FORBIDDEN).any(axis=1)
    placeable = np.flatnonzero(usable[classes.of]).astype(np.int32)
    room = _room(view, actives, capacity) if counts is None else _exactly(counts)
    nearby = _near(copies, actives, placeable)
    freight = Freight(
        home=actives.home[placeable],
        kind=classes.of[placeable],
        unit=classes.unit,
        toll=classes.toll,
        zone=classes.zone,
        leaving=prices.overlap,
        task=np.searchsorted(actives.task[placeable], nearby.task).astype(np.int32),
        member=nearby.member,
        rank=quality(copies, nearby),
        no_copy=NO_STATE,
        spread=view.tasks.unit_of[actives.task[placeable]],
    )
    # Where topics restrict members, a member's share of a unit may exceed the quota by unit.
    if racks is None or not racks.by_unit or not view.unrestricted:
        owner[placeable], cost = place(freight, room, window=window)
        return owner, cost
    owner[placeable], cost = _spread_by_unit(freight, room, window)
    return owner, cost


def _exactly(counts: Counts) -> Room:
    return Room(counts, 0, np.zeros_like(counts))


def _room(view: GroupView, actives: Actives, capacity: Counts) -> Room:
    if not view.unrestricted:
        shared = restricted(view, actives, capacity)
        return Room(shared.share, 0, np.zeros_like(capacity))
    if actives.before is not None and uneven(capacity):
        bounds = fair_sum(len(actives.task), capacity, actives.before)
        if bounds is not None:
            base = bounds[0] - actives.before
            return Room(base, len(actives.task) - int(base.sum()), bounds[1] - bounds[0])
    shares_open = slack(len(actives.task), capacity, actives.before)
    base, extras = shares_open.floor, shares_open.extras
    together = left_to_others(len(actives.task), capacity, actives.later) if actives.later else None
    if together is not None:
        may = shares_open.level != DUE_NOTHING_MORE
        return Room(base, extras, may.astype(np.int64), together)
    for level in (0, 2, 4):
        first = shares_open.level == level
        if np.count_nonzero(first) >= extras:
            return Room(base, extras, first.astype(np.int64))
        base = base + first
        extras -= int(np.count_nonzero(first))
    return Room(base, 0, np.zeros_like(base))


def _near(copies: Copies, actives: Actives, chosen: IntArray) -> Pairs:
    """Copies of stateful tasks at members other than their owner."""
    view, pairs = copies.view, copies.of(actives.task[chosen])
    home = np.full(len(view.tasks), NO_MEMBER, dtype=np.int32)
    home[actives.task] = actives.home
    keep = (home[pairs.task] != pairs.member) & ~view.draining[pairs.member]
    return pairs.only(keep)


@dataclass(frozen=True, slots=True, eq=False)
class _Classes:
    """Tasks grouped by cost (classes), members grouped by cost (zones)."""

    of: IntArray
    unit: IntArray
    toll: Longs
    zone: IntArray


def _classes(
    view: GroupView, task: IntArray, racks: Racks | None, prices: Prices, *, apart: bool
) -> _Classes:
    """Classes of tasks; with `apart`, each class has tasks of one unit only."""
    table = view.kinds
    count = len(table.allowed)
    rack = np.zeros_like(view.rack) if racks is None else view.rack
    across = np.zeros((1, 1), dtype=np.int64) if racks is None else racks.inputs.across
    row = np.zeros_like(task) if racks is None else racks.inputs.class_of[task]
    unit = view.tasks.unit_of[task]
    code = row.astype(np.int64) * len(view.tasks.units) + unit
    if not apart and (racks is None or not racks.by_unit) and table.allowed.all():
        code, unit = row.astype(np.int64) * len(view.tasks.units), np.zeros_like(unit)
    first_of_class, of, _ = numbered(code)
    toll = np.repeat(across[row[first_of_class]] * prices.traffic, count, axis=1)
    allowed = np.tile(table.allowed.T[unit[first_of_class]], (1, across.shape[1]))
    toll = np.where(allowed, toll, FORBIDDEN)
    zone = (rack * count + table.kind_of).astype(np.int32)
    return _Classes(of, unit[first_of_class], toll, zone)


def _spread_by_unit(freight: Freight, room: Room, window: Window | None) -> tuple[IntArray, int]:
    """At most ``ceil(S * C / n)`` of a unit's S tasks on a member with C of all n tasks (S4-25)."""
    units = int(freight.unit.max(initial=0)) + 1
    if window is not None:
        units = len(window.low)
    size = np.bincount(freight.unit[freight.kind], minlength=units)
    total = max(len(freight.home), 1)
    most = -(-size[:, None] * (room.base + room.extra * (room.extras > 0)) // total)
    owner, cost = place(freight, room, most, window)
    count = held(owner, len(room.base))
    exact = -(-size[:, None] * count // total)
    if not _within(freight, owner, exact):
        owner, cost = place(freight, Room(count, 0, np.zeros_like(count)), exact, window)
    return owner, cost


def _within(freight: Freight, owner: IntArray, most: Counts) -> bool:
    count = np.zeros(most.shape, dtype=np.int64)
    np.add.at(count, (freight.unit[freight.kind], owner), 1)
    return bool((count <= most).all())
