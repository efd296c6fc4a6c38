"""Placing actives by one minimum-cost flow on a collapsed network.

Tasks that cost the same everywhere form a *class*; members that cost the same for every class
form a *zone* (a rack, and what they may take). The network is

    (class, owner) ──────────────► owner ─► sink     staying
          └──► class ──► zone ──► member ─► sink     going anywhere
    task with known copies ──────► member ─► sink    going where a copy is

so its size follows the numbers of owners, classes and zones, not tasks x members. A member's
share is its arc to the sink; the extra task some members get is an arc through one shared node, so
that who gets it is part of the optimum (what KIP-925 leaves fixed, S4-28).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.assignor.balance import dealt
from muster.assignor.flow import Longs, Network
from muster.assignor.model import NOBODY
from muster.assignor.shares import Counts
from muster.protocol.tasks import IntArray

FORBIDDEN = -1
"""Toll of a class in a zone it must not enter."""


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """How many tasks each member takes.

    Attributes:
        base: int64[M], what it takes in any case.
        extras: how many members take one more.
        extra: int64[M], 1 where a member may be one of them.
    """

    base: Counts
    extras: int
    extra: Counts


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Freight:
    """What is to be placed.

    Attributes:
        home: int32[K], owner a task may stay with for free, `NOBODY` = none.
        kind: int32[K], class of each task.
        toll: int64[C, Z], cost of a class in a zone, `FORBIDDEN` = must not enter.
        zone: int32[M], zone of each member.
        leaving: cost of not staying at home.
        task, member, rank: int32[P], int32[P], int64[P]: tasks (as places in `home`) with copies,
            ascending. Ranks order equally cheap answers; a task without a copy ranks `no_copy`.
        no_copy: see rank.
    """

    home: IntArray
    kind: IntArray
    toll: NDArray[np.int64]
    zone: IntArray
    leaving: int
    task: IntArray
    member: IntArray
    rank: Longs
    no_copy: int = 0


def place(freight: Freight, room: Room) -> tuple[IntArray, int]:
    """Place all freight into the room as cheaply as possible.

    Returns:
        int32[K] the owners, and the cost in tolls and leavings: the proven optimum.

    Raises:
        AssignorError: the room cannot take the freight.
    """
    if len(freight.home) == 0:
        return freight.home, 0
    scale = len(freight.home) * (freight.no_copy + 1) + 1
    group, group_of = _groups(freight)
    network = Network()
    members, sink = network.nodes(len(room.base)), network.node()
    sources, kinds = network.nodes(len(group.size)), network.nodes(len(freight.toll))
    zones = network.nodes(freight.toll.shape[1])
    network.supply(sources, group.size)
    network.supply(sink, -len(freight.home))
    toll = freight.toll * scale
    zone_of = freight.zone
    homed = np.flatnonzero(
        (group.home != NOBODY) & (freight.toll[group.kind, zone_of[group.home]] != FORBIDDEN)
    )
    home = group.home[homed]
    stay = network.arcs(
        sources[homed], members[home], group.size[homed], toll[group.kind[homed], zone_of[home]]
    )
    leave = np.where(group.home == NOBODY, 0, freight.leaving) * scale
    network.arcs(sources, kinds[group.kind], group.size, leave + freight.no_copy)
    near = freight.toll[freight.kind[freight.task], zone_of[freight.member]] != FORBIDDEN
    task, member = freight.task[near], freight.member[near]
    source = group_of[task]
    warm = network.arcs(
        sources[source],
        members[member],
        1,
        leave[source] + toll[group.kind[source], zone_of[member]] + freight.rank[near],
    )
    c, z = np.nonzero(freight.toll != FORBIDDEN)
    cross = network.arcs(kinds[c], zones[z], len(freight.home), toll[c, z])
    enter = network.arcs(zones[zone_of], members, room.base + room.extra, 0)
    network.arcs(members, sink, room.base, 0)
    if room.extras:
        pool = network.node()
        network.arcs(members, pool, room.extra, 0)
        network.arcs(pool, sink, room.extras, 0)
    flow, _ = network.solve()
    owner = np.full(len(freight.home), NOBODY, dtype=np.int32)
    chosen = flow[warm] > 0
    owner[task[chosen]] = member[chosen]
    staying = np.zeros(len(group.size), dtype=np.int64)
    staying[homed] = flow[stay]
    _stay(owner, freight, group_of, staying)
    moved = np.zeros(freight.toll.shape, dtype=np.int64)
    moved[c, z] = flow[cross]
    _enter(owner, freight, moved, flow[enter])
    return owner, cost(freight, owner)


def cost(freight: Freight, owner: IntArray) -> int:
    """Tolls and leavings of a placement of the freight."""
    tolls = int(freight.toll[freight.kind, freight.zone[owner]].sum())
    left = np.count_nonzero((freight.home != NOBODY) & (freight.home != owner))
    return tolls + freight.leaving * int(left)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    kind: IntArray
    home: IntArray
    size: Counts


def _groups(freight: Freight) -> tuple[_Group, IntArray]:
    """Interchangeable tasks together: same class, same owner, no known copies."""
    alone = np.zeros(len(freight.home), dtype=np.int64)
    alone[freight.task] = freight.task + 1
    members = len(freight.zone) + 1
    key = (freight.kind.astype(np.int64) * members + freight.home + 1) * (len(alone) + 1) + alone
    _, first, group_of, size = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    group = _Group(freight.kind[first], freight.home[first], size.astype(np.int64))
    return group, group_of.astype(np.int32)


def _stay(owner: IntArray, freight: Freight, group_of: IntArray, staying: Counts) -> None:
    """The first tasks of each group stay at home, as many as the flow says."""
    open_ = np.flatnonzero(owner == NOBODY)
    order = open_[np.argsort(group_of[open_], kind="stable")]
    groups = group_of[order]
    rank = np.arange(len(order)) - np.searchsorted(groups, groups)
    kept = order[rank < staying[groups]]
    owner[kept] = freight.home[kept]


def _enter(owner: IntArray, freight: Freight, moved: Counts, entered: Counts) -> None:
    """Deal what left home: classes to zones as the flow says, then within each zone."""
    loose = np.flatnonzero(owner == NOBODY)
    loose = loose[np.argsort(freight.kind[loose], kind="stable")]
    zones = np.repeat(np.tile(np.arange(moved.shape[1]), len(moved)), moved.ravel())
    for zone in np.unique(zones).tolist():
        tasks = np.sort(loose[zones == zone])
        mine = np.where(freight.zone == zone, entered, 0)
        owner[tasks] = dealt(mine, np.zeros_like(mine))
