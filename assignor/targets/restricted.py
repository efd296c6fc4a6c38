"""Balance where members may take only some units (`topics`).

Members with the same topics and capacity form a *class*; units that the same members may take form
a *group*. A small flow decides how many tasks of each group go to each class: the n-th task of a
member costs more than the one before, so the load is as even as the restrictions allow; then most
tasks stay in their class. Within a class `muster.assignor.solvers.fewest_moves` places them. Up to
`MAX_ONE_BY_ONE` members x tasks the moves are the fewest; beyond, the fewest between classes.
`copy_shares` is the same flow for standbys.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import numpy as np

from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs
from muster.assignor.solvers.cheapest_in_box import Box, placed
from muster.assignor.solvers.fewest_moves import MAX_SWAPPED, dealt, held, settle, surplus, swapped
from muster.assignor.solvers.flow import Network
from muster.assignor.solvers.folded_costs import Table
from muster.assignor.solvers.shares import Counts, shares
from muster.assignor.solvers.small_exact import small
from muster.assignor.solvers.spread import Spread
from muster.assignor.targets.plan_data import Actives, Inputs, Settled
from muster.protocol.tasks import IntArray

MAX_ONE_BY_ONE = 20_000
"""Up to this many members x tasks every member is a class of its own, and moves are the fewest.

Beyond, moves are counted per class: balance is the same, but a class of members may give up a task
although one of its members has room, so there may be more moves than necessary.
"""
_FINEST = 1 << 20
"""Loads are compared in steps of 1 / this at the finest: prices must be whole numbers."""
LONG_RUNS = 64
"""From this many unowned tasks per unit on, a loop over units is faster than sorting tasks."""


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """Shares under restrictions.

    Attributes:
        group: int32[U], group of each unit.
        member_class: int32[M], class of each member.
        count: int64[G, C], how many tasks of each group each class takes.
        load: int64[M], how many tasks of each member may stay with it.
        share: int64[M], how many tasks each member takes.
        apart: whether every group has at most one class that may take it, so that an owner's tasks
            are always in the right class.
    """

    group: IntArray
    member_class: IntArray
    count: Counts
    load: Counts
    share: Counts
    apart: bool


def restricted(view: GroupView, actives: Actives, capacity: Counts) -> Shared:
    """The members' shares of actives under their topics; those no member may take are left out."""
    task, home, before = actives.task, actives.home, actives.before
    allowed, group = view.kinds.groups
    filled = np.zeros_like(capacity) if before is None else before
    one_by_one = len(capacity) * len(task) <= MAX_ONE_BY_ONE
    names = np.arange(len(capacity)) if one_by_one else np.zeros(len(capacity), dtype=np.int64)
    rows, member_class = _alike(view.kinds.kind_of, capacity, filled, names)
    can = allowed.T[:, rows[0]] & (rows[1] > 0)
    size = np.bincount(group, weights=_sizes(view, task), minlength=len(can)).astype(np.int64)
    size[~can.any(axis=1)] = 0
    load = held(home, len(capacity))
    apart = bool(can.sum(axis=1).max(initial=0) <= 1)
    if apart:
        count = size[:, None] * can
    else:
        at = np.append(member_class, NO_MEMBER).take(home)
        staying = np.flatnonzero(at != NO_MEMBER)
        pairs = group.take(_units(view, task[staying])) * can.shape[1] + at[staying]
        own = np.bincount(pairs, minlength=can.size).reshape(can.shape)
        size_of_class = np.bincount(member_class, minlength=can.shape[1])
        takers = Takers(rows[1], rows[2], size_of_class, member_class, load)
        count = counts(size, can, own, takers)
    share = np.zeros_like(capacity)
    totals: list[int] = count.sum(axis=0).tolist()
    for total, mine in zip(totals, _lists(member_class, len(totals)), strict=True):
        if total:
            share[mine] = shares(total, capacity[mine], load[mine])
    return Shared(group, member_class, count, load, share, apart)


