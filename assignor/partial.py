"""Balance where members may take some units only (`topics`): one flow with convex costs.

Every further task on a member costs more than the one before, so the flow spreads the load as
evenly as the restrictions allow; among equally even answers it keeps the most tasks in place.
"""

from __future__ import annotations

import numpy as np

from muster.assignor.balance import settle
from muster.assignor.eligible import Kinds, kinds
from muster.assignor.flow import Network
from muster.assignor.model import NOBODY, BoolArray, GroupView
from muster.assignor.shares import Counts
from muster.protocol.tasks import IntArray


def settle_by_topics(view: GroupView, owner: IntArray, capacity: Counts) -> IntArray:
    """Place the view's tasks on members that may take them; tasks nobody may take stay unowned.

    Args:
        view: the group.
        owner: int32[T], owners to stay with.
        capacity: int64[M], 0 = takes nothing.
    """
    table = kinds(view)
    group_of, allowed = _groups(table)
    group = group_of[view.tasks.unit_of]
    can = allowed[:, table.kind_of] & (capacity > 0)
    owned = owner != NOBODY
    staying = owned & can[group, owner]
    own = np.zeros(can.shape, dtype=np.int64)
    np.add.at(own, (group[staying], owner[staying]), 1)
    size = np.where(can.any(axis=1), np.bincount(group, minlength=len(can)), 0)
    counts = _counts(size, can, own, capacity)
    settled = np.full(len(owner), NOBODY, dtype=np.int32)
    for number, count in enumerate(counts):
        tasks = np.flatnonzero(group == number)
        if count.sum():
            kept = np.where(staying[tasks], owner[tasks], NOBODY).astype(np.int32)
            settled[tasks] = settle(kept, count)
    return settled


def _groups(table: Kinds) -> tuple[IntArray, BoolArray]:
    """Units that the same kinds of members may take form a group: (group per unit, bool[G, K])."""
    allowed, group_of = np.unique(table.allowed, axis=1, return_inverse=True)
    return group_of.ravel().astype(np.int32), allowed.T


def _counts(size: Counts, can: BoolArray, own: Counts, capacity: Counts) -> Counts:
    """int64[G, M]: how many tasks of each group each member gets."""
    total = int(size.sum())
    if total == 0:
        return own * 0
    network = Network()
    sink = network.node()
    groups, members = network.nodes(len(can)), network.nodes(len(capacity))
    network.supply(groups, size)
    network.supply(sink, -total)
    g, m = np.nonzero(can)
    kept = network.arcs(groups[g], members[m], own[g, m], 0)
    new = network.arcs(groups[g], members[m], size[g], 1)
    _convex(network, members, capacity, np.minimum((size[:, None] * can).sum(axis=0), total), sink)
    flow, _ = network.solve()
    counts = np.zeros(can.shape, dtype=np.int64)
    counts[g, m] = flow[kept] + flow[new]
    return counts


def _convex(network: Network, members: Counts, capacity: Counts, most: Counts, sink: int) -> None:
    """Arcs to the sink whose n-th unit costs (2n + 1) / capacity, far above any move."""
    scale = 1000 * int(np.lcm.reduce(np.unique(capacity[capacity > 0])))
    member = np.repeat(np.arange(len(members)), most)
    nth = np.arange(len(member)) - np.repeat(np.cumsum(most) - most, most)
    usable = capacity[member] > 0
    member, nth = member[usable], nth[usable]
    network.arcs(members[member], sink, 1, scale * (2 * nth + 1) // capacity[member])
