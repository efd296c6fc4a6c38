"""Placing small groups: actives, then standbys, each exactly (`muster.assignor.solvers.exact`).

The order of what counts, for actives: what racks and moves cost where racks count (S4-F04), tasks
moved, starts without a caught-up copy, copies left without use, learners on their way that would be
lost; at last the better copy. A task whose owner is gone belongs to a member that is caught up: a
destination elsewhere is a move still to come, because that is what the next generation will see.

For standbys: traffic, copies restored from nothing, standbys moved, whose copy is better, then
another rack than that of the active (S4-29).
"""

from __future__ import annotations

import numpy as np

from muster.assignor.copies import Copies, Longs, code, contains
from muster.assignor.model import NO_MEMBER, GroupView, Pairs, no_pairs
from muster.assignor.solvers.balance import held
from muster.assignor.solvers.exact import boxes, cheapest, least_uneven, overlaps
from muster.assignor.solvers.shares import Counts
from muster.assignor.solvers.spread import Spread
from muster.assignor.solvers.within import Box, folded
from muster.assignor.targets.figures import Figures
from muster.assignor.targets.racks import STATELESS, Racks
from muster.assignor.targets.wanted import Wanted
from muster.assignor.targets.windows import windows
from muster.protocol.tasks import IntArray


class SmallGroup:
    """A group small enough to be placed exactly, whose members may all take everything.

    Args:
        view: the group.
        copies: its copies.
        capacity: int64[M], 0 = takes nothing.
        home: int32[T], owners tasks may stay with.
        racks: None = all racks cost the same.
        bound: `subtopology.imbalance.max`, where it counts; None = it does not.
        at_once: whether actives start where they belong, with state or without; else a member
            caught up runs them while a learner restores there.
    """

    def __init__(
        self,
        view: GroupView,
        copies: Copies,
        capacity: Counts,
        home: IntArray,
        racks: Racks | None,
        bound: int | None,
        *,
        at_once: bool,
    ) -> None:
        self._view = view
        self._capacity = capacity
        self._home = home
        self._racks = racks
        self._bound = bound
        self._at_once = at_once
        self._standbys = min(
            view.settings.num_standby_replicas, int(np.count_nonzero(capacity)) - 1
        )
        self.figures = Figures(view, copies, capacity > 0)

    def actives(self, tasks: IntArray, before: Counts | None) -> tuple[IntArray, int] | None:
        """The best owners of some tasks.

        Args:
            tasks: what to place, ascending.
            before: int64[M], actives placed before these; None = none.

        Returns:
            int32[K], and what racks and moves cost; None if no balanced answer is left.
        """
        later = len(self._view.tasks) - len(tasks) if before is None else 0
        busy = not self._at_once and later < int(np.count_nonzero(self._capacity))
        choices = boxes(len(tasks), self._capacity, before, none_idle=busy)
        unit = self._view.tasks.unit_of[tasks] if self._racks and self._racks.by_unit else None
        priced = self._priced(tasks)
        judged = [priced, *self._judged(tasks)]
        cost, tie, last = self._cost(judged), self._crowding(tasks), self._dealt(tasks)
        spread = self.spread(tasks)
        found = cheapest(cost, tie, choices, unit=unit, spread=spread, last=last)
        if found is None:
            return None
        box = found.box
        if not self._at_once:  # whose copy is better does not decide who holds how many (EX-H6)
            count = held(found.member[:, 0], len(self._capacity))
            box = Box(count, count)
        closer = self._cost([*judged, self.figures.quality[tasks], self.figures.behind[tasks]])
        if not np.array_equal(closer, cost):
            found = cheapest(closer, tie, [box], unit=unit, spread=spread, last=last) or found
        owner = found.member[:, 0]
        return owner, int(priced[np.arange(len(tasks)), owner].sum())

    def filled(self, tasks: IntArray) -> IntArray | None:
        """The best owners of tasks no member has, while all members keep what they have.

        Args:
            tasks: all tasks.
        """
        count = held(self._home[tasks], len(self._capacity))
        better = self.figures.quality[tasks], self.figures.behind[tasks]
        cost = self._cost([*self._judged(tasks), *better])
        kept = (self._home[tasks] != NO_MEMBER)[:, None] & (
            self._home[tasks][:, None] != np.arange(len(self._capacity))
        )
        cost[kept] = -1
        found = cheapest(
            cost,
            self._crowding(tasks),
            least_uneven(len(tasks), self._capacity, count),
            spread=self.spread(tasks),
            last=self._dealt(tasks),
        )
        return None if found is None else found.member[:, 0]

    def _cost(self, figures: list[Longs]) -> Longs:
        """What does not matter is left out first, so that more of the rest fits."""
        told = [f for f in figures if (f != f[:, :1]).any()] or figures[:1]
        return np.where(self._capacity > 0, folded(told), -1)

    def _priced(self, tasks: IntArray) -> Longs:
        """int64[K, M]: traffic and moves at the prices of each kind; 0 where racks do not count."""
        shape = len(tasks), len(self._capacity)
        if self._racks is None:
            return np.zeros(shape, dtype=np.int64)
        view = self._view
        stateful = view.tasks.stateful[tasks][:, None]
        prices = self._racks.stateful
        across = self._racks.inputs.across[self._racks.inputs.class_of[tasks]][:, view.rack]
        home = self._home[tasks][:, None]
        left = (home != NO_MEMBER) & (home != np.arange(shape[1]))
        priced: Longs = across * np.where(stateful, prices.traffic, STATELESS.traffic)
        priced += left * np.where(stateful, prices.overlap, STATELESS.overlap)
        return priced

    def _judged(self, tasks: IntArray) -> list[Longs]:
        """Moves, cold starts or learners, copies without use, learners lost."""
        see = self.figures
        coming = see.learning.any(axis=1, keepdims=True) & ~see.learning & ~see.owned
        wasted = see.wasted(self._standbys)
        if self._at_once:
            figures = [see.moved, see.cold, wasted, coming]
        else:
            known = see.somewhere_warm | see.owned.any(axis=1, keepdims=True)
            orphan = (self._view.active == NO_MEMBER)[:, None] & see.cold
            figures = [
                see.moved | orphan,
                see.cold & known,
                see.outrun(self._standbys),
                coming,
                wasted & known,
            ]
        return [*(figure[tasks].astype(np.int64) for figure in figures), self._read_later(tasks)]

    def _read_later(self, tasks: IntArray) -> Longs:
        """int64[K, M]: what the standbys of a task will read across racks at least."""
        shape = len(tasks), len(self._capacity)
        if self._racks is None or self._racks.changelogs is None or self._standbys <= 0:
            return np.zeros(shape, dtype=np.int64)
        _, across = self._racks.across(self._view)
        across = np.where(self._capacity > 0, across[tasks], across.max(initial=0) + 1)
        order = np.sort(across, axis=1)
        least = order[:, : self._standbys].sum(axis=1, keepdims=True)
        among = across <= order[:, self._standbys - 1 : self._standbys]
        later: Longs = least + among * (order[:, self._standbys, None] - across)
        return later

    def _dealt(self, tasks: IntArray) -> Longs:
        """Where nothing else decides: the last of a member leave, neighbours part, like cards."""
        usable = self._capacity > 0
        seat = np.cumsum(usable) - 1
        dealt = (seat[None, :] - np.arange(len(tasks))[:, None]) % int(usable.sum())
        early = np.arange(len(tasks), 0, -1)[:, None] * len(usable)
        dealt[self.figures.owned[tasks]] = 0
        dealt += self.figures.moved[tasks] * early
        return dealt

    def spread(self, tasks: IntArray, beside: IntArray | None = None) -> Spread | None:
        """How units lie on members; None where there is but one.

        Args:
            tasks: what is placed.
            beside: int32[T], owners of tasks that lie there already; None = nothing does.
        """
        unit, members = self._view.tasks.unit_of, len(self._capacity)
        if len(self._view.tasks.units) == 1:
            return None
        there = np.zeros((len(self._view.tasks.units), members), dtype=np.int64)
        if beside is not None:
            np.add.at(there, (unit[tasks], beside[tasks]), 1)
        elif self._bound is not None:
            home = self._home[tasks]
            window = windows(self._view, tasks, home, self._capacity, self._bound)
            return Spread(unit[tasks], there, self._capacity, window)
        return Spread(unit[tasks], there, self._capacity)

    def _crowding(self, tasks: IntArray) -> Longs:
        """int64[K, M]: standbys with state each member has; they had better stay where they are."""
        if self._standbys <= 0:
            return np.zeros((len(tasks), len(self._capacity)), dtype=np.int64)
        kept = (self.figures.standing & ~self.figures.bare).sum(axis=0)
        return np.tile(kept // self._capacity.clip(1), (len(tasks), 1))

    def standbys(self, wanted: Wanted) -> Pairs | None:
        """The best members for some standbys.

        Args:
            wanted: what is asked for; neither restricted by topics nor to be kept apart.

        Returns:
            None if no balanced answer is left.
        """
        tasks, members = wanted.tasks, len(self._capacity)
        if self._standbys <= 0 or len(tasks) == 0:
            return no_pairs()
        place = np.arange(len(tasks)), np.maximum(wanted.target[tasks], 0)
        warm = np.ones((len(self._view.tasks), 1), dtype=np.bool_)
        warm[tasks, 0] = self.figures.warm[tasks][place]
        useful = self.figures.usefulness(warm)[tasks]
        loads = held(wanted.target, members) if wanted.loads is None else wanted.loads
        total = len(tasks) * self._standbys
        choices = boxes(total, self._capacity, loads, fair=False)
        if not self._at_once:
            alone = boxes(total, self._capacity, fair=False)
            choices = overlaps(total, alone, choices) or choices
        every = np.repeat(tasks, members), np.tile(np.arange(members, dtype=np.int32), len(tasks))
        prices: list[Longs] = []
        if wanted.toll is not None:
            toll = wanted.toll(*every).reshape(len(tasks), members)
            new = ~self.figures.standing[tasks] * np.int64(wanted.leaving)
            prices = [toll, new] if wanted.tolls_first else [toll + new]
        bare = self.figures.bare[tasks].astype(np.int64)
        behind = np.where(warm[tasks], self.figures.behind[tasks], 0)  # else the best copy runs it
        near = wanted.beside_active(*every).reshape(bare.shape).astype(np.int64)
        cost = self._cost([*prices, bare, useful, behind, near])
        cost[wanted.target[tasks][:, None] == np.arange(members)] = -1
        taken = contains(wanted.taken, code(*every)).reshape(cost.shape)
        cost[taken] = -1
        found = cheapest(
            cost,
            np.zeros_like(cost),
            choices,
            need=self._standbys,
            spread=self.spread(tasks, wanted.target),
            last=self._dealt(tasks),
        )
        if found is None:
            return None
        return Pairs(np.repeat(tasks, self._standbys), found.member.ravel())
