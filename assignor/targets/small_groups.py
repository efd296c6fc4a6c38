"""Small groups placed exactly: actives, then standbys (`muster.assignor.solvers.small_exact`).

For actives these count, in this order: the cost of racks and moves where racks count (S4-F04),
tasks moved, starts without a warm copy, learners that would be lost, copies left unused (these two
in reverse order if actives start at once), tasks moved that their owner already runs, what standbys
will read across racks, the better copy. A task without an owner counts as moved if it does not go
to a caught-up member although there is one: that member runs it meanwhile, so the next generation
sees a move.

For standbys: traffic, copies restored from nothing, standbys moved, the better copy, another rack
than that of the active (S4-29).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from muster.assignor.copy_lags import Longs, code, contains
from muster.assignor.model import NO_MEMBER, BoolArray, Pairs, no_pairs
from muster.assignor.solvers.cheapest_in_box import Box
from muster.assignor.solvers.fewest_moves import held
from muster.assignor.solvers.folded_costs import folded
from muster.assignor.solvers.small_exact import boxes, cheapest, least_uneven, overlaps
from muster.assignor.solvers.spread import Spread
from muster.assignor.targets.cost_tables import OTHER_STATE, Figures
from muster.assignor.targets.plan_data import Actives, Inputs, Settled
from muster.assignor.targets.racks import STATELESS
from muster.assignor.targets.standby_request import PlacedStandbys, StandbyRequest
from muster.assignor.targets.subtopology_bounds import windows
from muster.protocol.tasks import IntArray


class Exact:
    """Strategy for small groups in which every member may take every task."""

    def __init__(self, inputs: Inputs) -> None:
        self._view, self._racks, self._bound = inputs.view, inputs.racks, inputs.bound
        self._capacity, self._home, self._at_once = inputs.capacity, inputs.home, inputs.at_once
        self._pending = inputs.pending
        usable = inputs.capacity > 0
        self._standbys = min(
            inputs.view.settings.num_standby_replicas, int(np.count_nonzero(usable)) - 1
        )
        self.figures = Figures(inputs.copies, usable)

    def actives(self, actives: Actives, _placed: IntArray) -> Settled | None:
        """The best owners; None if no balanced placement is left."""
        tasks, before, later = actives.task, actives.before, actives.later
        none_idle = not self._at_once and later < int(np.count_nonzero(self._capacity))
        choices = boxes(len(tasks), self._capacity, before, none_idle=none_idle, later=later)
        unit = self._view.tasks.unit_of[tasks] if self._racks and self._racks.by_unit else None
        rack_cost = self.priced(tasks)
        figures = [rack_cost, *self._judged(tasks)]
        cost, tie, last = self._cost(figures), self._crowding(tasks), self._dealt(tasks)
        spread = self.spread(tasks)
        best = partial(cheapest, tie=tie, unit=unit, spread=spread, last=last)
        solution = best(cost, choices=choices)
        if solution is None:
            return None
        box = solution.box
        if not self._at_once:  # better copies do not change counts (EX-H6)
            count = held(solution.member[:, 0], len(self._capacity))
            box = Box(count, count)
        with_copies = self._cost([*figures, *self._copy_figures(tasks)])
        if not np.array_equal(with_copies, cost):
            solution = best(with_copies, choices=[box]) or solution
        owner = solution.member[:, 0]
        if self._racks is None:
            return Settled(owner)
        return Settled(owner, int(rack_cost[np.arange(len(tasks)), owner].sum()))

    def filled(self) -> IntArray | None:
        """int32[T]: present owners, and the best ones of tasks without; None if racks count."""
        if self._racks is not None:
            return None
        tasks = np.arange(len(self._view.tasks), dtype=np.int32)
        count = held(self._home, len(self._capacity))
        cost = self._cost([*self._judged(tasks), *self._copy_figures(tasks)])
        cost[self._leaves(tasks)] = -1
        solution = cheapest(
            cost,
            self._crowding(tasks),
            least_uneven(len(tasks), self._capacity, count),
            spread=self.spread(tasks),
            last=self._dealt(tasks),
        )
        return None if solution is None else solution.member[:, 0]

    def _cost(self, figures: list[Longs]) -> Longs:
        """Fold the figures; those equal at all members are left out, so that the rest fit."""
        telling = [f for f in figures if (f != f[:, :1]).any()] or figures[:1]
        return np.where(self._capacity > 0, folded(telling), -1)

    def _copy_figures(self, tasks: IntArray) -> tuple[Longs, Longs]:
        return self.figures.quality[tasks], self.figures.behind[tasks]

    def priced(self, tasks: IntArray) -> Longs:
        """int64[K, M]: traffic and moves at the prices of each kind; 0 where racks do not count."""
        shape = len(tasks), len(self._capacity)
        if self._racks is None:
            return np.zeros(shape, dtype=np.int64)
        view = self._view
        stateful = view.tasks.stateful[tasks][:, None]
        prices = self._racks.stateful
        across = self._racks.inputs.across[self._racks.inputs.class_of[tasks]][:, view.rack]
        cost: Longs = across * np.where(stateful, prices.traffic, STATELESS.traffic)
        cost += self._leaves(tasks) * np.where(stateful, prices.overlap, STATELESS.overlap)
        return cost

    def _leaves(self, tasks: IntArray) -> BoolArray:
        """bool[K, M]: whether each task leaves the owner that it may stay with."""
        home = self._home[tasks][:, None]
        leaves: BoolArray = (home != NO_MEMBER) & (home != np.arange(len(self._capacity)))
        return leaves

    def _judged(self, tasks: IntArray) -> list[Longs]:
        """Moves, cold starts, learners lost, copies left unused, running moves, later reads."""
        tables = self.figures
        lost_learner = tables.learning.any(axis=1, keepdims=True) & ~tables.learning & ~tables.owned
        wasted = tables.wasted(self._standbys)
        if self._at_once:
            figures = [tables.moved, tables.cold, wasted, lost_learner]
        else:
            known = tables.somewhere_warm | tables.owned.any(axis=1, keepdims=True)
            figures = [
                tables.moved | (tables.orphaned & tables.cold),
                tables.cold & known,
                tables.outrun(self._standbys),
                lost_learner,
                wasted & known,
            ]
        if self._pending is not None and self._pending[tasks].any():
            figures.append(tables.moved & ~self._pending[:, None])
        return [*(figure[tasks].astype(np.int64) for figure in figures), self._read_later(tasks)]

    def _read_later(self, tasks: IntArray) -> Longs:
        """int64[K, M]: least number of partitions a task's standbys will read across racks."""
        shape = len(tasks), len(self._capacity)
        if self._racks is None or self._racks.changelogs is None or self._standbys <= 0:
            return np.zeros(shape, dtype=np.int64)
        _, across = self._racks.across(self._view)
        across = np.where(self._capacity > 0, across[tasks], across.max(initial=0) + 1)
        order = np.sort(across, axis=1)
        least = order[:, : self._standbys].sum(axis=1, keepdims=True)
        is_cheapest = across <= order[:, self._standbys - 1 : self._standbys]
        least_reads: Longs = least + is_cheapest * (order[:, self._standbys, None] - across)
        return least_reads

    def _dealt(self, tasks: IntArray) -> Longs:
        """int64[K, M]: last tie-break. The last tasks move; neighbours go to different members."""
        usable = self._capacity > 0
        slot = np.cumsum(usable) - 1
        rank = (slot[None, :] - np.arange(len(tasks))[:, None]) % int(usable.sum())
        leaves_early = np.arange(len(tasks), 0, -1)[:, None] * len(usable)
        rank[self.figures.owned[tasks]] = 0
        rank += self.figures.moved[tasks] * leaves_early
        return rank

    def spread(self, tasks: IntArray, beside: IntArray | None = None) -> Spread | None:
        """How the units of tasks are spread over members; None if there is one unit.

        `beside` is int32[T], owners of copies that count as placed.
        """
        unit, members = self._view.tasks.unit_of, len(self._capacity)
        if len(self._view.tasks.units) == 1:
            return None
        count = np.zeros((len(self._view.tasks.units), members), dtype=np.int64)
        if beside is not None:
            np.add.at(count, (unit[tasks], beside[tasks]), 1)
        elif self._bound is not None:
            home = self._home[tasks]
            window = windows(self._view, tasks, home, self._capacity, self._bound)
            return Spread(unit[tasks], count, self._capacity, window)
        return Spread(unit[tasks], count, self._capacity)

    def _crowding(self, tasks: IntArray) -> Longs:
        """int64[K, M]: standbys with state on each member, which should stay where they are."""
        if self._standbys <= 0:
            return np.zeros((len(tasks), len(self._capacity)), dtype=np.int64)
        standbys = (self.figures.standing & ~self.figures.bare).sum(axis=0)
        return np.tile(standbys // self._capacity.clip(1), (len(tasks), 1))

    def standbys(self, request: StandbyRequest) -> PlacedStandbys | None:
        """The best members for standbys, no racks kept apart; None if no balanced ones are left."""
        pairs = self._standby_pairs(request)
        if pairs is None:
            return None
        missing = request.copies * len(request.tasks) - len(pairs)
        return PlacedStandbys(pairs, missing, request.cost(pairs))

    def _useful(self, request: StandbyRequest, warm_owner: BoolArray) -> Longs:
        """int64[K, M]: `usefulness`; of more standbys than a task needs, first what is caught up.

        `behind`, a larger figure, may be left out.
        """
        tasks, members = request.tasks, np.arange(len(self._capacity))
        useful = self.figures.usefulness(warm_owner)[tasks]
        standing = self.figures.standing[tasks] & (self._capacity > 0)
        standing &= request.target[tasks][:, None] != members
        warm = standing & self.figures.warm[tasks]
        surplus = (standing.sum(axis=1) > self._standbys) & warm.any(axis=1)
        late = surplus[:, None] & standing & ~warm
        useful[late] = np.maximum(useful[late], OTHER_STATE)
        return useful

    def _standby_pairs(self, request: StandbyRequest) -> Pairs | None:
        tasks, members = request.tasks, len(self._capacity)
        if self._standbys <= 0 or len(tasks) == 0:
            return no_pairs()
        owner_of = np.arange(len(tasks)), np.maximum(request.target[tasks], 0)
        warm = np.ones((len(self._view.tasks), 1), dtype=np.bool_)
        warm[tasks, 0] = self.figures.warm[tasks][owner_of]
        useful = self._useful(request, warm)
        loads = held(request.target, members) if request.loads is None else request.loads
        total = len(tasks) * self._standbys
        choices = boxes(total, self._capacity, loads, fair=False)
        if not self._at_once:
            standbys_alone = boxes(total, self._capacity, fair=False)
            choices = overlaps(total, standbys_alone, choices) or choices
        all_pairs = (
            np.repeat(tasks, members),
            np.tile(np.arange(members, dtype=np.int32), len(tasks)),
        )
        prices: list[Longs] = []
        if request.toll is not None:
            toll = request.toll(*all_pairs).reshape(len(tasks), members)
            new = ~self.figures.standing[tasks] * np.int64(request.leaving)
            prices = [toll, new] if request.tolls_first else [toll + new]
        bare = self.figures.bare[tasks].astype(np.int64)
        # Without a warm owner the best copy runs the task, so it is no standby.
        behind = np.where(warm[tasks], self.figures.behind[tasks], 0)
        same_rack = request.beside_active(*all_pairs).reshape(bare.shape).astype(np.int64)
        cost = self._cost([*prices, bare, useful, behind, same_rack])
        cost[request.target[tasks][:, None] == np.arange(members)] = -1
        taken = contains(request.taken, code(*all_pairs)).reshape(cost.shape)
        cost[taken] = -1
        solution = cheapest(
            cost,
            np.zeros_like(cost),
            choices,
            need=self._standbys,
            spread=self.spread(tasks, request.target),
            last=self._dealt(tasks),
        )
        if solution is None:
            return None
        return Pairs(np.repeat(tasks, self._standbys), solution.member.ravel())
