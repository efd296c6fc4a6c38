"""Rack-aware placement of actives (KIP-925): the least traffic across racks for balanced counts.

The cost of a task on a member is ``traffic`` x the topic partitions it reads there without a
replica in the member's rack, plus ``overlap`` if the member does not hold it already (S4-F04). All
of it is one flow on a collapsed network (`muster.assignor.solvers.transport`), so the answer is the
optimum and its cost the proof. Balance comes first (S4-11): counts are shares, and who gets an odd
task is part of the optimum.
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
    """What reading across racks and moving cost.

    Attributes:
        traffic: of one topic partition read across racks.
        overlap: of a task on a member that does not hold it.
    """

    traffic: int
    overlap: int

    @property
    def tolls_first(self) -> bool:
        """Whether traffic is what matters for standbys and moving them only decides between ties.

        KIP-925's worked standby costs (EX-R9, EX-R10) are of traffic alone.
        """
        return self.traffic > self.overlap


AVAILABILITY = Prices(10, 1)
STICKINESS = Prices(1, 10)
STATELESS = Prices(1, 0)
"""Kafka's defaults: high-availability, sticky, and stateless tasks of either (S4-F02)."""


@dataclass(frozen=True, slots=True, eq=False)
class Racks:
    """Rack awareness that is switched on and has all it needs.

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
        """int64[T, M]: partitions read across racks by an active, and by a standby, at a member."""
        actives = self.inputs.across[self.inputs.class_of][:, view.rack]
        if self.changelogs is None:
            return actives, np.zeros_like(actives)
        standbys = np.zeros_like(actives)
        known = self.changelogs.class_of != UNKNOWN
        table = self.changelogs.across[self.changelogs.class_of[known]]
        standbys[known] = table[:, view.rack]
        return actives, standbys


def differ(view: GroupView, racks: Racks, usable: BoolArray) -> bool:
    """Whether it makes a difference to traffic who gets what (S4-F05).

    Args:
        view: the group.
        racks: its rack awareness.
        usable: bool[M], members that take tasks.
    """
    there = np.unique(view.rack[usable])
    tables = [racks.inputs] if racks.changelogs is None else [racks.inputs, racks.changelogs]
    across = [table.across[:, there] for table in tables]
    return any(bool((each != each[:, :1]).any()) for each in across)


def racks_of(view: GroupView, default: Prices, *, standbys: bool) -> tuple[Racks | None, str]:
    """Rack awareness of a view; None where it is off, with the reason if that is not intended.

    It needs the rack of every member and of every replica of every partition that is read
    (S4-F05); without them it is skipped and a warning says what is missing.
    """
    settings = view.settings
    if settings.rack_aware_assignment_strategy == "none" or not len(view.tasks):
        return None, ""
    without = np.flatnonzero(view.rack == UNKNOWN)
    if len(without):
        return None, f"racks are ignored: member {view.members[without[0]]} has no rack"
    inputs = reads(view, changelog=False)
    missing = np.flatnonzero(inputs.class_of == UNKNOWN)
    what = "inputs"
    changelogs = None
    if len(missing) == 0 and standbys:
        changelogs = reads(view, changelog=True)
        missing = np.flatnonzero((changelogs.class_of == UNKNOWN) & view.tasks.stateful)
        what = "changelogs"
    if len(missing):
        task = view.tasks.task(int(missing[0]))
        return None, f"racks are ignored: racks of the {what} of task {task} are unknown"
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
    """Owners of some actives at the least cost for balanced counts.

    Args:
        view: the group.
        copies: its copies; among equally cheap answers the one that uses the best copies wins.
        actives: what to place.
        capacity: int64[M], 0 = takes nothing.
        racks: None = all racks cost the same.
        prices: of traffic and moves.
        counts: int64[M], how many each member takes, summing up to the tasks that some member may
            take; None = its share.
        window: tasks of each unit each member should have, before all cost; None = any number.

    Returns:
        int32[K], `NO_MEMBER` where no member may take a task, and the cost.
    """
    classes = _classes(view, actives.task, racks, prices, apart=window is not None)
    owner = np.full(len(actives.task), NO_MEMBER, dtype=np.int32)
    usable = (classes.toll[:, classes.zone[capacity > 0]] != FORBIDDEN).any(axis=1)
    chosen = np.flatnonzero(usable[classes.of]).astype(np.int32)
    room = _room(view, actives, capacity) if counts is None else _exactly(counts)
    near = _near(view, copies, actives, chosen)
    freight = Freight(
        home=actives.home[chosen],
        kind=classes.of[chosen],
        unit=classes.unit,
        toll=classes.toll,
        zone=classes.zone,
        leaving=prices.overlap,
        task=np.searchsorted(actives.task[chosen], near.task).astype(np.int32),
        member=near.member,
        rank=quality(view, copies, near),
        no_copy=NOTHING,
        spread=view.tasks.unit_of[actives.task[chosen]],
    )
    # Where topics restrict members, a unit's share of a member may be more than its quota.
    if racks is None or not racks.by_unit or not view.unrestricted:
        owner[chosen], cost = place(freight, room, window=window)
        return owner, cost
    owner[chosen], cost = _spread_by_unit(freight, room, window)
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
    open_ = slack(len(actives.task), capacity, actives.before)
    base, extras = open_.floor, open_.extras
    for level in (0, 2, 4):
        first = open_.level == level
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
    """Tasks by what they cost, members by what they cost."""

    of: IntArray
    unit: IntArray
    toll: Longs
    zone: IntArray


def _classes(
    view: GroupView, task: IntArray, racks: Racks | None, prices: Prices, *, apart: bool
) -> _Classes:
    """Classes of tasks; with `apart` no two units are in one class."""
    table = view.kinds
    count = len(table.allowed)
    rack = np.zeros_like(view.rack) if racks is None else view.rack
    across = np.zeros((1, 1), dtype=np.int64) if racks is None else racks.inputs.across
    row = np.zeros_like(task) if racks is None else racks.inputs.class_of[task]
    unit = view.tasks.unit_of[task]
    code = row.astype(np.int64) * len(view.tasks.units) + unit
    if not apart and (racks is None or not racks.by_unit) and table.allowed.all():
        code, unit = row.astype(np.int64) * len(view.tasks.units), np.zeros_like(unit)
    some, of, _ = numbered(code)
    toll = np.repeat(across[row[some]] * prices.traffic, count, axis=1)
    allowed = np.tile(table.allowed.T[unit[some]], (1, across.shape[1]))
    toll = np.where(allowed, toll, FORBIDDEN)
    zone = (rack * count + table.kind_of).astype(np.int32)
    return _Classes(of, unit[some], toll, zone)


def _spread_by_unit(freight: Freight, room: Room, window: Window | None) -> tuple[IntArray, int]:
    """At most ``ceil(S * C / n)`` tasks of a unit on a member with C of all n tasks (S4-25)."""
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
