"""Balance where tasks differ in weight: load is weight by capacity, not a count.

Finding the fewest moves is hard then, so tasks are moved one by one, as few and as heavy as do.
Owners stay; what has no owner goes, heaviest first, where the load ends lowest. Only if two loads
then differ by more than is tolerated, a member gives: members too far below their due are filled,
then those too far above relieved, by the largest task that leaves giver and taker within bounds.

Tolerated is the weight of an average task, as counts may differ by one; or, if that is more, the
heaviest task or a tenth of the due, whichever is less; or twice `stream.imbalance.percentage` of
the due, by which each member may be off (S2-28, S2-29). A member without any task is not tolerated
where another can spare one (EX-H10).

Each move leaves the taker below where the giver was, so the search ends; and it ends where one
started afresh finds nothing to do, so a balanced group is left alone (S2-F21). A member whose tasks
are too heavy to go anywhere stays as it is, and its load is not held against the others.

Learners on their way are moves begun already: they count as done while they still help. Where tasks
wait for learners, the next generation will find a part of what is planned here done, whichever, and
go on from there. Therefore a member that is to get such a task gives none, and one that is to give
gets none: so each part brings the group forward, and generations cannot send tasks to and fro. What
that leaves undone is planned when the rest is done.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.assignor.copies import Copies
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs
from muster.assignor.solvers.shares import Counts
from muster.assignor.targets.actives import Actives
from muster.protocol.tasks import IntArray

Floats: TypeAlias = NDArray[np.float64]
Gift: TypeAlias = tuple[int, int]
"""A task, by its place among those settled, and who takes it."""

_CLOSE = 1e-9
"""Loads closer than this are equal: sums of floats depend on their order."""
_A_TENTH = 0.1
_ASKED = 8
"""How many of the fullest are asked what they give, and of the emptiest what they take."""


def differ_in_weight(view: GroupView, task: IntArray) -> bool:
    """Whether these tasks have more than one weight."""
    if view.tasks.weigh_alike:
        return False
    weight = view.tasks.weight[task]
    return bool((weight[1:] != weight[:-1]).any())


def settled_by_weight(
    copies: Copies, actives: Actives, capacity: Counts, load: Floats, *, at_once: bool
) -> tuple[IntArray, bool]:
    """Owners of some tasks, balanced by weight.

    Args:
        copies: the copies of the group.
        actives: what to place.
        capacity: int64[M], 0 = takes nothing.
        load: float64[M], weight each member has beside these tasks.
        at_once: whether all of it is carried out now, and not as learners become ready.

    Returns:
        int32[K], `NO_MEMBER` where no member may take a task; and whether that is all. It is not
        where a member is to give tasks that is to get some first, or the other way round.
    """
    search = _Search(copies, actives, capacity, load, at_once=at_once)
    search.continue_learning(copies.view.learner)
    search.place_loose()
    while search.level():
        pass
    owner = np.array(search.owner, dtype=np.int32)
    if at_once or np.array_equal(owner, actives.home):
        return owner, True
    search.free_all()
    return owner, not search.level()


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
        self._size = np.maximum(capacity / max(int(np.gcd.reduce(capacity)), 1), _CLOSE)
        self._beside = load
        with_copies, self._warm = _known(copies, actives.task)
        self._may_wait: set[int] = set() if at_once else with_copies
        self.free_all()
        self._sum_up()

    def free_all(self) -> None:
        """Let every member that takes tasks give and take."""
        self._gives, self._takes = self._usable.copy(), self._usable.copy()

    def _sum_up(self) -> None:
        """Loads, and what everybody may give: tasks ascending by how gladly they are given."""
        owner = np.array(self.owner, dtype=np.int32)
        held = owner != NO_MEMBER
        weight = np.array(self._weight)[held]
        here = np.bincount(owner[held], weights=weight, minlength=len(self._size))
        self._load: Floats = self._beside + here
        self._of: list[list[tuple[float, int, int]]] = [[] for _ in self._size]
        for place, member in enumerate(self.owner):
            if member != NO_MEMBER:
                self._of[member].append(self._entry(place))
        for mine in self._of:
            mine.sort()

    def _entry(self, place: int) -> tuple[float, int, int]:
        """Heavy tasks last; of equal ones those that move already, then those without state."""
        moving = self.owner[place] != self._home[place]
        return self._weight[place], 2 * moving + (not self._stateful[place]), -place

    def _level(self, member: int, change: float = 0) -> float:
        level: float = (self._load[member] + change) / self._size[member]
        return level

    def _helps(self, place: int, destination: int) -> bool:
        """Whether the taker ends below where the giver was, and the giver below that."""
        if not (self._weight[place] and self._takes[destination]):
            return False
        if self._restricted and not self._may[destination, self._unit[place]]:
            return False
        before = self._level(self.owner[place])
        return self._level(destination, self._weight[place]) < before - _CLOSE

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
        """Carry on begun moves while they help; place unowned tasks while there is room."""
        where = {task: place for place, task in enumerate(self._task.tolist())}
        pairs = zip(learner.task.tolist(), learner.member.tolist(), strict=True)
        coming = [(where[task], m) for task, m in pairs if task in where and self._usable[m]]
        for loose in (False, True):
            for place, member in coming:
                source = self.owner[place]
                if (source == NO_MEMBER) != loose or source == member:
                    continue
                if self._has_room(place, member) if loose else self._helps(place, member):
                    self._move(place, member)

    def _has_room(self, place: int, member: int) -> bool:
        """Whether a member may take what no member has and not stand out for it."""
        after = self._after(place)
        usable = self._usable
        everything = sum(self._weight) + float(self._beside[usable].sum())
        due = everything / float(self._size[usable].sum())
        most = max(due + self._tolerance(due), float(after.min()))
        return bool(after[member] <= most + _CLOSE) and after[member] < np.inf

    def _after(self, place: int) -> Floats:
        """float64[M]: levels if each got this task; infinite where it may not be taken."""
        fits = self._usable
        if self._restricted:
            fits = fits & self._may[:, self._unit[place]]
        level = (self._load + self._weight[place]) / self._size
        return np.where(fits, np.round(level, 9), np.inf)

    def place_loose(self) -> None:
        """Place what has no owner, heaviest first; warm copies decide between equals."""
        loose = [place for place, member in enumerate(self.owner) if member == NO_MEMBER]
        for place in sorted(loose, key=lambda p: (-self._weight[p], p)):
            level = self._after(place)
            if level.min() < np.inf:
                least = np.flatnonzero(level == level.min()).tolist()
                known = (m for m in least if self._knows(place, m))
                self._move(place, next(known, least[0]))

    def _knows(self, place: int, member: int) -> bool:
        return bool(self._warm) and (place, member) in self._warm

    # ------------------------------------------------------------ levelling

    def level(self) -> bool:
        """Move tasks until what is left is tolerated; whether anything moved."""
        self._sum_up()
        stuck = ~self._usable
        filled: set[int] = set()
        while (givers := self._gives & ~stuck).any() and self._takes.any():
            level = self._load / self._size
            full = int(np.where(givers, level, -np.inf).argmax())
            empty = int(np.where(self._takes, level, np.inf).argmin())
            due = float(self._load[~stuck].sum() / self._size[~stuck].sum())
            tolerance = self._tolerance(due)
            far = level[full] - level[empty] > tolerance + _CLOSE or not self._load[empty]
            gift = self._from_fullest(level, full, tolerance) if far else None
            if far and gift is None:
                stuck[full] = True
                continue
            bounds = due - tolerance / 2, due + tolerance / 2
            if not far:
                gift = self._completing(level, filled, full, due)
            elif level[empty] < bounds[0] - _CLOSE:
                gift = self._filling(np.where(givers, level, -np.inf), empty, bounds) or gift
            elif level[full] > bounds[1] + _CLOSE:
                gift = self._relieving(level, full, bounds) or gift
            if gift is None:
                break
            self._move(*gift)
            stuck[gift[1]] = False
            filled.add(gift[1])
        return bool(filled)

    def _tolerance(self, due: float) -> float:
        """By how much two loads may differ."""
        wide = min(self._heaviest, _A_TENTH * due)
        return max(self._average, wide, 2 * due * self._percentage / 100)

    def _from_fullest(self, level: Floats, full: int, tolerance: float) -> Gift | None:
        """What the fullest could give at all: at best so much that no member gives it back."""
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
        """The largest task that brings no member beyond the bounds, for a member below them."""
        low, high = bounds
        room = (high - level[empty]) * self._size[empty]
        spare = (level - low) * self._size
        limits = [(m, empty, min(room, float(spare[m]))) for m in _first(spare) if m != empty]
        return self._heaviest_of(limits)

    def _relieving(self, level: Floats, full: int, bounds: tuple[float, float]) -> Gift | None:
        """The same out of a member above them."""
        low, high = bounds
        spare = (level[full] - low) * self._size[full]
        room = np.where(self._takes, (high - level) * self._size, -np.inf)
        limits = [(full, m, min(spare, float(room[m]))) for m in _first(room) if m != full]
        return self._heaviest_of(limits)

    def _completing(self, level: Floats, filled: set[int], full: int, due: float) -> Gift | None:
        """A task that brings giver and taker closer to their due, for who was given some.

        It must make up for half of what the taker lacks: the last bit is not worth a move.
        """
        above = (level - due) * self._size
        for member in sorted(filled):
            lacks = -float(above[member])
            place = self._largest(full, member, min(lacks, float(above[full])))
            if place is not None and self._weight[place] >= max(lacks / 2, _CLOSE):
                return place, member
        return None

    def _heaviest_of(self, limits: list[tuple[int, int, float]]) -> Gift | None:
        """The heaviest of what givers can give takers within a limit each; the first of equals."""
        best: Gift | None = None
        for source, destination, limit in limits:
            place = self._largest(source, destination, limit)
            if place is not None and (best is None or self._weight[place] > self._weight[best[0]]):
                best = place, destination
        return best

    def _largest(self, source: int, destination: int, limit: float) -> int | None:
        """The largest task of a member within a limit that helps; of equals one known there."""
        mine = self._of[source]
        found: int | None = None
        for at in range(bisect_right(mine, (limit + _CLOSE, 4, 0)) - 1, -1, -1):
            place = -mine[at][2]
            if found is not None and self._weight[place] < self._weight[found]:
                break
            if not self._helps(place, destination):
                continue
            if not self._warm or self._knows(place, destination):
                return place
            found = place if found is None else found
        return found


def _known(copies: Copies, task: IntArray) -> tuple[set[int], set[tuple[int, int]]]:
    """Places of tasks that have state, and (place, member) where not only owners have it."""
    pairs = copies.of(task)
    places = np.searchsorted(task, pairs.task)
    warm = copies.view.active[pairs.task] != pairs.member
    warm[warm] = copies.told_warm(pairs.task[warm], pairs.member[warm])
    known = zip(places[warm].tolist(), pairs.member[warm].tolist(), strict=True)
    return set(places.tolist()), set(known)


def _first(score: Floats) -> list[int]:
    """The members of the highest scores, highest first; those out of the question left out."""
    least = -np.inf
    if len(score) > _ASKED:
        least = np.partition(score, -_ASKED)[-_ASKED]
    best = np.flatnonzero((score >= least) & (score > -np.inf))
    ranked: list[int] = best[np.argsort(-score[best], kind="stable")][:_ASKED].tolist()
    return ranked
