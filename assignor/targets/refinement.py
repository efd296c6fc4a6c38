"""Refinement of small plans: changes that make no figure worse and at least one better.

The steps of a plan are optimal one after the other (`muster.assignor.targets.plan`), not together.
Here every change is tried, and made if it improves a figure and worsens none: largest minus
smallest load, actives moved, actives that start cold, copies restored from nothing, traffic, cost
of racks and moves. A change moves or exchanges actives or standbys, or moves a standby to a member
from which another moves away. When an active goes to its standby, the standby goes to the former
owner or to a member with state.

No change loses a learner or an existing standby, or takes members further from their shares of the
actives and of the stateful ones, or makes it impossible that tasks placed later make the sum fair.
Copies stay as even as before or within 1 by capacity, units stay spread where `balance_subtopology`
is on (S4-25), and the tags of a task's copies stay as different as before (T-03).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from muster.assignor.copy_lags import Longs
from muster.assignor.model import NO_MEMBER, BoolArray, Pairs
from muster.assignor.targets.actives import uneven
from muster.assignor.targets.cost_tables import Figures
from muster.assignor.targets.plan_data import Inputs, Plan, PlanCost
from muster.assignor.targets.racks import Racks
from muster.assignor.targets.small_groups import Exact
from muster.assignor.targets.standby_request import StandbyRequest
from muster.assignor.targets.tag_zones import Zones
from muster.protocol.tasks import IntArray

_FORBIDDEN = 1 << 40

Changes: TypeAlias = tuple[Longs, Longs]
"""int64[K, N, 3], changes of N steps (task, from, to), and int64[K, F], how the figures change.

