"""Placing actives by one minimum-cost flow on a collapsed network.

Tasks that cost the same everywhere form a *class*; members that cost the same for every class form
a *zone* (a rack, and what they may take). The network is

    (class, owner) ──────────────► owner ─► sink     staying
          └──► class ──► zone ──► member ─► sink     going anywhere
    task with known copies ──────► member ─► sink    going where a copy is

so its size follows the numbers of owners, classes and zones, not tasks x members. A member's share
is the capacity of its arc to the sink. Some members get one more task, by an arc through one shared
node, so the choice of these members is part of the optimum (KIP-925 fixes it beforehand, S4-28).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import NO_MEMBER
from muster.assignor.solvers.fewest_moves import by_turns, dealt
from muster.assignor.solvers.flow import Longs, Network
from muster.assignor.solvers.shares import Counts, Together
from muster.assignor.solvers.spread import Window
from muster.protocol.tasks import IntArray

FORBIDDEN = -1
"""Toll of a class in a zone it must not enter."""


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """How many tasks each member takes.

    Attributes:
        base: int64[M], tasks each takes in any case.
        extras: how many members take one more.
        extra: int64[M], 1 where a member may be one of them.
        together: members that may take only so many tasks in sum; None = any number.
    """

    base: Counts
    extras: int
    extra: Counts
    together: Together | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Freight:
    """The tasks to place, and their costs.

    Attributes:
        home: int32[K], owner a task may stay with for free, `NO_MEMBER` = none.
        kind: int32[K], class of each task.
        unit: int32[C], unit each class belongs to; used with limits only.
        toll: int64[C, Z], cost of a class in a zone, `FORBIDDEN` = must not enter.
        zone: int32[M], zone of each member.
        leaving: cost of not staying at home.
        task, member, rank: int32[P], int32[P], int64[P]: tasks (as indexes into `home`) with
            copies, ascending. Ranks order equally cheap answers; without a copy the rank is
            `no_copy`.
        no_copy: see rank.
        free: class whose tasks have no state: going anywhere ranks 0; -1 = none.
        spread: int32[K], ascending: units that are spread where it costs nothing; None = none are.
    """

    home: IntArray
    kind: IntArray
    unit: IntArray
    toll: NDArray[np.int64]
    zone: IntArray
    leaving: int
    task: IntArray
    member: IntArray
    rank: Longs
    no_copy: int = 0
    free: int = -1
    spread: IntArray | None = None


def place(
    freight: Freight, room: Room, limit: Counts | None = None, window: Window | None = None
) -> tuple[IntArray, int]:
    """Place all freight into the room at the least cost.

    Args:
        freight: the tasks.
        room: the members' shares.
        limit: int64[U, M], most tasks of each unit (`Freight.unit`) on each member; None = any.
        window: how many tasks of each unit a member should have. As few as possible are outside,
            whatever that costs. None = any number.

    Returns:
        int32[K] the owners, and the cost in tolls and moves: the proven optimum.

    Raises:
        AssignorError: the room cannot take the freight.
    """
    if len(freight.home) == 0:
        return freight.home, 0
    group, group_of = _groups(freight)
    graph = _Graph(freight, room, limit, window)
    stay = graph.staying(group)
    graph.leaving(group)
    warm = graph.copies(group_of)
    cross = graph.crossing()
    enter = graph.entering()
    flow = graph.network.solve()
    owner = np.full(len(freight.home), NO_MEMBER, dtype=np.int32)
    chosen = flow[warm.arcs] > 0
    owner[freight.task[warm.of[chosen]]] = freight.member[warm.of[chosen]]
    staying = np.zeros(len(group.size), dtype=np.int64)
    staying[stay.of] = flow[stay.arcs]
    _stay(owner, freight, group_of, staying)
    moved = np.zeros(freight.toll.shape, dtype=np.int64)
    moved.ravel()[cross.of] = flow[cross.arcs]
    entered = flow[enter].reshape(graph.units, -1)
    if len(entered) == 1:
        _lowest_first(freight, room, entered[0])
    _enter(owner, freight, moved, entered)
    return owner, cost(freight, owner)


@dataclass(frozen=True, slots=True, eq=False)
class _Arcs:
    """Arcs, and the item each stands for."""

    arcs: slice
    of: Longs


class _Graph:
    """The collapsed network.

    A *gate* is a member for one unit: a limit bounds what passes it. Without limits there is one
    unit, and the gates are the members.
    """

    def __init__(
        self, freight: Freight, room: Room, limit: Counts | None, window: Window | None
    ) -> None:
        self._freight = freight
        self._scale = len(freight.home) * (freight.no_copy + 1) + 1
        self._toll = freight.toll * self._scale
        self._members, self._zones = len(room.base), freight.toll.shape[1]
        by_unit = limit if window is None else window.low
        self.units = 1 if by_unit is None else len(by_unit)
        self._unit = freight.unit * (by_unit is not None)
        self.network = network = Network()
        self._gate = network.nodes(self.units * self._members)
        members = self._gate
        if by_unit is not None:
            members = network.nodes(self._members)
            self._gates(np.tile(members, self.units), limit, window)
        self._kind = network.nodes(len(freight.toll))
        self._zone = network.nodes(self.units * self._zones)
        sink = network.node()
        network.supply(sink, -len(freight.home))
        network.arcs(members, sink, room.base, 0)
        if room.extras:
            pool = network.node()
            together = room.together and (room.together.members, room.together.room(room.base))
            network.pooled(members, pool, room.extra, together)
            network.arcs(pool, sink, room.extras, 0)
        self._source: Longs = np.empty(0, dtype=np.int64)

    def _gates(self, members: Longs, limit: Counts | None, window: Window | None) -> None:
        """Connect gates to members: bounded, and expensive for tasks outside a window."""
        most = np.full(len(members), len(self._freight.home)) if limit is None else limit.ravel()
        if window is None:
            self.network.arcs(self._gate, members, most, 0)
            return
        low, high = (np.minimum(bound.ravel(), most) for bound in window)
        highest = int(self._toll.max(initial=0)) + (self._freight.leaving + 1) * self._scale
        outside_price = highest * len(self._freight.home) + 1
        self.network.arcs(self._gate, members, low, -outside_price)
        self.network.arcs(self._gate, members, np.maximum(high - low, 0), 0)
        self.network.arcs(self._gate, members, most - np.maximum(high, low), outside_price)

    def _gate_of(self, kind: IntArray, member: IntArray) -> Longs:
        gates: Longs = self._gate[self._unit[kind].astype(np.int64) * self._members + member]
        return gates

    def staying(self, group: _Group) -> _Arcs:
        """Arcs from groups whose owner may keep them straight to the owner's gate."""
        freight = self._freight
        self._source = self.network.nodes(len(group.size))
        self.network.supply(self._source, group.size)
        toll = freight.toll[group.kind, freight.zone[group.home]]
        with_home = np.flatnonzero((group.home != NO_MEMBER) & (toll != FORBIDDEN))
        gates = self._gate_of(group.kind[with_home], group.home[with_home])
        arcs = self.network.arcs(
            self._source[with_home], gates, group.size[with_home], toll[with_home] * self._scale
        )
        return _Arcs(arcs, with_home)

    def leaving(self, group: _Group) -> None:
        """Arcs from groups to their class: tasks that move to a member without a copy."""
        price = np.where(group.home == NO_MEMBER, 0, self._freight.leaving) * self._scale
        bare = np.where(group.kind == self._freight.free, 0, self._freight.no_copy)
        self.network.arcs(self._source, self._kind[group.kind], group.size, price + bare)

    def copies(self, group_of: IntArray) -> _Arcs:
        """Arcs from tasks with known copies straight to the gates of the members that have one."""
        freight = self._freight
        kind = freight.kind[freight.task]
        toll = freight.toll[kind, freight.zone[freight.member]]
        allowed = np.flatnonzero(toll != FORBIDDEN)
        task = freight.task[allowed]
        price = np.where(freight.home[task] == NO_MEMBER, 0, freight.leaving) + toll[allowed]
        gates = self._gate_of(kind[allowed], freight.member[allowed])
        arcs = self.network.arcs(
            self._source[group_of[task]], gates, 1, price * self._scale + freight.rank[allowed]
        )
        return _Arcs(arcs, allowed)

    def crossing(self) -> _Arcs:
        """Arcs from classes to the zones they may enter, at the toll."""
        kind, zone = np.nonzero(self._freight.toll != FORBIDDEN)
        zones = self._zone[self._unit[kind].astype(np.int64) * self._zones + zone]
        arcs = self.network.arcs(
            self._kind[kind], zones, len(self._freight.home), self._toll[kind, zone]
        )
        return _Arcs(arcs, kind * self._zones + zone)

    def entering(self) -> slice:
        """Arcs from zones to the gates of their members, unit by unit."""
        zone = np.arange(self.units)[:, None] * self._zones + self._freight.zone[None, :]
        return self.network.arcs(self._zone[zone.ravel()], self._gate, len(self._freight.home), 0)


