"""Rack-aware placement of actives (KIP-925): the least traffic across racks for balanced counts.

The cost of a task on a member is ``traffic`` x the topic partitions it reads there without a
replica in the member's rack, plus ``overlap`` if the member does not hold it already (S4-F04). One
flow on a collapsed network finds the optimum (`muster.assignor.solvers.transport`). Balance comes
first (S4-11): counts are shares, and which member gets an extra task is part of the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.copies import Copies, Longs
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs
from muster.assignor.solvers.balance import held
from muster.assignor.solvers.shares import Counts, fair_sum, slack
from muster.assignor.solvers.spread import Window
from muster.assignor.solvers.transport import FORBIDDEN, Freight, Room, numbered, place
from muster.assignor.targets.actives import NOTHING, Actives, quality, uneven
from muster.assignor.targets.partial import restricted
from muster.assignor.targets.traffic import UNKNOWN, Reads, reads
from muster.protocol.tasks import IntArray


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of reading across racks and of moving.

    Attributes:
        traffic: of one topic partition read across racks.
        overlap: of a task on a member that does not hold it.
    """

    traffic: int
    overlap: int

    @property
    def tolls_first(self) -> bool:
        """Whether standbys are placed by traffic alone, with moves only as the tie-break.

        KIP-925's worked standby costs (EX-R9, EX-R10) are of traffic alone.
        """
        return self.traffic > self.overlap


AVAILABILITY = Prices(10, 1)
STICKINESS = Prices(1, 10)
STATELESS = Prices(1, 0)
"""Kafka's defaults: high-availability, sticky, and stateless tasks of either (S4-F02)."""


@dataclass(frozen=True, slots=True, eq=False)
class Racks:
    """Rack awareness that is switched on and has all data it needs.

    Attributes:
        inputs: what actives read.
        changelogs: what standbys read; None = no standbys are wanted.
        stateful: prices of stateful tasks.
        by_unit: whether each unit is spread over the members (`balance_subtopology`).
    """

    inputs: Reads
    changelogs: Reads | None
    stateful: Prices
    by_unit: bool

    def across(self, view: GroupView) -> tuple[Longs, Longs]:
        """int64[T, M]: partitions an active, and a standby, at a member reads across racks."""
        actives = self.inputs.across[self.inputs.class_of][:, view.rack]
        if self.changelogs is None:
            return actives, np.zeros_like(actives)
        standbys = np.zeros_like(actives)
        known = self.changelogs.class_of != UNKNOWN
        table = self.changelogs.across[self.changelogs.class_of[known]]
        standbys[known] = table[:, view.rack]
        return actives, standbys


def differ(view: GroupView, racks: Racks, usable: BoolArray) -> bool:
    """Whether traffic depends on the placement on `usable` (bool[M]) members at all (S4-F05)."""
    racks_in_use = np.unique(view.rack[usable])
    tables = [racks.inputs] if racks.changelogs is None else [racks.inputs, racks.changelogs]
    across = [table.across[:, racks_in_use] for table in tables]
    return any(bool((by_rack != by_rack[:, :1]).any()) for by_rack in across)


def racks_of(view: GroupView, default: Prices, *, standbys: bool) -> tuple[Racks | None, str]:
    """Rack awareness of a view; None where it is off, with a warning if that is not intended.

    It needs the rack of every member and of every replica of every partition that is read
    (S4-F05); without them it is off and the warning says what is missing.
    """
    settings = view.settings
    if settings.rack_aware_assignment_strategy == "none" or not len(view.tasks):
        return None, ""
    rackless = np.flatnonzero(view.rack == UNKNOWN)
    if len(rackless):
        return None, f"racks are ignored: member {view.members[rackless[0]]} has no rack"
    inputs = reads(view, changelog=False)
    missing = np.flatnonzero(inputs.class_of == UNKNOWN)
    partitions = "inputs"
    changelogs = None
    if len(missing) == 0 and standbys:
        changelogs = reads(view, changelog=True)
        missing = np.flatnonzero((changelogs.class_of == UNKNOWN) & view.tasks.stateful)
        partitions = "changelogs"
    if len(missing):
        task = view.tasks.task(int(missing[0]))
        return None, f"racks are ignored: racks of the {partitions} of task {task} are unknown"
    traffic = settings.rack_aware_assignment_traffic_cost
    overlap = settings.rack_aware_assignment_non_overlap_cost
    prices = Prices(
        default.traffic if traffic is None else traffic,
        default.overlap if overlap is None else overlap,
    )
    by_unit = settings.rack_aware_assignment_strategy == "balance_subtopology"
    return Racks(inputs, changelogs, prices, by_unit), ""


def settled_by_cost(
    view: GroupView,
    copies: Copies,
    actives: Actives,
    capacity: Counts,
    racks: Racks | None,
    prices: Prices,
    *,
    counts: Counts | None = None,
    window: Window | None = None,
) -> tuple[IntArray, int]:
    """Owners of the given actives at the least cost for balanced counts.

    Args:
        view: the group.
        copies: its copies; of equally cheap placements the one with the best copies wins.
        actives: what to place.
        capacity: int64[M], 0 = takes nothing.
        racks: None = all racks cost the same.
        prices: of traffic and moves.
        counts: int64[M], how many tasks each member takes, summing up to the tasks that some member
            may take; None = its share.
        window: tasks of each unit each member should have, before all cost; None = any number.

    Returns:
        int32[K] owners, `NO_MEMBER` where no member may take a task, and the cost.
    """
    classes = _classes(view, actives.task, racks, prices, apart=window is not None)
    owner = np.full(len(actives.task), NO_MEMBER, dtype=np.int32)
    usable = (classes.toll[:, classes.zone[capacity > 0]] != FORBIDDEN).any(axis=1)
    placeable = np.flatnonzero(usable[classes.of]).astype(np.int32)
    room = _room(view, actives, capacity) if counts is None else _exactly(counts)
    nearby = _near(view, copies, actives, placeable)
    freight = Freight(
        home=actives.home[placeable],
        kind=classes.of[placeable],
        unit=classes.unit,
        toll=classes.toll,
        zone=classes.zone,
        leaving=prices.overlap,
        task=np.searchsorted(actives.task[placeable], nearby.task).astype(np.int32),
        member=nearby.member,
        rank=quality(view, copies, nearby),
        no_copy=NOTHING,
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
        shared = restricted(view, actives.task, actives.home, capacity, actives.before)
        return Room(shared.share, 0, np.zeros_like(capacity))
    if actives.before is not None and uneven(capacity):
        bounds = fair_sum(len(actives.task), capacity, actives.before)
        if bounds is not None:
            base = bounds[0] - actives.before
            return Room(base, len(actives.task) - int(base.sum()), bounds[1] - bounds[0])
    shares_open = slack(len(actives.task), capacity, actives.before)
    base, extras = shares_open.floor, shares_open.extras
    for level in (0, 2, 4):
        first = shares_open.level == level
        if np.count_nonzero(first) >= extras:
            return Room(base, extras, first.astype(np.int64))
        base = base + first
        extras -= int(np.count_nonzero(first))
    return Room(base, 0, np.zeros_like(base))


def _near(view: GroupView, copies: Copies, actives: Actives, chosen: IntArray) -> Pairs:
    """Copies of stateful tasks at members other than their owner."""
    pairs = copies.of(actives.task[chosen])
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
