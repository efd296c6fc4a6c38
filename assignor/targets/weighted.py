"""Balance where tasks differ in weight: the load is weight by capacity, not a count.

The fewest moves are hard to compute here, so tasks move one by one, preferably few and heavy ones.
Owners stay. Tasks without an owner go, heaviest first, where the load ends lowest. If two loads
then differ by more than the tolerance, members too far below their due get tasks, then members too
far above give some: each time the largest task that leaves giver and taker within bounds.

The tolerance is the largest of: the weight of an average task; the heaviest task or a tenth of the
due, whichever is less; twice `stream.imbalance.percentage` of the due (S2-28, S2-29). A member
without any task gets one if another can spare it (EX-H10). Each move leaves the taker's load below
the giver's old load, so the search ends, and a balanced group is left alone (S2-F21).

Where tasks wait for learners, the next generation may find any part of this plan done. So a member
that gets such a task gives none, and a member that gives one gets none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.assignor.copy_lags import Copies
from muster.assignor.model import NO_MEMBER, BoolArray, Pairs
from muster.assignor.solvers.fewest_moves import held
from muster.assignor.solvers.shares import Counts
from muster.assignor.targets.least_cost import ByCost
from muster.assignor.targets.plan_data import Actives, Inputs, Settled
from muster.protocol.tasks import IntArray

Floats: TypeAlias = NDArray[np.float64]
Gift: TypeAlias = tuple[int, int]
"""A task, as an index into those placed, and the member that takes it."""

_EPSILON = 1e-9
"""Loads closer than this are equal: sums of floats depend on their order."""
_A_TENTH = 0.1
_TRIED = 8
"""How many of the fullest members are tried as givers, and of the emptiest as takers."""


class ByWeight:
    """Strategy for groups whose tasks differ in weight.

    Load comes before traffic (S4-11): only tasks of one weight change places for racks (S4-21).
    """

    def __init__(self, inputs: Inputs, by_cost: ByCost) -> None:
        self._inputs, self._by_cost = inputs, by_cost

    def actives(self, actives: Actives, placed: IntArray) -> Settled | None:
        """Owners balanced by weight beside `placed` (int32[T]); None where counts say the same."""
        settled = self._balanced(actives, placed, at_once=self._inputs.at_once)
        if settled is None or self._inputs.racks is None:
            return settled
        owner, cost = settled.owner, 0
        weight = self._inputs.view.tasks.weight[actives.task]
        for each in np.unique(weight).tolist():
            alike = weight == each
            part = Actives(actives.task[alike], actives.home[alike])
            counts = held(owner[alike], len(self._inputs.capacity))
            exchanged = self._by_cost.settled(part, counts=counts)
            owner[alike] = exchanged.owner
            cost += exchanged.cost or 0
        return Settled(owner, cost, settled.complete)

    def meanwhile(self, actives: Actives, running: IntArray) -> Settled | None:
        """Owners of stateless tasks beside what runs now (int32[T]); None: as in `actives`."""
        return self._balanced(actives, running, at_once=True)

    def _balanced(self, actives: Actives, beside: IntArray, *, at_once: bool) -> Settled | None:
        copies, capacity = self._inputs.copies, self._inputs.capacity
        weight = copies.view.tasks.weight
        of_these = weight[actives.task]
        placed = np.flatnonzero(beside != NO_MEMBER)
        alike = bool((of_these == of_these[0]).all())
        if alike and (len(placed) == 0 or of_these[0] == 0):  # else those placed weigh otherwise
            return None
        load = np.bincount(beside[placed], weights=weight[placed], minlength=len(capacity))
        search = _Search(copies, actives, capacity, load.astype(np.float64), at_once=at_once)
        search.continue_learning(copies.view.learner)
        search.place_unowned()
        while search.level():
            pass
        owner = np.array(search.owner, dtype=np.int32)
        if at_once or np.array_equal(owner, actives.home):
            return Settled(owner)
        search.free_all()  # a member may have to get tasks before it gives some, or the reverse
        return Settled(owner, complete=not search.level())


class _Search:
    def __init__(
        self, copies: Copies, actives: Actives, capacity: Counts, load: Floats, *, at_once: bool
    ) -> None:
        view = copies.view
        self._task = actives.task
        self._home: list[int] = actives.home.tolist()
        self.owner = list(self._home)
        weight = view.tasks.weight[actives.task]
        self._weight: list[float] = weight.tolist()
        self._heaviest, self._average = float(weight.max()), float(weight.mean())
        self._stateful: list[bool] = view.tasks.stateful[actives.task].tolist()
        self._percentage = view.settings.stream_imbalance_percentage
        self._restricted = not view.unrestricted
        if self._restricted:
            self._may: BoolArray = view.kinds.allowed[view.kinds.kind_of]
        self._unit: list[int] = view.tasks.unit_of[actives.task].tolist()
        self._usable = capacity > 0
        self._size = np.maximum(capacity / max(int(np.gcd.reduce(capacity)), 1), _EPSILON)
        self._beside = load
        with_copies, self._warm = _known(copies, actives.task)
        self._may_wait: set[int] = set() if at_once else with_copies
        self.free_all()
        self._sum_up()

    def free_all(self) -> None:
        """Let every member that takes tasks give and take."""
        self._gives, self._takes = self._usable.copy(), self._usable.copy()

    def _sum_up(self) -> None:
        """Loads, and each member's tasks in the order it gives them, last first."""
        owner = np.array(self.owner, dtype=np.int32)
        held = owner != NO_MEMBER
        weight = np.array(self._weight)[held]
        of_tasks = np.bincount(owner[held], weights=weight, minlength=len(self._size))
        self._load: Floats = self._beside + of_tasks
        self._of: list[list[tuple[float, int, int]]] = [[] for _ in self._size]
        for place, member in enumerate(self.owner):
            if member != NO_MEMBER:
                self._of[member].append(self._entry(place))
        for mine in self._of:
            mine.sort()

    def _entry(self, place: int) -> tuple[float, int, int]:
        """Sort key, tasks to give last: heavy, then already moving, then stateless ones."""
        moving = self.owner[place] != self._home[place]
        return self._weight[place], 2 * moving + (not self._stateful[place]), -place

    def _level(self, member: int, change: float = 0) -> float:
        level: float = (self._load[member] + change) / self._size[member]
        return level

    def _helps(self, place: int, destination: int) -> bool:
        """Whether the taker's load after the move is below the giver's load before it."""
        if not (self._weight[place] and self._takes[destination]):
            return False
        if self._restricted and not self._may[destination, self._unit[place]]:
            return False
        before = self._level(self.owner[place])
        return self._level(destination, self._weight[place]) < before - _EPSILON

    def _move(self, place: int, destination: int) -> None:
        source, weight = self.owner[place], self._weight[place]
        waits = place in self._may_wait
        self._gives[destination] &= not waits
        if source != NO_MEMBER:
            self._takes[source] &= not waits
            mine = self._of[source]
            del mine[bisect_left(mine, self._entry(place))]
            self._load[source] -= weight
        self.owner[place] = destination
        insort(self._of[destination], self._entry(place))
        self._load[destination] += weight

    # ------------------------------------------------------------ before levelling

    def continue_learning(self, learner: Pairs) -> None:
        """Continue begun moves that help; give unowned tasks to their learners with room."""
        index_of = {task: place for place, task in enumerate(self._task.tolist())}
        pairs = zip(learner.task.tolist(), learner.member.tolist(), strict=True)
        learners = [
            (index_of[task], m) for task, m in pairs if task in index_of and self._usable[m]
        ]
        for unowned in (False, True):
            for place, member in learners:
                source = self.owner[place]
                if (source == NO_MEMBER) != unowned or source == member:
                    continue
                if self._has_room(place, member) if unowned else self._helps(place, member):
                    self._move(place, member)

    def _has_room(self, place: int, member: int) -> bool:
        """Whether a member may take a task without an owner and stay within the tolerance."""
        after = self._after(place)
        usable = self._usable
        total = sum(self._weight) + float(self._beside[usable].sum())
        due = total / float(self._size[usable].sum())
        limit = max(due + self._tolerance(due), float(after.min()))
        return bool(after[member] <= limit + _EPSILON) and after[member] < np.inf

    def _after(self, place: int) -> Floats:
        """float64[M]: level of each member with this task; infinite where it may not take it."""
        fits = self._usable
        if self._restricted:
            fits = fits & self._may[:, self._unit[place]]
        level = (self._load + self._weight[place]) / self._size
        return np.where(fits, np.round(level, 9), np.inf)

    def place_unowned(self) -> None:
        """Place tasks without an owner, heaviest first; warm copies decide between equals."""
        unowned = [place for place, member in enumerate(self.owner) if member == NO_MEMBER]
        for place in sorted(unowned, key=lambda p: (-self._weight[p], p)):
            level = self._after(place)
            if level.min() < np.inf:
                least = np.flatnonzero(level == level.min()).tolist()
                with_copy = (m for m in least if self._knows(place, m))
                self._move(place, next(with_copy, least[0]))

    def _knows(self, place: int, member: int) -> bool:
        return bool(self._warm) and (place, member) in self._warm

    # ------------------------------------------------------------ levelling

    def level(self) -> bool:
        """Move tasks until loads are within the tolerance; True if any task moved."""
        self._sum_up()
        stuck = ~self._usable
        filled: set[int] = set()
        while (givers := self._gives & ~stuck).any() and self._takes.any():
            level = self._load / self._size
            full = int(np.where(givers, level, -np.inf).argmax())
            empty = int(np.where(self._takes, level, np.inf).argmin())
            due = float(self._load[~stuck].sum() / self._size[~stuck].sum())
            tolerance = self._tolerance(due)
            far = level[full] - level[empty] > tolerance + _EPSILON or not self._load[empty]
            gift = self._from_fullest(level, full, tolerance) if far else None
            if far and gift is None:
                stuck[full] = True
                continue
            bounds = due - tolerance / 2, due + tolerance / 2
            if not far:
                gift = self._completing(level, filled, full, due)
            elif level[empty] < bounds[0] - _EPSILON:
                gift = self._filling(np.where(givers, level, -np.inf), empty, bounds) or gift
            elif level[full] > bounds[1] + _EPSILON:
                gift = self._relieving(level, full, bounds) or gift
            if gift is None:
                break
            self._move(*gift)
            stuck[gift[1]] = False
            filled.add(gift[1])
        return bool(filled)

    def _tolerance(self, due: float) -> float:
        """How much two loads may differ."""
        wide = min(self._heaviest, _A_TENTH * due)
        return max(self._average, wide, 2 * due * self._percentage / 100)

    def _from_fullest(self, level: Floats, full: int, tolerance: float) -> Gift | None:
        """A task the fullest member could give, preferably so large that none is given back."""
        takes = self._takes
        if self._restricted:
            units = [self._unit[-place] for _, _, place in self._of[full]]
            takes = takes & self._may[:, units].any(axis=1)
        for destination in _first(np.where(takes, -level, -np.inf)):
            gap = level[full] - level[destination]
            most = (gap + tolerance) / (1 / self._size[full] + 1 / self._size[destination])
            lightest_first = (-place for _, _, place in self._of[full])
            helping = (place for place in lightest_first if self._helps(place, destination))
            place = self._largest(full, destination, most)
            place = next(helping, None) if place is None else place
            if place is not None:
                return place, destination
        return None

    def _filling(self, level: Floats, empty: int, bounds: tuple[float, float]) -> Gift | None:
        """The largest task for a member below the bounds that brings no member out of them."""
        low, high = bounds
        room = (high - level[empty]) * self._size[empty]
        spare = (level - low) * self._size
        limits = [(m, empty, min(room, float(spare[m]))) for m in _first(spare) if m != empty]
        return self._heaviest_of(limits)

    def _relieving(self, level: Floats, full: int, bounds: tuple[float, float]) -> Gift | None:
        """The largest task out of a member above the bounds that brings no member out of them."""
        low, high = bounds
        spare = (level[full] - low) * self._size[full]
        room = np.where(self._takes, (high - level) * self._size, -np.inf)
        limits = [(full, m, min(spare, float(room[m]))) for m in _first(room) if m != full]
        return self._heaviest_of(limits)

    def _completing(self, level: Floats, filled: set[int], full: int, due: float) -> Gift | None:
        """A task that brings giver and taker closer to their due, for a member that got tasks.

        It must be at least half of what the taker lacks: a smaller gain is not worth a move.
        """
        above = (level - due) * self._size
        for member in sorted(filled):
            lacks = -float(above[member])
            place = self._largest(full, member, min(lacks, float(above[full])))
            if place is not None and self._weight[place] >= max(lacks / 2, _EPSILON):
                return place, member
        return None

    def _heaviest_of(self, limits: list[tuple[int, int, float]]) -> Gift | None:
        """The heaviest task among (giver, taker, limit) options; the first of equals."""
        best: Gift | None = None
        for source, destination, limit in limits:
            place = self._largest(source, destination, limit)
            if place is not None and (best is None or self._weight[place] > self._weight[best[0]]):
                best = place, destination
        return best

    def _largest(self, source: int, destination: int, limit: float) -> int | None:
        """The largest task within a limit that helps; of equals one with a copy at the taker."""
        tasks = self._of[source]
        candidate: int | None = None
        for position in range(bisect_right(tasks, (limit + _EPSILON, 4, 0)) - 1, -1, -1):
            place = -tasks[position][2]
            if candidate is not None and self._weight[place] < self._weight[candidate]:
                break
            if not self._helps(place, destination):
                continue
            if not self._warm or self._knows(place, destination):
                return place
            candidate = place if candidate is None else candidate
        return candidate


def _known(copies: Copies, task: IntArray) -> tuple[set[int], set[tuple[int, int]]]:
    """Indexes of tasks with state, and (index, member) of warm copies, owners left out."""
    pairs = copies.of(task)
    places = np.searchsorted(task, pairs.task)
    warm = copies.view.active[pairs.task] != pairs.member
    warm[warm] = copies.reported_warm(pairs.task[warm], pairs.member[warm])
    warm_pairs = zip(places[warm].tolist(), pairs.member[warm].tolist(), strict=True)
    return set(places.tolist()), set(warm_pairs)


def _first(score: Floats) -> list[int]:
    """The members with the highest scores, highest first; -infinite scores are left out."""
    threshold = -np.inf
    if len(score) > _TRIED:
        threshold = np.partition(score, -_TRIED)[-_TRIED]
    best = np.flatnonzero((score >= threshold) & (score > -np.inf))
    ranked: list[int] = best[np.argsort(-score[best], kind="stable")][:_TRIED].tolist()
    return ranked