def cost(freight: Freight, owner: IntArray) -> int:
    """Tolls and moves of a placement of the freight."""
    tolls = int(freight.toll[freight.kind, freight.zone[owner]].sum())
    moved = np.count_nonzero((freight.home != NO_MEMBER) & (freight.home != owner))
    return tolls + freight.leaving * int(moved)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    kind: IntArray
    home: IntArray
    size: Counts


def _groups(freight: Freight) -> tuple[_Group, IntArray]:
    """Groups of interchangeable tasks: same class, same owner, no known copies."""
    alone = np.zeros(len(freight.home), dtype=np.int64)
    alone[freight.task] = freight.task + 1
    members = len(freight.zone) + 1
    key = (freight.kind.astype(np.int64) * members + freight.home + 1) * (len(alone) + 1) + alone
    first_of_group, group_of, size = numbered(key)
    return _Group(freight.kind[first_of_group], freight.home[first_of_group], size), group_of


def numbered(code: Longs) -> tuple[Longs, IntArray, Counts]:
    """Distinct values among int64[K] codes, ascending.

    Returns:
        int64[N] index of one occurrence of each value, int32[K] number of each code's value,
        int64[N] how often each occurs.
    """
    top = int(code.max(initial=0)) + 1
    if top > 8 * len(code) + 1024:  # the range is too wide for a table of counts
        unique = np.unique(code, return_index=True, return_inverse=True, return_counts=True)
        return unique[1].astype(np.int64), unique[2].astype(np.int32), unique[3].astype(np.int64)
    size: Counts = np.bincount(code, minlength=top)
    present = np.flatnonzero(size)
    number = np.zeros(top, dtype=np.int32)
    number[present] = np.arange(len(present), dtype=np.int32)
    value_of = number.take(code)
    occurrence: Longs = np.zeros(len(present), dtype=np.int64)
    occurrence[value_of] = np.arange(len(code))
    return occurrence, value_of, size[present]