A step moves the active if `from` is its owner, else a standby.
"""


def refine(inputs: Inputs, exact: Exact, plan: Plan, request: StandbyRequest | None) -> None:
    """Make free improvements of a small group's plan until there are none.

    Members, tasks and racks are not set apart in such a group. The plan is changed; `request` is
    the standbys that were asked for, None = none were.
    """
    view = inputs.view
    if (plan.active[view.tasks.stateful] == NO_MEMBER).any() or _optimal(inputs, plan):
        return
    cost = None if inputs.racks is None else PlanCost(view, inputs.racks, request)
    before = 0 if cost is None else cost.of(plan, inputs.home)
    state = _State(inputs, exact, plan)
    while state.improve():
        pass
    standing = np.argwhere(state.standing).astype(np.int32)
    plan.active, plan.standby = state.owner, Pairs(standing[:, 0], standing[:, 1])
    if cost is not None:
        plan.cost += cost.of(plan, inputs.home) - before
        if plan.cost < plan.bound:  # the bound was proven for other counts
            plan.bound = cost.least(plan, inputs.capacity > 0)


def _optimal(inputs: Inputs, plan: Plan) -> bool:
    """Whether only traffic and balance count, and both are optimal already.

    True if no member has a task or state, no standbys are placed, and capacities are equal.
    Unequal ones may be uneven for one kind of task, and another kind may make up for it.
    """
    copies = inputs.copies
    if len(plan.standby) or not copies.none or (inputs.racks and not plan.priced):
        return False
    return not uneven(inputs.capacity) and (copies.owner == NO_MEMBER).all()


class _State:
    """A plan under refinement."""

    def __init__(self, inputs: Inputs, exact: Exact, plan: Plan) -> None:
        view, racks, capacity = inputs.view, inputs.racks, inputs.capacity
        self._active_cost, self._standby_cost = _costs(inputs, exact)
        self.owner = plan.active.copy()
        self.standing = np.zeros((len(self.owner), len(capacity)), dtype=np.bool_)
        self.standing[plan.standby.task, plan.standby.member] = True
        self._usable = np.flatnonzero(capacity > 0)
        self._capacity = capacity
        self._unit_load = np.zeros(len(capacity), dtype=np.int64)
        self._capacity_lcm = int(np.lcm.reduce(capacity[self._usable]))
        self._unit_load[self._usable] = self._capacity_lcm // capacity[self._usable]
        self._stateful = view.tasks.stateful
        self._unit = view.tasks.unit_of if racks is not None and racks.by_unit else None
        self._placed = np.flatnonzero(self.owner != NO_MEMBER)
        self._tags = Zones(view).tags if view.settings.rack_aware_assignment_tags else None
        self._unit_spread = exact.spread(np.arange(len(view.tasks), dtype=np.int32))
        self._strict = not inputs.at_once
        """Whether standbys are balanced by themselves and with the stateful actives, and no member
        is idle while there is work for all (EX-H10)."""
        self._overlap_before = self._tag_overlap()

    def improve(self) -> bool:
        """Make the best free change; False if there is none."""
        return any(self._improve(list(batch)) for batch in (self._changes(), self._chains()))

    def _improve(self, parts: list[Changes]) -> bool:
        parts = [part for part in parts if len(part[1])]
        if not parts:
            return False
        gains = np.concatenate([gain for _, gain in parts])
        changes = [change for part, _ in parts for change in part.tolist()]
        before, idle = self._unfair(), self._idle()
        for index in np.lexsort(gains.T[::-1]).tolist():
            saved = self.owner.copy(), self.standing.copy()
            self._make(changes[index])
            if self._holds(before, idle):
                return True
            self.owner, self.standing = saved
        return False

    def _changes(self) -> Iterator[Changes]:
        yield self._moves()
        yield self._swaps()
        yield self._role_exchanges()
        yield self._standby_moves()
        yield self._standby_swaps()

    # ------------------------------------------------------------ actives

    def _gain(self) -> Longs:
        """int64[K, M, F]: how the figures change when a placed task goes to a member."""
        tasks, owner = self._placed, self.owner[self._placed]
        active, standby = self._active_cost[tasks], self._standby_cost[tasks]
        rows = np.arange(len(tasks))
        gain = active - active[rows, owner][:, None]
        exchange = standby[rows, owner][:, None] - standby
        return gain + np.where(self.standing[tasks][:, :, None], exchange, 0)

    def _moves(self) -> Changes:
        gain, owner = self._gain(), self.owner[self._placed]
        spread = self._shifted(self._load())[owner]
        spread[np.arange(len(owner)), owner] = 0
        count = self._load() // self._unit_load.clip(1)
        enters = (2 * count + 1) * self._unit_load
        leaves = ((2 * count - 1) * self._unit_load)[owner]
        uneven = np.minimum(enters[None, :] - leaves[:, None], 0)  # a gain if less, else ignored
        gain = np.concatenate((spread[:, :, None], gain, uneven[:, :, None]), axis=2)
        gain[np.arange(len(owner)), owner] = 0
        row, member = np.nonzero(_free(gain))
        return _steps(self._placed[row], owner[row], member), gain[row, member]

    def _swaps(self) -> Changes:
        gain, owner = self._gain(), self.owner[self._placed]
        eager = np.flatnonzero((gain < 0).any(axis=(1, 2)))  # one of the two must gain
        both = gain[eager][:, owner] + gain[:, owner[eager]].swapaxes(0, 1)
        row, right = np.nonzero(_free(both) & (owner[eager, None] != owner))
        distinct = ~np.isin(right, eager) | (eager[row] < right)  # drop the second of equal pairs
        gains = both[row[distinct], right[distinct]]
        left, right = np.sort((eager[row[distinct]], right[distinct]), axis=0)
        order = np.lexsort((right, left))
        one, other = left[order], right[order]
        there, back = (self._placed[one], owner[one], owner[other]), self._placed[other]
        return _steps(*there, back, owner[other], owner[one]), _padded(gains[order])

    def _role_exchanges(self) -> Changes:
        """An active goes to one of its standbys, and that standby to a member with state."""
        task, member, gain = self._standby_gain()
        rows, owner = np.arange(len(task)), self.owner[task]
        active = self._active_cost[task]
        gain = _padded(gain + (active[rows, member] - active[rows, owner])[:, None])
        gain[:, :, 0] = self._shifted(self._load())[owner, member][:, None]
        row, other = np.nonzero(_free(gain) & self._open(task))
        there = task[row], owner[row], member[row]
        return _steps(*there, task[row], owner[row], other), gain[row, other]

    # ------------------------------------------------------------ standbys

    def _standby_gain(self) -> tuple[Longs, Longs, Longs]:
        """Task and member of each standby, and int64[K, M, F]: its gain at each other member."""
        task, member = np.nonzero(self.standing)
        standby = self._standby_cost[task]
        return task, member, standby - standby[np.arange(len(task)), member][:, None]

    def _open(self, task: Longs) -> BoolArray:
        """bool[K, M]: members without a copy of the task in any role."""
        open_: BoolArray = ~self.standing[task]
        open_[np.arange(len(task)), self.owner[task]] = False
        return open_

    def _standby_moves(self) -> Changes:
        task, member, gain = self._standby_gain()
        row, to = np.nonzero(_free(gain) & self._open(task))
        return _steps(task[row], member[row], to), _padded(gain[row, to])

    def _standby_swaps(self) -> Changes:
        task, member, gain = self._standby_gain()
        exchange = gain[:, member]
        open_ = self._open(task)[:, member]
        both = exchange + exchange.swapaxes(0, 1)
        one, other = np.nonzero(np.triu(_free(both) & open_ & open_.T))
        there, back = (task[one], member[one], member[other]), task[other]
        return _steps(*there, back, member[other], member[one]), _padded(both[one, other])

    def _chains(self) -> Iterator[Changes]:
        """A standby goes to a full member where it gains, and one from there to a third member."""
        task, member, gain = self._standby_gain()
        open_ = self._open(task)
        for first, middle in np.argwhere(_free(gain) & open_).tolist():
            second = np.flatnonzero((member == middle) & (task != task[first]))
            both = gain[first, middle] + gain[second]
            fits = _free(both) & open_[second]
            fits[:, member[first]] = False  # that would be an exchange
            row, to = np.nonzero(fits)
            one = np.full_like(row, first)
            through = task[one], member[one], np.full_like(row, middle)
            yield _steps(*through, task[second[row]], through[2], to), _padded(both[row, to])

    # ------------------------------------------------------------ making and judging

    def _make(self, change: list[list[int]]) -> None:
        for task, source, destination in change:
            if self.owner[task] == source:
                self.owner[task] = destination
                if self.standing[task, destination]:
                    self.standing[task, destination] = False
                    self.standing[task, source] = True
            else:
                self.standing[task, source] = False
                self.standing[task, destination] = True

    def _number(self, of: BoolArray | None = None) -> Longs:
        """int64[M]: actives each member has, or those of a kind."""
        owner = self.owner[self._placed if of is None else self._placed[of[self._placed]]]
        return np.bincount(owner, minlength=len(self._unit_load))

    def _load(self) -> Longs:
        return self._number() * self._unit_load

    def _spread(self, load: Longs) -> int:
        return int(np.ptp(load[self._usable]))

    def _shifted(self, load: Longs) -> Longs:
        """int64[M, M]: how the spread of loads changes when one task goes from row to column."""
        count = len(load)
        one = np.diag(self._unit_load)
        after = load - one[:, None, :] + one[None, :, :]
        after = after[:, :, self._usable]
        change: Longs = after.max(axis=2) - after.min(axis=2) - self._spread(load)
        change[np.arange(count), np.arange(count)] = 0
        return change

    def _unfair(self) -> tuple[int, ...]:
        """Numbers that must not grow: distance from windows and shares, unevenness of copies.

        Stateful actives count by themselves. Copies count with all actives and, if strict, by
        themselves and with the stateful actives; a spread of 1 by capacity is even.
        """
        copies = self.standing.sum(axis=0)
        actives, stateful = self._number(), self._number(self._stateful)
        spread = (
            [actives + copies, copies, stateful + copies] if self._strict else [actives + copies]
        )
        return (
            0 if self._unit_spread is None else self._unit_spread.beyond(self.owner[:, None]),
            self._beyond(actives),
            self._beyond(stateful),
            self._lacking(actives),
            *(max(self._spread(number * self._unit_load), self._capacity_lcm) for number in spread),
        )

    def _beyond(self, number: Longs) -> int:
        """Sum of the tasks that members hold below or above their due, rounded down or up."""
        number, capacity = number[self._usable], self._capacity[self._usable]
        scaled_due = int(number.sum()) * capacity
        total_capacity = capacity.sum()
        below = np.maximum(scaled_due // total_capacity - number, 0)
        return int((below + np.maximum(number - -(-scaled_due // total_capacity), 0)).sum())

    def _lacking(self, number: Longs) -> int:
        """How many more tasks would have to come later to bring every member to its share."""
        later = len(self.owner) - len(self._placed)
        if later == 0:
            return 0
        number, capacity = number[self._usable], self._capacity[self._usable]
        due = (int(number.sum()) + later) * capacity // capacity.sum()
        return max(int(np.maximum(due - number, 0).sum()) - later, 0)

    def _idle(self) -> int:
        """How many members have no active although there is one for each."""
        if not self._strict or len(self._placed) < len(self._usable):
            return 0
        return int(np.count_nonzero(self._load()[self._usable] == 0))

    def _tag_overlap(self) -> Longs:
        """int64[2, T]: how alike the copies of a task are in their tags, by two measures.

        The number of distinct values, negated (T-03); pairs of copies that share a value.
        """
        alike = np.zeros((2, len(self.owner)), dtype=np.int64)
        if self._tags is None:
            return alike
        holds = self.standing.astype(np.int64)
        holds[self._placed, self.owner[self._placed]] = 1
        for values in self._tags.T:
            copies_by_value = holds @ (values[:, None] == np.arange(int(values.max()) + 1))
            alike += (
                -np.count_nonzero(copies_by_value, axis=1),
                (copies_by_value * (copies_by_value - 1) // 2).sum(axis=1),
            )
        return alike

    def _holds(self, before: tuple[int, ...], idle: int) -> bool:
        """Whether the current state is no worse in what must not be given up."""
        unfair = self._unfair()
        if any(n > b for n, b in zip(unfair, before, strict=True)):
            return False
        if self._idle() > idle or (self._tag_overlap() > self._overlap_before).any():
            return False
        if self._unit is None:
            return True
        owner, unit = self.owner[self._placed], self._unit[self._placed]
        count = np.zeros((int(unit.max()) + 1, len(self._unit_load)), dtype=np.int64)
        np.add.at(count, (unit, owner), 1)
        size = count.sum(axis=1, keepdims=True)
        return bool((count <= -(-size * count.sum(axis=0) // len(owner))).all())


def _free(gain: Longs) -> BoolArray:
    """bool: changes that make no figure worse and at least one better."""
    worse, better = gain > 0, gain < 0
    free: BoolArray = np.logical_and(~worse.any(axis=-1), better.any(axis=-1))
    return free


def _steps(*columns: Longs | IntArray) -> Longs:
    """int64[K, N, 3]: K changes, from the columns (task, from, to) of each of their N steps."""
    steps: Longs = np.stack(columns, axis=1)
    return steps.reshape(-1, len(columns) // 3, 3)


def _padded(gain: Longs) -> Longs:
    """The figures between the two of the load, which do not change."""
    return np.pad(gain, [(0, 0)] * (gain.ndim - 1) + [(1, 1)])


def _costs(inputs: Inputs, exact: Exact) -> tuple[Longs, Longs]:
    """int64[T, M, F]: cost of each active and each standby at each member; less is better.

    The figures are moved, learnt, cold, restored, used, toll and price. Without learners an active
    starts at its destination; with them only whether a learner must restore there counts (EX-H6),
    and a task without an owner belongs to a member that is caught up (`targets.small_groups`).
    """
    figures = exact.figures
    none = np.zeros(figures.shape, dtype=np.int64)
    toll = (none, none) if inputs.racks is None else inputs.racks.across(inputs.view)
    barred = np.where(inputs.capacity > 0, 0, _FORBIDDEN)
    used = -1 * ((figures.standing & ~figures.bare) | figures.learning)
    standbys, at_once = inputs.view.settings.num_standby_replicas, inputs.at_once
    late = figures.late(standbys)
    learnt = (figures.moved & figures.stateful | late) & (not at_once)
    restored = figures.bare & (late | at_once)
    moved = figures.moved | (figures.orphaned & figures.cold & (not at_once))
    price = none if inputs.racks is None else _price(inputs.racks, toll[1], figures)
    priced = exact.priced(np.arange(len(none), dtype=np.int32))
    active = (moved + barred, learnt, figures.cold, restored, used, toll[0], priced)
    standby = (none + barred, none, none, figures.bare, used, toll[1], price)
    return np.stack(active, axis=2), np.stack(standby, axis=2)


def _price(racks: Racks, toll: Longs, figures: Figures) -> Longs:
    """int64[T, M]: cost of each standby at each member, as `StandbyRequest.cost` counts it."""
    prices = racks.stateful
    price: Longs = prices.traffic * toll
    return price if prices.tolls_first else price + prices.overlap * ~figures.standing
