"""Small problems, exactly: of all balanced answers the cheapest, and of these the most even.

Balance leaves freedom where capacities differ or tasks do not divide: which members hold how many.
For large groups counts are decided first (`muster.assignor.solvers.shares`), by rules of thumb
about what will be cheap. Where a problem is small, every set of counts is looked at: a *box* says
how few and how many tasks each member may hold, the boxes of a group cover all answers in which
each member's load is its exact share rounded down or up, and within a box the cheapest answer is
one minimum-cost flow with an arc per (task, member). Cost is several figures in order of weight,
folded into one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muster.assignor.solvers.flow import Longs
from muster.assignor.solvers.shares import Counts, filled_shares
from muster.assignor.solvers.spread import Spread
from muster.assignor.solvers.within import Box, Table, placed
from muster.protocol.tasks import IntArray

MOST_PAIRS = 2_000
"""Up to this many tasks x members a problem is small."""
MOST_MEMBERS = 40
FINEST = 1 << 20
"""Largest common multiple of capacities with which loads are compared exactly."""
_MOST_LEVELS = 24


def small(tasks: int, capacity: Counts) -> bool:
    """Whether a problem is small enough to be solved exactly.

    Args:
        tasks: how many there are.
        capacity: int64[M], 0 = takes nothing.
    """
    members = len(capacity)
    if tasks * members > MOST_PAIRS or members > MOST_MEMBERS:
        return False
    return lcm(*capacity[capacity > 0].tolist()) <= FINEST


def boxes(
    total: int,
    capacity: Counts,
    before: Counts | None = None,
    *,
    fair: bool = True,
    none_idle: bool = False,
) -> list[Box]:
    """Boxes that together hold every even count, the most even first.

    Args:
        total: tasks to place.
        capacity: int64[M], 0 = takes nothing.
        before: int64[M], tasks each member has beside these; they count as load.
        fair: even is where each member's load is its exact due by capacity rounded down or up;
            else where two loads by capacity, capacities in lowest terms, differ by at most 1.
        none_idle: every member gets a task if there are enough (EX-H10); with `fair` only.

    Returns:
        None at all if what was placed before leaves no even count.
    """
    usable = capacity > 0
    beside = np.zeros_like(capacity) if before is None else np.where(usable, before, 0)
    bounds = Box(np.zeros_like(capacity), np.where(usable, total, 0))
    if fair:
        found_fair = _fair(total, capacity, beside)
        if found_fair is None:
            return []
        bounds = found_fair
        if none_idle and total + int(beside.sum()) >= np.count_nonzero(usable):
            bounds = _busy(total, bounds, usable & (beside == 0))
    size = np.where(usable, capacity // np.gcd.reduce(capacity[usable]), 0)
    found: dict[tuple[bytes, bytes], Box] = {}
    for bottom, top in _ranges(total + int(beside.sum()), size[usable]):
        low = np.maximum(-(-size * bottom.numerator // bottom.denominator) - beside, bounds.low)
        high = np.minimum(size * top.numerator // top.denominator - beside, bounds.high)
        if (low <= high).all() and int(low.sum()) <= total <= int(high.sum()):
            box = _tight(total, low, high)
            found.setdefault((box.low.tobytes(), box.high.tobytes()), box)
    if fair:
        box = _tight(total, *bounds)
        found.setdefault((box.low.tobytes(), box.high.tobytes()), box)
    return list(found.values())


def _fair(total: int, capacity: Counts, beside: Counts) -> Box | None:
    """All fair counts; None if there is none."""
    due = (total + int(beside.sum())) * capacity
    low = np.maximum(due // capacity.sum() - beside, 0)
    high = -(-due // capacity.sum()) - beside
    fits = (low <= high).all() and int(low.sum()) <= total <= int(high.sum())
    return Box(low, high) if fits else None


def _busy(total: int, fair: Box, idle: NDArray[np.bool_]) -> Box:
    """Fair counts that leave as few members idle as can be.

    Args:
        total: tasks to place.
        fair: all fair counts.
        idle: bool[M], who has nothing yet.
    """
    low = np.where(idle, np.maximum(fair.low, 1), fair.low)
    if int(low.sum()) <= total:
        return Box(low, np.maximum(fair.high, low))
    return Box(fair.low, np.where(idle & (fair.low == 0), 1, fair.low))


def _tight(total: int, low: Counts, high: Counts) -> Box:
    """The same counts in the smallest box, so that boxes that hold the same are equal."""
    least = np.maximum(low, high - (int(high.sum()) - total))
    return Box(least, np.minimum(high, low + (total - int(low.sum()))))


def _ranges(total: int, size: Counts) -> list[tuple[Fraction, Fraction]]:
    """Ranges of load around the mean, at most 1 wide, where rounding changes; narrowest first."""
    if (size == 1).all():
        return _of_equals(total, len(size))
    mean = Fraction(total, int(size.sum()))
    near = _near(mean, size)
    found = [
        (bottom, top)
        for bottom in near
        if bottom <= mean
        for top in near
        if mean <= top <= bottom + 1
    ]
    return sorted(found, key=lambda pair: (pair[1] - pair[0], pair[0]))


def _near(mean: Fraction, size: Counts) -> list[Fraction]:
    """Loads around the mean where rounding changes, nearest first."""
    levels = {Fraction(0)}
    for each in np.unique(size).tolist():
        middle = int(mean * each)
        first = max(int((mean - 1) * each), middle - _MOST_LEVELS, 0)
        last = min(int((mean + 1) * each) + 1, middle + _MOST_LEVELS)
        levels.update(Fraction(n, each) for n in range(first, last + 1))
    return sorted(levels, key=lambda level: (abs(level - mean), level))[:_MOST_LEVELS]


def least_uneven(total: int, capacity: Counts, held: Counts) -> list[Box]:
    """Boxes of counts for which no member gives anything up, whose loads differ the least.

    Args:
        total: tasks to place, those that are held among them.
        capacity: int64[M], 0 = takes nothing.
        held: int64[M], tasks that stay.
    """
    share = filled_shares(total, capacity, held)
    open_ = share > held
    usable = capacity > 0
    if not open_.any():
        return [Box(share, share)]
    size = np.where(usable, capacity, 0)
    most = max(Fraction(int(h), int(c)) for h, c in zip(held[usable], size[usable], strict=True))
    levels = _near(Fraction(int(share[open_].sum()), int(size[open_].sum())), size[usable])
    pairs = [(b, t) for b in levels for t in levels if b <= t]
    least: Fraction | None = None
    found = []
    for bottom, top in sorted(pairs, key=lambda pair: (max(pair[1], most) - pair[0], pair)):
        apart = max(top, most) - bottom
        if least is not None and apart > least:
            break
        low = np.maximum(-(-size * bottom.numerator // bottom.denominator), held)
        high = np.maximum(size * top.numerator // top.denominator, held)
        if (low <= high).all() and int(low.sum()) <= total <= int(high.sum()):
            least = apart
            found.append(Box(low, high))
    return found or [Box(share, share)]


def _of_equals(total: int, members: int) -> list[tuple[Fraction, Fraction]]:
    """The same where all members have the same capacity: whole numbers."""
    return [(Fraction(total // members), Fraction(-(-total // members)))]


def least_uneven_shares(total: int, capacity: Counts, held: Counts) -> Counts:
    """One of the counts in the first of those boxes: the emptiest take what is left over."""
    box = least_uneven(total, capacity, held)[0]
    share, room = box.low.copy(), box.high - box.low
    over = total - int(share.sum())
    member = np.repeat(np.arange(len(share)), np.minimum(room, over))
    nth = np.arange(len(member)) - np.searchsorted(member, member)
    level = (share[member] + nth + 1) / capacity[member].clip(1)
    np.add.at(share, member[np.argsort(level, kind="stable")[:over]], 1)
    return share


class Found(NamedTuple):
    """A placement: int32[K, n] members of each task, ascending; its cost, and the box it is in."""

    member: IntArray
    cost: int
    box: Box


def cheapest(
    cost: Longs,
    tie: Longs,
    choices: Sequence[Box],
    *,
    need: int = 1,
    unit: IntArray | None = None,
    spread: Spread | None = None,
    last: Longs | None = None,
) -> Found | None:
    """The cheapest placement in any of some boxes; among equals the one from the narrowest.

    Args:
        cost: int64[K, M]; below 0 = the member must not take the task.
        tie: int64[K, M], decides between equally cheap placements of one box.
        choices: narrowest first.
        need: how many members each task needs.
        unit: int32[K], units that must be spread over the members (S4-25); None = they need not.
        spread: decides between placements that are equal in both; None = nothing to spread.
        last: int64[K, M], decides between placements that are equal in all; None = nothing does.
    """
    table = Table.of(cost, tie, spread, last, need)
    rows = np.arange(len(cost))[:, None]

    def solved(box: Box) -> Found | None:
        found = placed(table, box, need, unit)
        if found is None:
            return None
        beyond = 0 if spread is None else spread.beyond(found)
        return Found(found, int(cost[rows, found].sum()) + beyond * table.dear, box)

    best: Found | None = None
    for box in largest(choices):
        found = solved(box)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
    if best is None or len(choices) == 1:
        return best
    for box in choices:
        found = solved(box)
        if found is not None and found.cost == best.cost:
            return found
    return best


def overlaps(total: int, some: Sequence[Box], others: Sequence[Box]) -> list[Box]:
    """Boxes of the counts of so many tasks that are in one of either."""
    found: dict[tuple[bytes, bytes], Box] = {}
    for one in largest(some):
        for other in others:
            low, high = np.maximum(one.low, other.low), np.minimum(one.high, other.high)
            if (low <= high).all() and int(low.sum()) <= total <= int(high.sum()):
                found.setdefault((low.tobytes(), high.tobytes()), Box(low, high))
    return list(found.values())


def largest(choices: Sequence[Box]) -> list[Box]:
    """Boxes that are in no other."""
    return [
        box
        for box in choices
        if not any(
            other is not box and (other.low <= box.low).all() and (box.high <= other.high).all()
            for other in choices
        )
    ]
