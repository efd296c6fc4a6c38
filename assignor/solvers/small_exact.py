"""Small problems, exactly: the cheapest balanced placement, and of several the most even one.

Where capacities differ or tasks do not divide, balance does not fix how many tasks each member
holds. In large groups rules of thumb do (`muster.assignor.solvers.shares`). Here, several *boxes*
each say how few and how many tasks a member may hold; together they contain all placements whose
loads are exact shares rounded down or up. Within a box one minimum-cost flow
(`muster.assignor.solvers.cheapest_in_box`) finds the cheapest placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muster.assignor.solvers.cheapest_in_box import Box, placed
from muster.assignor.solvers.flow import Longs
from muster.assignor.solvers.folded_costs import Table
from muster.assignor.solvers.shares import Counts, filled_shares, left_to_others
from muster.assignor.solvers.spread import Spread
from muster.protocol.tasks import IntArray

MAX_PAIRS = 2_000
"""Up to this many tasks x members a problem is small."""
MAX_MEMBERS = 40
FINEST = 1 << 20
"""Largest common multiple of capacities for which loads are compared exactly."""
_MAX_LEVELS = 24


def small(tasks: int, capacity: Counts) -> bool:
    """Whether a problem of so many tasks is small enough to be solved exactly."""
    members = len(capacity)
    if tasks * members > MAX_PAIRS or members > MAX_MEMBERS:
        return False
    return lcm(*capacity[capacity > 0].tolist()) <= FINEST


def boxes(
    total: int,
    capacity: Counts,
    before: Counts | None = None,
    *,
    fair: bool = True,
    none_idle: bool = False,
    later: int = 0,
) -> list[Box]:
    """Boxes that together contain all even counts, the most even first.

    Args:
        total: tasks to place.
        capacity: int64[M], 0 = takes nothing.
        before: int64[M], tasks each member has beside these; they count as load.
        fair: True: counts are even if each member's load is its exact due by capacity rounded down
            or up. False: if any two loads by capacity, capacities in lowest terms, differ by at
            most 1.
        none_idle: every member gets a task if there are enough (EX-H10); with `fair` only.
        later: tasks that are placed after these, and must be able to make the sum fair; with `fair`
            only.

    Returns:
        An empty list if earlier tasks leave no even counts.
    """
    usable = capacity > 0
    beside = np.zeros_like(capacity) if before is None else np.where(usable, before, 0)
    bounds = Box(np.zeros_like(capacity), np.where(usable, total, 0))
    if fair:
        fair_box = _fair(total, capacity, beside)
        if fair_box is None:
            return []
        bounds = fair_box
        if none_idle and total + int(beside.sum()) >= np.count_nonzero(usable):
            bounds = _busy(total, bounds, usable & (beside == 0))
    size = np.where(usable, capacity // np.gcd.reduce(capacity[usable]), 0)
    found: list[Box] = []
    for bottom, top in _ranges(total + int(beside.sum()), size[usable]):
        low = np.maximum(-(-size * bottom.numerator // bottom.denominator) - beside, bounds.low)
        high = np.minimum(size * top.numerator // top.denominator - beside, bounds.high)
        if _holds(total, low, high):
            found.append(_tight(total, low, high))
    if fair:
        found.append(_tight(total, bounds.low, bounds.high))
    together = left_to_others(total, capacity, later) if fair and later else None
    return [box._replace(together=together) for box in _distinct(found)]


def _holds(total: int, low: Counts, high: Counts) -> bool:
    """Whether a box with these bounds has counts that sum up to the total."""
    return bool((low <= high).all()) and int(low.sum()) <= total <= int(high.sum())


def _distinct(boxes_: Iterable[Box]) -> list[Box]:
    """Boxes without later ones that have the same bounds."""
    by_bounds: dict[tuple[bytes, bytes], Box] = {}
    for box in boxes_:
        by_bounds.setdefault((box.low.tobytes(), box.high.tobytes()), box)
    return list(by_bounds.values())


def _fair(total: int, capacity: Counts, beside: Counts) -> Box | None:
    """The box of all fair counts; None if there are none."""
    due = (total + int(beside.sum())) * capacity
    low = np.maximum(due // capacity.sum() - beside, 0)
    high = -(-due // capacity.sum()) - beside
    return Box(low, high) if _holds(total, low, high) else None


def _busy(total: int, fair: Box, idle: NDArray[np.bool_]) -> Box:
    """Fair counts of `total` tasks that leave as few `idle` (bool[M]) members idle as possible."""
    low = np.where(idle, np.maximum(fair.low, 1), fair.low)
    if int(low.sum()) <= total:
        return Box(low, np.maximum(fair.high, low))
    return Box(fair.low, np.where(idle & (fair.low == 0), 1, fair.low))


def _tight(total: int, low: Counts, high: Counts) -> Box:
    """The same counts in the smallest box, so that boxes with the same counts are equal."""
    least = np.maximum(low, high - (int(high.sum()) - total))
    return Box(least, np.minimum(high, low + (total - int(low.sum()))))


def _ranges(total: int, size: Counts) -> list[tuple[Fraction, Fraction]]:
    """Ranges of load around the mean, at most 1 wide, where rounding changes; narrowest first."""
    if (size == 1).all():  # whole numbers
        return [(Fraction(total // len(size)), Fraction(-(-total // len(size))))]
    mean = Fraction(total, int(size.sum()))
    levels = _near(mean, size)
    ranges = [
        (bottom, top)
        for bottom in levels
        if bottom <= mean
        for top in levels
        if mean <= top <= bottom + 1
    ]
    return sorted(ranges, key=lambda pair: (pair[1] - pair[0], pair[0]))


def _near(mean: Fraction, size: Counts) -> list[Fraction]:
    """Loads around the mean at which rounding changes, nearest first."""
    levels = {Fraction(0)}
    for size_value in np.unique(size).tolist():
        middle = int(mean * size_value)
        first = max(int((mean - 1) * size_value), middle - _MAX_LEVELS, 0)
        last = min(int((mean + 1) * size_value) + 1, middle + _MAX_LEVELS)
        levels.update(Fraction(n, size_value) for n in range(first, last + 1))
    return sorted(levels, key=lambda level: (abs(level - mean), level))[:_MAX_LEVELS]


def least_uneven(total: int, capacity: Counts, held: Counts) -> list[Box]:
    """Boxes of counts that let members keep `held` tasks, with the least difference of loads."""
    share = filled_shares(total, capacity, held)
    below_share = share > held
    usable = capacity > 0
    if not below_share.any():
        return [Box(share, share)]
    size = np.where(usable, capacity, 0)
    most = max(Fraction(int(h), int(c)) for h, c in zip(held[usable], size[usable], strict=True))
    levels = _near(
        Fraction(int(share[below_share].sum()), int(size[below_share].sum())), size[usable]
    )
    pairs = [(b, t) for b in levels for t in levels if b <= t]
    least: Fraction | None = None
    candidates = []
    for bottom, top in sorted(pairs, key=lambda pair: (max(pair[1], most) - pair[0], pair)):
        difference = max(top, most) - bottom
        if least is not None and difference > least:
            break
        low = np.maximum(-(-size * bottom.numerator // bottom.denominator), held)
        high = np.maximum(size * top.numerator // top.denominator, held)
        if _holds(total, low, high):
            least = difference
            candidates.append(Box(low, high))
    return candidates or [Box(share, share)]


def least_uneven_shares(total: int, capacity: Counts, held: Counts) -> Counts:
    """Counts from the first box of `least_uneven`: the emptiest members take the remainder."""
    box = least_uneven(total, capacity, held)[0]
    share, room = box.low.copy(), box.high - box.low
    over = total - int(share.sum())
    member = np.repeat(np.arange(len(share)), np.minimum(room, over))
    nth = np.arange(len(member)) - np.searchsorted(member, member)
    level = (share[member] + nth + 1) / capacity[member].clip(1)
    np.add.at(share, member[np.argsort(level, kind="stable")[:over]], 1)
    return share


class Solution(NamedTuple):
    """A placement: int32[K, n] members of each task, ascending; its cost, and its box."""

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
) -> Solution | None:
    """The cheapest placement in any of the boxes; of equally cheap ones that of the narrowest box.

    Args:
        cost: int64[K, M]; below 0 = the member must not take the task.
        tie: int64[K, M], tie-break between equally cheap placements of one box.
        choices: narrowest first.
        need: how many members each task needs.
        unit: int32[K], units that must be spread over the members (S4-25); None = they need not.
        spread: next tie-break; None = nothing to spread.
        last: int64[K, M], last tie-break; None = none.
    """
    table = Table.of(cost, tie, spread, last, need)
    rows = np.arange(len(cost))[:, None]

    def solved(box: Box) -> Solution | None:
        solution = placed(table, box, need, unit)
        if solution is None:
            return None
        beyond = 0 if spread is None else spread.beyond(solution)
        return Solution(solution, int(cost[rows, solution].sum()) + beyond * table.upper_bound, box)

    best: Solution | None = None
    for box in largest(choices):
        solution = solved(box)
        if solution is not None and (best is None or solution.cost < best.cost):
            best = solution
    if best is None or len(choices) == 1:
        return best
    for box in choices:
        solution = solved(box)
        if solution is not None and solution.cost == best.cost:
            return solution
    return best


def overlaps(total: int, first_boxes: Sequence[Box], other_boxes: Sequence[Box]) -> list[Box]:
    """Boxes of the counts that are in a box of each list."""
    shared = (
        Box(np.maximum(first.low, other.low), np.minimum(first.high, other.high))
        for first in largest(first_boxes)
        for other in other_boxes
    )
    return _distinct(box for box in shared if _holds(total, box.low, box.high))


def largest(choices: Sequence[Box]) -> list[Box]:
    """Boxes that no other box contains."""
    return [
        box
        for box in choices
        if not any(
            other is not box and (other.low <= box.low).all() and (box.high <= other.high).all()
            for other in choices
        )
    ]