def copy_shares(
    view: GroupView, capacity: Counts, number: Counts, present: Pairs, beside: Counts, share: Counts
) -> Counts:
    """`share`, or, where topics leave no way to fill it, shares as even as topics allow.

    Args:
        view: the group.
        capacity: int64[M], 0 = takes nothing.
        number: int64[U], copies of each unit to place.
        present: copies that may stay.
        beside: int64[M], tasks that count as load.
        share: int64[M], copies that each member takes if topics allow it.
    """
    allowed, group = view.kinds.groups
    size = np.bincount(group, weights=number, minlength=allowed.shape[1]).astype(np.int64)
    of_kind = np.bincount(view.kinds.kind_of, weights=share, minlength=len(allowed))
    if _can_be_filled(size, allowed.T, of_kind.astype(np.int64)):
        return share
    rows, member_class = _alike(view.kinds.kind_of, capacity, beside)
    can = allowed.T[:, rows[0]] & (rows[1] > 0)
    size[~can.any(axis=1)] = 0
    own = np.zeros_like(can, dtype=np.int64)
    np.add.at(own, (group[view.tasks.unit_of[present.task]], member_class[present.member]), 1)
    load = held(present.member, len(capacity))
    members = np.bincount(member_class, minlength=can.shape[1])
    takers = Takers(rows[1], rows[2], members, member_class, load)
    totals: list[int] = counts(size, can, own, takers).sum(axis=0).tolist()
    shared = np.zeros_like(capacity)
    for total, mine in zip(totals, _lists(member_class, len(totals)), strict=True):
        if total:
            shared[mine] = shares(total, capacity[mine], load[mine], beside[mine])
    return shared


def _can_be_filled(size: Counts, can: BoolArray, room: Counts) -> bool:
    """Whether classes with `room` (int64[C]) can take all tasks of each group (int64[G])."""
    network = Network()
    groups, classes, sink = network.nodes(len(size)), network.nodes(len(room)), network.node()
    network.supply(groups, size)
    network.supply(sink, -int(size.sum()))
    g, c = np.nonzero(can)
    network.arcs(groups[g], classes[c], size[g], 0)
    network.arcs(classes, sink, room, 0)
    beyond = network.arcs(groups, sink, size, 1)
    return not network.solve()[beyond].any()


def _units(view: GroupView, task: IntArray) -> IntArray:
    """int32[K]: units of ascending tasks."""
    every = len(task) == len(view.tasks)
    return view.tasks.unit_of if every else view.tasks.unit_of.take(task)


def _sizes(view: GroupView, task: IntArray) -> IntArray:
    """int[U]: how many of the ascending tasks each unit has."""
    return np.diff(np.searchsorted(task, view.tasks.start))


def _alike(kind: IntArray, *columns: Counts) -> tuple[Counts, IntArray]:
    """Distinct rows of the columns (int64[columns, C]), and the row of each member.

    Kinds are numbered densely already; a column with one value everywhere is skipped.
    """
    code = kind.astype(np.int64)
    for column in columns:
        if (column != column[0]).any():
            _, rank = np.unique(column, return_inverse=True)
            code = code * (int(rank.max()) + 1) + rank
            _, code = np.unique(code, return_inverse=True)
    rows = np.zeros((1 + len(columns), int(code.max(initial=-1)) + 1), dtype=np.int64)
    rows[0, code] = kind
    for number, column in enumerate(columns, 1):
        rows[number, code] = column
    return rows, code.astype(np.int32)


def by_topics(inputs: Inputs, actives: Actives, _placed: IntArray) -> Settled | None:
    """Owners of actives where topics restrict members and racks do not count.

    They are as even as the restrictions allow. None if a task is stateful: copies count.
    """
    view, capacity = inputs.view, inputs.capacity
    task, home = actives.task, actives.home
    if view.tasks.stateful[task].any():
        return None
    shared = restricted(view, actives, capacity)
    owner = home.copy()
    class_of, count = None, shared.load
    if not shared.apart:
        class_of = _classes(shared, home, shared.group.take(_units(view, task)))
        owner[np.append(shared.member_class, NO_MEMBER).take(home) != class_of] = NO_MEMBER
        count = held(owner, len(capacity))
    begins = np.searchsorted(task, view.tasks.start[:-1]).astype(np.int32)
    owner[surplus(owner, count, shared.share, begins)] = NO_MEMBER
    unowned = np.flatnonzero(owner == NO_MEMBER)
    if len(unowned) == 0:
        return Settled(owner)
    _place_unowned(view, task, owner, unowned, shared, _queues(shared, count), class_of)
    unowned = unowned[owner[unowned] != NO_MEMBER]
    if small(len(task), capacity):
        return Settled(_evenest(view, task, home, owner, capacity))
    if 1 < len(unowned) <= MAX_SWAPPED:
        swapped(owner, unowned, begins, len(capacity), view.kinds.may_take)
    return Settled(owner)


