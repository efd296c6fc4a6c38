"""Balance where tasks differ in weight: load is weight by capacity, not a count.

Finding the fewest moves is hard then, so this is a descent: owners stay; what has no owner goes,
heaviest first, where the load ends lowest; then, as long as the fullest member can give a task to
an emptier one that stays below what the giver had, it gives the one that leaves the two lowest. The
end is balanced to within one task, and a balanced group is left alone (S2-F21).

Learners on their way are moves begun already: they count as done while they still help.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from muster.assignor.copies import Copies, contains
from muster.assignor.model import NOBODY, GroupView
from muster.assignor.solvers.shares import Counts
from muster.assignor.targets.actives import Actives
from muster.protocol.tasks import IntArray

Floats = NDArray[np.float64]
_CLOSE = 1e-9


def differ_in_weight(view: GroupView, task: IntArray) -> bool:
    """Whether these tasks have more than one weight."""
    if view.tasks.weigh_alike:
        return False
    weight = view.tasks.weight[task]
    return len(weight) > 0 and bool((weight != weight[0]).any())


def settled_by_weight(
    view: GroupView, copies: Copies, actives: Actives, capacity: Counts, load: Floats
) -> IntArray:
    """Owners of some tasks, balanced by weight.

    Args:
        view: the group.
        copies: its copies.
        actives: what to place.
        capacity: int64[M], 0 = takes nothing.
        load: float64[M], weight each member has beside these tasks.

    Returns:
        int32[K], `NOBODY` where nobody may take a task.
    """
    descent = _Descent(view, actives, capacity, load)
    descent.continue_learning(view)
    descent.place_loose(copies)
    descent.level()
    return np.array(descent.owner, dtype=np.int32)


class _Descent:
    def __init__(self, view: GroupView, actives: Actives, capacity: Counts, load: Floats) -> None:
        self._task = actives.task
        self._weight = view.tasks.weight[actives.task].tolist()
        table = view.kinds
        self._may = table.allowed[table.kind_of]
        self._unit = view.tasks.unit_of[actives.task].tolist()
        self._capacity = capacity.tolist()
        self._usable = np.flatnonzero(capacity > 0).tolist()
        self.owner: list[int] = actives.home.tolist()
        self._of: list[set[int]] = [set() for _ in self._capacity]
        self._load = load.tolist()
        for place, member in enumerate(self.owner):
            if member != NOBODY:
                self._of[member].add(place)
                self._load[member] += self._weight[place]

    def _level(self, member: int, change: float = 0) -> float:
        level: float = (self._load[member] + change) / self._capacity[member]
        return level

    def _helps(self, place: int, source: int, destination: int) -> bool:
        """Whether the taker ends below where the giver was."""
        if not self._may[destination, self._unit[place]]:
            return False
        return self._level(destination, self._weight[place]) < self._level(source) - _CLOSE

    def _move(self, place: int, destination: int) -> None:
        source = self.owner[place]
        if source != NOBODY:
            self._of[source].discard(place)
            self._load[source] -= self._weight[place]
        self.owner[place] = destination
        self._of[destination].add(place)
        self._load[destination] += self._weight[place]

    def continue_learning(self, view: GroupView) -> None:
        """Carry on moves that have begun, while they help."""
        where = {task: place for place, task in enumerate(self._task.tolist())}
        pairs = view.learner
        for task, member in zip(pairs.task.tolist(), pairs.member.tolist(), strict=True):
            place = where.get(task)
            if place is None or not self._capacity[member]:
                continue
            source = self.owner[place]
            if source not in (NOBODY, member) and self._helps(place, source, member):
                self._move(place, member)

    def place_loose(self, copies: Copies) -> None:
        """Place what has no owner, heaviest first; warm copies decide between equals."""
        loose = [p for p, member in enumerate(self.owner) if member == NOBODY]
        if not loose or not self._usable:
            return
        members = np.array(self._usable, dtype=np.int32)
        warm_somewhere = copies.of(self._wanted(copies, loose))
        for place in sorted(loose, key=lambda p: (-self._weight[p], p)):
            fitting = members[self._may[members, self._unit[place]]]
            if len(fitting) == 0:
                continue
            level = (np.take(self._load, fitting) + self._weight[place]) / np.take(
                self._capacity, fitting
            )
            task = np.full(len(fitting), self._task[place], dtype=np.int32)
            known = contains(warm_somewhere, task.astype(np.int64) << 32 | fitting)
            if known.any():
                known &= copies.told_warm(task, fitting)
            self._move(place, int(fitting[np.lexsort((fitting, ~known, np.round(level, 9)))[0]]))

    def _wanted(self, copies: Copies, loose: list[int]) -> NDArray[np.bool_]:
        wanted = np.zeros(len(copies.view.tasks), dtype=np.bool_)
        wanted[self._task[loose]] = True
        return wanted & copies.view.tasks.stateful

    def level(self) -> None:
        """Let members give, fullest first, until nobody can."""
        while self._sweep():
            pass

    def _sweep(self) -> bool:
        full = [(-self._level(member), member) for member in self._usable]
        heapq.heapify(full)
        moved = False
        while full:
            key, source = heapq.heappop(full)
            if -key != self._level(source):
                heapq.heappush(full, (-self._level(source), source))
                continue
            gift = self._best_gift(source)
            if gift is not None:
                self._move(*gift)
                heapq.heappush(full, (-self._level(source), source))
                moved = True
        return moved

    def _best_gift(self, source: int) -> tuple[int, int] | None:
        """The task and taker that leave the fuller of the two lowest; emptiest takers first."""
        for destination in sorted(self._usable, key=lambda m: (self._level(m), m))[:8]:
            gifts = [p for p in self._of[source] if self._helps(p, source, destination)]
            if destination != source and gifts:
                best = min(gifts, key=lambda p: (self._after(p, source, destination), -p))
                return best, destination
        return None

    def _after(self, place: int, source: int, destination: int) -> float:
        weight = self._weight[place]
        return max(self._level(source, -weight), self._level(destination, weight))
