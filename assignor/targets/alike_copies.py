"""Choosing members for copies when most tasks are alike: one flow over groups, then a deal.

    (group of tasks with the same copies) ──► member with such a copy ─► sink
                 └──► anywhere ──► member ──────────────────────────► sink

A member without a copy costs the same whatever the task, so those choices need no arc each: a group
sends copies that no member has yet through one node. The network's size follows the distinct sets
of copies, not tasks x members.

The flow may put a new copy on the member of its own active; the deal exchanges the few such copies.
The cost of the flow is therefore a lower bound, reached when the deal finds a member for every
copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.copy_lags import Longs
from muster.assignor.model import BoolArray, Pairs
from muster.assignor.solvers.flow import Network
from muster.assignor.solvers.shares import Counts
from muster.assignor.targets.standby_request import NEW_COPY, ExistingCopies, StandbyRequest
from muster.protocol.tasks import IntArray

_COMPARED = 8
"""A task with more copies than this is a group by itself."""


def used(
    request: StandbyRequest, existing: ExistingCopies, tasks: IntArray, need: Counts, room: Counts
) -> tuple[Pairs, Counts]:
    """Which existing copies to use, and how many new ones each member takes.

    Args:
        request: what is asked for.
        existing: copies that exist, of these tasks only.
        tasks: tasks that lack copies, ascending.
        need: int64[T], copies each needs.
        room: int64[M], copies each member takes.

    Returns:
        Pairs out of `existing`, and int64[M].
    """
    unfit = _unfit(request, existing, room)[tasks]
    groups = _groups(existing, tasks, need[tasks] * 2 + unfit)
    first = groups.order[groups.start]
    place = np.searchsorted(tasks, existing.pairs.task)
    arcs = np.flatnonzero(first[groups.of[place]] == place)  # copies of each group's first task
    arcs = arcs[np.argsort(groups.of[place[arcs]], kind="stable")]
    group, member = groups.of[place[arcs]], existing.pairs.member[arcs]
    demand = groups.size * need[tasks[first]]
    scale = int(demand.sum()) + 1
    network = Network()
    takers = np.flatnonzero(room)
    nodes, members = network.nodes(len(first)), network.nodes(len(room))
    anywhere, sink = network.node(), network.node()
    network.supply(nodes, demand)
    network.supply(sink, -int(demand.sum()))
    price = existing.price[arcs] * scale
    use_existing = network.arcs(nodes[group], members[member], groups.size[group], price)
    network.arcs(nodes, anywhere, demand, NEW_COPY * scale + unfit[first])
    take_new = network.arcs(anywhere, members[takers], room[takers], 0)
    network.arcs(
        anywhere, sink, demand.sum(), 100 * NEW_COPY * scale
    )  # where there is no room for all
    network.arcs(members[takers], sink, room[takers], 0)
    flow = network.solve()
    new = np.zeros_like(room)
    new[takers] = flow[take_new]
    return _dealt(groups, tasks, group, member, flow[use_existing]), new


def _unfit(request: StandbyRequest, existing: ExistingCopies, room: Counts) -> BoolArray:
    """bool[T]: tasks for which new copies are unfit; they should keep the copies they have.

    New copies go to members that lack copies, such as a newcomer. A task that has its active or
    another copy on such a member cannot have its new copy there.
    """
    short = room > np.bincount(existing.pairs.member, minlength=len(room))
    unfit: BoolArray = np.append(short, False)[request.target]
    unfit[request.taken.task[short[request.taken.member]]] = True
    return unfit


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Tasks that are alike, as indexes into the tasks.

    Attributes:
        of: int64[K], group of each task.
        order: int64[K], tasks sorted by group.
        start, size: int64[G], where each group lies in `order`.
    """

    of: Longs
    order: Longs
    start: Longs
    size: Longs


def _groups(existing: ExistingCopies, tasks: IntArray, of: Counts) -> _Groups:
    """Groups of tasks with the same number in `of` and the same copies at the same prices."""
    task = existing.pairs.task
    nth = np.arange(len(task)) - np.searchsorted(task, task)
    place = np.searchsorted(tasks, task)
    dearest = int(existing.price.max(initial=0)) + 1
    signature = 1 + existing.pairs.member * dearest + existing.price
    for step in range(min(int(nth.max(initial=-1)) + 1, _COMPARED)):
        column = np.zeros(len(tasks), dtype=np.int64)
        column[place[nth == step]] = signature[nth == step]
        of = np.unique(of * (column.max() + 1) + column, return_inverse=True)[1]
    alone = np.zeros(len(tasks), dtype=np.int64)
    alone[place[nth >= _COMPARED]] = 1 + place[nth >= _COMPARED]
    of = np.unique(of * (len(tasks) + 1) + alone, return_inverse=True)[1]
    order = np.argsort(of, kind="stable")
    size = np.bincount(of)
    return _Groups(of, order, np.cumsum(size) - size, size)


def _dealt(groups: _Groups, tasks: IntArray, group: Longs, member: IntArray, flow: Longs) -> Pairs:
    """Copies of each group's tasks, dealt round robin, so that no task gets too many."""
    passed = np.cumsum(flow) - flow
    taken = np.flatnonzero(flow)
    before = passed - passed[np.searchsorted(group, group)]
    arc = np.repeat(taken, flow[taken])
    nth = np.arange(len(arc)) - passed[arc] + before[arc]
    position = groups.start[group[arc]] + nth % groups.size[group[arc]]
    return Pairs.of(tasks[groups.order[position]], member[arc])