def _stay(owner: IntArray, freight: Freight, group_of: IntArray, staying: Counts) -> None:
    """Leave the first tasks of each group at home, as many as the flow says; in place."""
    if not staying.any():
        return
    candidates = np.flatnonzero(owner == NO_MEMBER)
    groups = group_of[candidates]
    whole = staying >= np.bincount(groups, minlength=len(staying))
    stays = candidates[whole[groups] & (staying[groups] > 0)]
    owner[stays] = freight.home[stays]
    candidates = candidates[~whole[groups] & (staying[groups] > 0)]
    order = candidates[np.argsort(group_of[candidates], kind="stable")]
    groups = group_of[order]
    if freight.spread is not None and len(order):
        turn = np.cumsum(np.append(0, np.diff(groups) != 0))
        order = order[by_turns(groups, freight.spread[order], turn)]
    rank = np.arange(len(order)) - np.searchsorted(groups, groups)
    stays = order[rank < staying[groups]]
    owner[stays] = freight.home[stays]


def _lowest_first(freight: Freight, room: Room, entered: Counts) -> None:
    """Of members that differ in their id alone, give the lowest id the most tasks; in place."""
    known = np.zeros(len(entered), dtype=np.bool_)
    known[freight.home[freight.home != NO_MEMBER]] = True
    known[freight.member] = True
    alike = np.flatnonzero(~known)
    leaves = np.zeros_like(known) if room.together is None else room.together.members
    properties = room.extra[alike], room.base[alike], freight.zone[alike], leaves[alike]
    by_count = np.lexsort((-entered[alike], *properties))
    entered[alike[np.lexsort((alike, *properties))]] = entered[alike[by_count]]


def _enter(owner: IntArray, freight: Freight, moved: Counts, entered: Counts) -> None:
    """Place the tasks that left home: into zones as the flow says, then to the members of each."""
    moving = np.flatnonzero(owner == NO_MEMBER)
    kind = freight.kind[moving]
    if len(moved) < 1 << 15:  # numpy sorts 16-bit keys by radix
        kind = kind.astype(np.int16)
    moving = moving[np.argsort(kind, kind="stable")]
    zones = np.repeat(np.tile(np.arange(moved.shape[1]), len(moved)), moved.ravel())
    unit = freight.unit[freight.kind[moving]] if len(entered) > 1 else np.zeros_like(moving)
    place_of = unit * moved.shape[1] + zones
    for where in np.flatnonzero(np.bincount(place_of)).tolist():
        tasks = np.sort(moving[place_of == where])
        row = entered[where // moved.shape[1]]
        mine = np.where(freight.zone == where % moved.shape[1], row, 0)
        owner[tasks] = dealt(mine, np.zeros_like(mine))