def _evenest(
    view: GroupView, task: IntArray, home: IntArray, owner: IntArray, capacity: Counts
) -> IntArray:
    """Owners with the same counts and as few moves, with units spread as evenly as that allows."""
    taken = np.flatnonzero(owner != NO_MEMBER)
    if len(taken) == 0:
        return owner
    unit = _units(view, task)[taken]
    members = np.arange(len(capacity), dtype=np.int32)
    leaves = (home[taken, None] != NO_MEMBER) & (home[taken, None] != members)
    may = view.kinds.allowed[view.kinds.kind_of].T[unit] & (capacity > 0)
    beside = np.zeros((len(view.tasks.units), len(capacity)), dtype=np.int64)
    cost = np.where(may, leaves.astype(np.int64), -1)
    table = Table.of(cost, np.zeros_like(cost), Spread(unit, beside, capacity), None, 1)
    counts = held(owner[taken], len(capacity))
    solution = placed(table, Box(counts, counts), 1, None)
    if solution is not None:
        owner = owner.copy()
        owner[taken] = solution[:, 0]
    return owner


def _place_unowned(
    view: GroupView,
    task: IntArray,
    owner: IntArray,
    unowned: Counts,
    shared: Shared,
    queues: list[IntArray],
    class_of: IntArray | None,
) -> None:
    """Write the owners of `unowned` tasks (indexes into `task`) out of the queues; in place.

    `class_of` is int32[K], the class of each task; None = each unit has one class.
    """
    if class_of is not None:
        _write_in_order(owner, unowned, class_of.take(unowned), queues)
    elif len(unowned) >= LONG_RUNS * len(shared.group):
        only = _only(shared).take(shared.group).tolist()
        owner[unowned] = _run_by_run(only, _sizes(view, task.take(unowned)).tolist(), queues)
    else:
        unit = view.tasks.unit_of.take(task.take(unowned))
        _write_in_order(owner, unowned, _only(shared).take(shared.group.take(unit)), queues)


def _queues(shared: Shared, count: Counts) -> list[IntArray]:
    """Per class the members that take its next tasks, in the order of `dealt`."""
    room, level = np.maximum(shared.share - count, 0), np.minimum(count, shared.share)
    orders = []
    for members in _lists(shared.member_class, shared.count.shape[1]):
        places = dealt(room.take(members), level.take(members))
        orders.append(members.take(places).astype(np.int32))
    return orders


def _write_in_order(
    owner: IntArray, unowned: Counts, class_of: IntArray, queues: list[IntArray]
) -> None:
    """Write the owners of unowned tasks: each class's tasks go to its queue in order."""
    for takers, places in zip(queues, _lists(class_of, len(queues)), strict=True):
        owner[unowned.take(places)] = takers


def _run_by_run(only: list[int], sizes: list[int], queues: list[IntArray]) -> IntArray:
    """Owners of tasks of units with one class each: slices of the queues, without sorting."""
    runs, used = [], [0] * len(queues)
    for number, size in zip(only, sizes, strict=True):
        if number == NO_MEMBER:
            runs.append(np.full(size, NO_MEMBER, dtype=np.int32))
            continue
        end = used[number] + size
        runs.append(queues[number][used[number] : end])
        used[number] = end
    return np.concatenate(runs)


def _only(shared: Shared) -> IntArray:
    """int32[G]: the one class that takes a group, `NO_MEMBER` = none."""
    taking = shared.count > 0
    return np.where(taking.any(axis=1), taking.argmax(axis=1), NO_MEMBER).astype(np.int32)


