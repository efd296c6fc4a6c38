"""Balance where members may take some units only (`topics`): one flow with convex costs.

Every further task on a member costs more than the one before, so the flow spreads the load as
evenly as the restrictions allow; among equally even answers it keeps the most tasks in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.balance import settle
from muster.assignor.eligible import kinds
from muster.assignor.flow import Network
from muster.assignor.model import NOBODY, BoolArray, GroupView
from muster.assignor.shares import Counts
from muster.protocol.tasks import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Restricted:
    """Tasks grouped by who may take them, and how many of each group each member should hold.

    Attributes:
        group: int32[K], group of each task.
        count: int64[G, M].
    """

    group: IntArray
    count: Counts


def restricted(
    view: GroupView, task: IntArray, home: IntArray, capacity: Counts, before: Counts | None = None
) -> Restricted:
    """Shares under restrictions.

    Args:
        view: the group.
        task: int32[K], tasks to share out; those nobody may take are shared to nobody.
        home: int32[K], owners to stay with.
        capacity: int64[M], 0 = takes nothing.
        before: int64[M], tasks shared out before these; None = none.
    """
    table = kinds(view)
    allowed, group_of = np.unique(table.allowed, axis=1, return_inverse=True)
    group = group_of.ravel().astype(np.int32)[view.tasks.unit_of[task]]
    can = allowed.T[:, table.kind_of] & (capacity > 0)
    staying = (home != NOBODY) & can[group, home]
    own = np.zeros(can.shape, dtype=np.int64)
    np.add.at(own, (group[staying], home[staying]), 1)
    size = np.where(can.any(axis=1), np.bincount(group, minlength=len(can)), 0)
    filled = np.zeros(len(capacity), dtype=np.int64) if before is None else before
    return Restricted(group, counts(size, can, own, capacity, filled))


def settle_by_topics(view: GroupView, owner: IntArray, capacity: Counts) -> IntArray:
    """Place the view's tasks on members that may take them; tasks nobody may take stay unowned.

    Args:
        view: the group.
        owner: int32[T], owners to stay with.
        capacity: int64[M], 0 = takes nothing.
    """
    shared = restricted(view, np.arange(len(owner), dtype=np.int32), owner, capacity)
    settled = np.full(len(owner), NOBODY, dtype=np.int32)
    for number, count in enumerate(shared.count):
        tasks = np.flatnonzero(shared.group == number)
        if count.sum():
            home = owner[tasks]
            kept = np.where(np.append(count > 0, False)[home], home, NOBODY)
            settled[tasks] = settle(kept.astype(np.int32), count)
    return settled


def counts(size: Counts, can: BoolArray, own: Counts, capacity: Counts, filled: Counts) -> Counts:
    """Share groups of tasks out evenly, each among those that may take it.

    Args:
        size: int64[G], tasks of each group.
        can: bool[G, M], who may take which group.
        own: int64[G, M], tasks that may stay where they are.
        capacity: int64[M].
        filled: int64[M], what each holds beside these tasks.

    Returns:
        int64[G, M], as even as `can` allows, then with the fewest moves.
    """
    total = int(size.sum())
    answer = np.zeros(can.shape, dtype=np.int64)
    if total == 0:
        return answer
    network = Network()
    sink = network.node()
    groups, members = network.nodes(len(can)), network.nodes(len(capacity))
    network.supply(groups, size)
    network.supply(sink, -total)
    g, m = np.nonzero(can)
    kept = network.arcs(groups[g], members[m], own[g, m], 0)
    new = network.arcs(groups[g], members[m], size[g], 1)
    most = np.where(capacity > 0, np.minimum((size[:, None] * can).sum(axis=0), total), 0)
    member = np.repeat(np.arange(len(members)), most)
    nth = np.arange(len(member)) - np.repeat(np.cumsum(most) - most, most) + filled[member]
    steep = (total + 1) * int(np.lcm.reduce(np.unique(capacity[capacity > 0])))
    network.arcs(members[member], sink, 1, steep * (2 * nth + 1) // capacity[member])
    flow, _ = network.solve()
    answer[g, m] = flow[kept] + flow[new]
    return answer
