"""The inputs of a plan, what strategies are asked and answer, and the plan with its cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from muster.assignor.copy_lags import Copies
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, no_pairs
from muster.assignor.solvers.fewest_moves import held
from muster.assignor.solvers.shares import Counts
from muster.assignor.targets.racks import STATELESS, Prices, Racks, differ, racks_of
from muster.assignor.targets.standby_request import StandbyRequest, Toll
from muster.assignor.targets.subtopology_bounds import bound_of
from muster.protocol.tasks import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What a plan is made from.

    Attributes:
        view: the group.
        copies: its copies.
        capacity: int64[M], 0 = takes nothing.
        home: int32[T], owners that tasks may stay with, `NO_MEMBER` = none.
        racks: None = all racks cost the same.
        bound: `subtopology.imbalance.max`, where it counts; None = it does not.
        at_once: whether actives start at their destination even without state; else a warm member
            runs them while a learner restores there.
        pending: bool[T], actives that start at their destination and interrupt nothing, because
            their owners do not run them yet; None = there are none.
    """

    view: GroupView
    copies: Copies
    capacity: Counts
    home: IntArray
    racks: Racks | None
    bound: int | None
    at_once: bool
    pending: BoolArray | None


def inputs_of(
    copies: Copies, default: Prices, *, at_once: bool, bounded: bool
) -> tuple[Inputs, tuple[str, ...]]:
    """The inputs of a `Planner`, and warnings about settings that cannot be honoured."""
    view, capacity = copies.view, usable_capacity(copies.view)
    racks, racks_off = racks_of(view, default, standbys=view.settings.num_standby_replicas > 0)
    if racks is not None and not differ(view, racks, capacity > 0):
        racks = None  # every placement reads the same across racks
    bound, bound_off = bound_of(view) if bounded else (None, "")
    home = staying_owner(copies, capacity)
    pending = view.pending if at_once else view.pending & ~view.tasks.stateful
    waiting = pending if pending.any() else None
    inputs = Inputs(view, copies, capacity, home, racks, bound, at_once, waiting)
    return inputs, tuple(warning for warning in (racks_off, bound_off) if warning)


@dataclass(frozen=True, slots=True, eq=False)
class Actives:
    """Actives of a view that are placed together.

    Attributes:
        task: int32[K], their task indexes, ascending; at least one.
        home: int32[K], owners they may stay with, `NO_MEMBER` = none.
        before: int64[M], actives placed before these; None = none.
        later: how many actives are placed after these.
    """

    task: IntArray
    home: IntArray
    before: Counts | None = None
    later: int = 0


class Settled(NamedTuple):
    """Owners of actives.

    Attributes:
        owner: int32[K], `NO_MEMBER` where no member may take a task.
        cost: of racks and moves, the least possible; None where racks do not count.
        complete: whether nothing more must move once this has been carried out.
    """

    owner: IntArray
    cost: int | None = None
    complete: bool = True


@dataclass(slots=True)
class Plan:
    """A target, its cost and its warnings.

    Attributes:
        active: int32[T], final owner of each active.
        warnings: what could not be honoured.
        standby: final standbys.
        cost: cost of racks and moves, 0 where racks do not count.
        bound: proven lower bound of the cost, each step given the steps before.
        priced: whether the cost of actives was minimised.
        provisional: whether more must move once this plan has been carried out.
    """

    active: IntArray
    warnings: tuple[str, ...]
    standby: Pairs = field(default_factory=no_pairs)
    cost: int = 0
    bound: int = 0
    priced: bool = False
    provisional: bool = False

    def take(self, tasks: IntArray, settled: Settled) -> None:
        """Write the owners of tasks (int32[K]) into the plan, and count their cost."""
        self.active[tasks if len(tasks) < len(self.active) else slice(None)] = settled.owner
        self.provisional |= not settled.complete
        self.pay(settled.cost)

    def pay(self, cost: int | None) -> None:
        """Count the least cost of actives; None = racks do not count."""
        if cost is not None:
            self.priced = True
            self.cost += cost
            self.bound += cost


def usable_capacity(view: GroupView) -> Counts:
    """int64[M]: capacity, 0 for draining members; unchanged if all members drain."""
    if not view.draining.any() or view.draining.all():
        return view.capacity
    return np.where(view.draining, 0, view.capacity)