def _classes(shared: Shared, home: IntArray, group: IntArray) -> IntArray:
    """int32[K]: the class that takes each task; tasks above a member's share leave first."""
    if (shared.count > 0).sum(axis=1).max(initial=0) <= 1:
        return _only(shared).take(group)
    present = np.append(shared.member_class, NO_MEMBER).take(home)
    beyond = np.zeros(len(home), dtype=np.bool_)
    beyond[surplus(home, held(home, len(shared.share)), shared.share)] = True
    at = np.full(len(home), NO_MEMBER, dtype=np.int32)
    any_leave, of_group = bool(beyond.any()), _lists(group, len(shared.count))
    for number, row in enumerate(shared.count):
        if not row.any():
            continue
        tasks = of_group[number]
        if any_leave:
            tasks = tasks[np.argsort(beyond[tasks], kind="stable")]
        at[tasks] = settle(present[tasks], row)
    return at


def _lists(number: IntArray, count: int) -> list[Counts]:
    """Indexes of each number below `count`, ascending; other numbers are left out."""
    if count == 1:
        return [np.flatnonzero(number == 0)]
    narrow = number.astype(np.int16) if count < 1 << 15 else number  # sorted by radix
    order = np.argsort(narrow, kind="stable")
    ends = np.searchsorted(number[order], np.arange(-1, count), side="right")
    return [order[a:b] for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Takers:
    """Classes of members that are filled level by level.

    Attributes:
        capacity: int64[C], capacity of each member of a class.
        filled: int64[C], what each member holds beside these tasks.
        members: int64[C], how many members a class has.
        member_class: int32[M], class of each member.
        load: int64[M], tasks that could stay with each member.
    """

    capacity: Counts
    filled: Counts
    members: Counts
    member_class: IntArray
    load: Counts

    def staying(self, which: IntArray, level: Counts) -> Counts:
        """int64[L]: how many members of class ``which[l]`` hold more than ``level[l]`` tasks."""
        top = int(self.load.max(initial=0)) + 1
        code = np.sort(self.member_class.astype(np.int64) * (top + 1) + self.load)
        low, high = which * (top + 1) + np.minimum(level, top), (which + 1) * (top + 1) - 1
        return np.searchsorted(code, high, "right") - np.searchsorted(code, low, "right")


def counts(size: Counts, can: BoolArray, own: Counts, takers: Takers) -> Counts:
    """Share groups of tasks out evenly, each among the classes that may take it.

    Args:
        size: int64[G], tasks of each group; 0 for groups that no member may take.
        can: bool[G, C], which class may take which group.
        own: int64[G, C], tasks that may stay where they are.
        takers: the C classes.

    Returns:
        int64[G, C], as even as `can` allows, then with the fewest moves.
    """
    total = int(size.sum())
    shared_out = np.zeros(can.shape, dtype=np.int64)
    if total == 0:
        return shared_out
    network = Network()
    sink = network.node()
    groups, classes = network.nodes(len(can)), network.nodes(can.shape[1])
    network.supply(groups, size)
    network.supply(sink, -total)
    g, c = np.nonzero(can)
    staying = network.arcs(groups[g], classes[c], own[g, c], 0)
    moving = network.arcs(groups[g], classes[c], size[g], 1)
    max_load = np.where(takers.capacity > 0, (size[:, None] * can).sum(axis=0), 0)
    levels = -(-max_load // np.maximum(takers.members, 1))
    which = np.repeat(np.arange(len(levels)), levels)
    level = np.arange(len(which)) - np.repeat(np.cumsum(levels) - levels, levels)
    whole = lcm(*np.unique(takers.capacity[takers.capacity > 0]).tolist())
    level_price = (2 * total + 1) * min(whole, _FINEST)
    price = level_price * (2 * (level + takers.filled[which]) + 1) // takers.capacity[which]
    alone = takers.members[which] == 1  # the arcs above already count its moves
    stays = np.where(alone, 1, takers.staying(which.astype(np.int32), level))
    network.arcs(classes[which], sink, stays, price)
    network.arcs(classes[which], sink, takers.members[which] - stays, price + 1)
    flow = network.solve()
    shared_out[g, c] = flow[staying] + flow[moving]
    return shared_out
