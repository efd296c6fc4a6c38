"""Inputs and result of planning: usable capacity, owners that stay, the plan and its cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from muster.assignor.copies import Copies
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, no_pairs
from muster.assignor.solvers.shares import Counts
from muster.assignor.targets.racks import STATELESS, Racks
from muster.assignor.targets.standby_request import StandbyRequest, Toll
from muster.protocol.tasks import IntArray


@dataclass(slots=True)
class Plan:
    """A target, its cost and its warnings.

    Attributes:
        active: int32[T], final owner of each active.
        standby: final standbys.
        cost: cost of racks and moves, 0 where racks do not count.
        bound: proven lower bound of the cost, each step given the steps before.
        warnings: what could not be honoured.
        provisional: whether more must move once this plan has been carried out.
    """

    active: IntArray
    standby: Pairs = field(default_factory=no_pairs)
    cost: int = 0
    bound: int = 0
    warnings: tuple[str, ...] = ()
    provisional: bool = False


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


def copies_apart(view: GroupView) -> int:
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


class PlanCost(NamedTuple):
    """Cost of racks and moves, for the steps that minimise it.

    Attributes:
        view: the group.
        racks: its rack awareness.
        request: the standbys asked for; None = none were.
        priced: whether the cost of actives was minimised.
    """

    view: GroupView
    racks: Racks
    request: StandbyRequest | None
    priced: bool

    def of(self, plan: Plan, home: IntArray) -> int:
        """Cost of a plan, with `home` (int32[T]) as owners; actives without an owner are free."""
        view, racks = self.view, self.racks
        cost = 0 if self.request is None else self.request.cost(view, plan.standby)
        if not self.priced:
            return cost
        placed = plan.active != NO_MEMBER
        inputs = racks.inputs.across[racks.inputs.class_of, view.rack[plan.active]]
        across = np.where(placed, inputs, 0)
        left = placed & (home != NO_MEMBER) & (home != plan.active)
        stateful = view.tasks.stateful
        for kind, prices in ((stateful, racks.stateful), (~stateful, STATELESS)):
            cost += prices.traffic * int(across[kind].sum())
            cost += prices.overlap * int(np.count_nonzero(left[kind]))
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
        if not self.priced:
            return least
        there = np.unique(view.rack[usable])
        across = racks.inputs.across[:, there].min(axis=1)[racks.inputs.class_of]
        traffic = np.where(view.tasks.stateful, racks.stateful.traffic, STATELESS.traffic)
        traffic[plan.active == NO_MEMBER] = 0
        return least + int((across * traffic).sum())