def staying_owner(copies: Copies, capacity: Counts) -> IntArray:
    """int32[T]: present owners, `NO_MEMBER` where the owner drains or may not keep the task."""
    if capacity.all():
        return copies.owner
    usable = np.append(capacity > 0, True)  # entry -1: no member
    return np.where(usable[copies.owner], copies.owner, NO_MEMBER).astype(np.int32)


def copies_in_distinct_racks(view: GroupView) -> int:
    """How many copies of a task must be in different racks at any traffic (S4-31)."""
    if view.settings.rack_aware_standby_strategy == "traffic":
        return 0
    first = view.settings.rack_aware_standby_reliable_replicas
    every = view.settings.num_standby_replicas
    return every if first is None else min(first, every)


def changelog_toll(view: GroupView, racks: Racks) -> Toll | None:
    """Cost of reading each task's changelog at each member; None where no standbys are wanted."""
    table = racks.changelogs
    if table is None:
        return None
    return Toll(table.class_of, table.across * racks.stateful.traffic, view.rack)


def standby_request(
    inputs: Inputs, plan: Plan, taken: Pairs | None, loads: Counts | None
) -> StandbyRequest:
    """The standbys of every stateful active that has been placed.

    `taken` and `loads` are those of `StandbyRequest`; without `loads` the plan's actives count.
    """
    view, racks = inputs.view, inputs.racks
    stateful = np.flatnonzero(view.tasks.stateful & (plan.active != NO_MEMBER)).astype(np.int32)
    return StandbyRequest(
        view=view,
        tasks=stateful,
        target=plan.active,
        copies=view.settings.num_standby_replicas,
        capacity=inputs.capacity,
        may=None if view.unrestricted else view.kinds.allowed[view.kinds.kind_of],
        toll=None if racks is None else changelog_toll(view, racks),
        leaving=0 if racks is None else racks.stateful.overlap,
        loads=held(plan.active, len(inputs.capacity)) if loads is None else loads,
        copies_in_distinct_racks=copies_in_distinct_racks(view),
        tolls_first=racks is not None and racks.stateful.tolls_first,
        taken=taken or no_pairs(),
        rack=view.rack if len(view.racks) > 1 else None,
    )


class PlanCost(NamedTuple):
    """Cost of racks and moves, for the steps that minimise it.

    Attributes:
        view: the group.
        racks: its rack awareness.
        request: the standbys asked for; None = none were.
    """

    view: GroupView
    racks: Racks
    request: StandbyRequest | None

    def of(self, plan: Plan, home: IntArray) -> int:
        """Cost of a plan, with `home` (int32[T]) as owners; actives without an owner are free."""
        view, racks = self.view, self.racks
        cost = 0 if self.request is None else self.request.cost(plan.standby)
        if not plan.priced:
            return cost
        placed = plan.active != NO_MEMBER
        inputs = racks.inputs.across[racks.inputs.class_of, view.rack[plan.active]]
        across = np.where(placed, inputs, 0)
        moved = placed & (home != NO_MEMBER) & (home != plan.active)
        stateful = view.tasks.stateful
        for kind, prices in ((stateful, racks.stateful), (~stateful, STATELESS)):
            cost += prices.traffic * int(across[kind].sum())
            cost += prices.overlap * int(np.count_nonzero(moved[kind]))
        return cost

    def least(self, plan: Plan, usable: BoolArray) -> int:
        """Lower bound of the rack cost for any counts, on `usable` (bool[M]) members.

        Actives without an owner cost nothing.
        """
        view, racks = self.view, self.racks
        least = 0
        if self.request is not None and self.request.toll is not None:
            need = np.bincount(plan.standby.task, minlength=len(view.tasks))
            least = self.request.toll.least(need)
        if not plan.priced:
            return least
        used_racks = np.unique(view.rack[usable])
        across = racks.inputs.across[:, used_racks].min(axis=1)[racks.inputs.class_of]
        traffic = np.where(view.tasks.stateful, racks.stateful.traffic, STATELESS.traffic)
        traffic[plan.active == NO_MEMBER] = 0
        return least + int((across * traffic).sum())
