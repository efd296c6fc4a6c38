"""Choosing members for copies when most tasks are alike: one flow over groups, then a deal.

    (group of tasks with the same copies) ──► member with such a copy ─► sink
                 └──► anywhere ──► member ──────────────────────────► sink

A member where no copy is costs the same whatever the task, so those choices need no arc each: a
group sends what has no copy to use through one node. The network's size follows the distinct
copies, not tasks x members.

The flow does not see that a new copy may land beside its own active; that is left to the deal,
which exchanges the few that do. Its price is therefore the least there is, and reached whenever
the deal finds a member for every copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.copies import Longs
from muster.assignor.model import BoolArray, Pairs
from muster.assignor.solvers.flow import Network
from muster.assignor.solvers.shares import Counts
from muster.assignor.targets.wanted import NEW, Near, Wanted
from muster.protocol.tasks import IntArray

_COMPARED = 8
"""Tasks with more copies than this are a group each."""


def used(
    wanted: Wanted, near: Near, tasks: IntArray, need: Counts, room: Counts
) -> tuple[Pairs, Counts]:
    """Which existing copies to use, and how many new ones each member takes.

    Args:
        wanted: what is asked for.
        near: copies that exist, of these tasks only.
        tasks: tasks that lack copies, ascending.
        need: int64[T], copies each needs.
        room: int64[M], copies each member takes.

    Returns:
        Pairs out of `near`, and int64[M].
    """
    unfit = _unfit(wanted, near, room)[tasks]
    groups = _groups(near, tasks, need[tasks] * 2 + unfit)
    first = groups.order[groups.start]
    place = np.searchsorted(tasks, near.pairs.task)
    arcs = np.flatnonzero(first[groups.of[place]] == place)  # those of each group's first task
    arcs = arcs[np.argsort(groups.of[place[arcs]], kind="stable")]
    group, member = groups.of[place[arcs]], near.pairs.member[arcs]
    asked = groups.size * need[tasks[first]]
    scale = int(asked.sum()) + 1
    network = Network()
    takers = np.flatnonzero(room)
    nodes, members = network.nodes(len(first)), network.nodes(len(room))
    anywhere, sink = network.node(), network.node()
    network.supply(nodes, asked)
    network.supply(sink, -int(asked.sum()))
    price = near.price[arcs] * scale
    use = network.arcs(nodes[group], members[member], groups.size[group], price)
    network.arcs(nodes, anywhere, asked, NEW * scale + unfit[first])
    far = network.arcs(anywhere, members[takers], room[takers], 0)
    network.arcs(anywhere, sink, asked.sum(), 100 * NEW * scale)  # where there is no room for all
    network.arcs(members[takers], sink, room[takers], 0)
    flow, _ = network.solve()
    new = np.zeros_like(room)
    new[takers] = flow[far]
    return _dealt(groups, tasks, group, member, flow[use]), new


def _unfit(wanted: Wanted, near: Near, room: Counts) -> BoolArray:
    """bool[T]: tasks better left with the copies they have.

    What is new goes to members short of copies, a newcomer for example; a task that belongs to
    such a member, or has another copy there, could not go to it.
    """
    short = room > np.bincount(near.pairs.member, minlength=len(room))
    unfit: BoolArray = np.append(short, False)[wanted.target]
    unfit[wanted.taken.task[short[wanted.taken.member]]] = True
    return unfit


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Tasks that are alike, as places among the tasks.

    Attributes:
        of: int64[K], group of each task.
        order: int64[K], tasks sorted by group.
        start, size: int64[G], where each group lies in `order`.
    """

    of: Longs
    order: Longs
    start: Longs
    size: Longs


def _groups(near: Near, tasks: IntArray, of: Counts) -> _Groups:
    """Tasks that start with the same number in `of` and have the same copies at the same prices."""
    task = near.pairs.task
    nth = np.arange(len(task)) - np.searchsorted(task, task)
    place = np.searchsorted(tasks, task)
    dearest = int(near.price.max(initial=0)) + 1
    what = 1 + near.pairs.member * dearest + near.price
    for step in range(min(int(nth.max(initial=-1)) + 1, _COMPARED)):
        column = np.zeros(len(tasks), dtype=np.int64)
        column[place[nth == step]] = what[nth == step]
        of = np.unique(of * (column.max() + 1) + column, return_inverse=True)[1]
    many = np.zeros(len(tasks), dtype=np.int64)
    many[place[nth >= _COMPARED]] = 1 + place[nth >= _COMPARED]
    of = np.unique(of * (len(tasks) + 1) + many, return_inverse=True)[1]
    order = np.argsort(of, kind="stable")
    size = np.bincount(of)
    return _Groups(of, order, np.cumsum(size) - size, size)


def _dealt(groups: _Groups, tasks: IntArray, group: Longs, member: IntArray, flow: Longs) -> Pairs:
    """Copies of the tasks of each group, round and round, so that no task gets too many."""
    passed = np.cumsum(flow) - flow
    taken = np.flatnonzero(flow)
    before = passed - passed[np.searchsorted(group, group)]
    arc = np.repeat(taken, flow[taken])
    nth = np.arange(len(arc)) - passed[arc] + before[arc]
    here = groups.start[group[arc]] + nth % groups.size[group[arc]]
    return Pairs.of(tasks[groups.order[here]], member[arc])
