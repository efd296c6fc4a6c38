"""Small problems, exactly: of all balanced answers the cheapest, and of these the most even.

Balance leaves freedom where capacities differ or tasks do not divide: which members hold how many.
For large groups counts are decided first (`muster.assignor.solvers.shares`), by rules of thumb
about what will be cheap. Where a problem is small, every set of counts is looked at: a *box* says
how few and how many tasks each member may hold, the boxes of a group cover all answers whose loads
differ by at most 1, and within a box the cheapest answer is one minimum-cost flow with an arc per
(task, member). Cost is several figures in order of weight, folded into one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

import numpy as np

from muster.assignor.solvers.flow import Longs, Network
from muster.assignor.solvers.shares import Counts, filled_shares
from muster.protocol.tasks import IntArray

MOST_PAIRS = 2_000
"""Up to this many tasks x members a problem is small."""
MOST_MEMBERS = 40
FINEST = 1 << 20
"""Largest common multiple of capacities with which loads are compared exactly."""
_MOST_LEVELS = 24
_MOST_COST = 1 << 42
"""The solver multiplies costs by the number of nodes; beyond this it would overflow."""


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


class Box(NamedTuple):
    """How few and how many tasks each member may take: int64[M] each, `low` <= `high`."""

    low: Counts
    high: Counts


def boxes(
    total: int, capacity: Counts, before: Counts | None = None, *, nobody_idle: bool = False
) -> list[Box]:
    """Boxes that together hold every count whose loads differ by at most 1, narrowest first.

    Args:
        total: tasks to place.
        capacity: int64[M], 0 = takes nothing.
        before: int64[M], tasks each member has beside these; they count as load.
        nobody_idle: everybody gets a task if there are enough (EX-H10).

    Returns:
        None at all if what was placed before leaves no such count.
    """
    usable = capacity > 0
    size = np.where(usable, capacity // np.gcd.reduce(capacity[usable]), 0)
    beside = np.zeros_like(capacity) if before is None else np.where(usable, before, 0)
    idle_low = int(nobody_idle and total + int(beside.sum()) >= np.count_nonzero(usable))
    found: dict[tuple[bytes, bytes], Box] = {}
    for bottom, top in _ranges(total + int(beside.sum()), size[usable]):
        low = -(-size * bottom.numerator // bottom.denominator)
        low = np.maximum(np.maximum(low, usable * idle_low) - beside, 0)
        high = size * top.numerator // top.denominator - beside
        if (low <= high).all() and int(low.sum()) <= total <= int(high.sum()):
            box = _tight(total, low, high)
            found.setdefault((box.low.tobytes(), box.high.tobytes()), box)
    return list(found.values())


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
    """Boxes of counts nobody gives anything up for, whose loads differ the least.

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
    floor, ceiling = Fraction(total // members), Fraction(-(-total // members))
    if floor < ceiling:
        return [(floor, ceiling)]
    near = [(floor, floor), (floor - 1, floor), (floor, floor + 1)]
    return [pair for pair in near if pair[0] >= 0]


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


def folded(figures: Iterable[Longs]) -> Longs:
    """Figures of every choice as one cost: less of an earlier one outweighs any of the later.

    Args:
        figures: int64[T, M] each, at least 0, most important first. What no longer fits into the
            number is left out.
    """
    cost: Longs | None = None
    for figure in figures:
        if cost is None:
            cost = figure.astype(np.int64)
            continue
        base = int(figure.max(axis=1).sum()) + 1
        if (int(cost.max(axis=1, initial=0).sum()) + 1) * base > _MOST_COST:
            break
        cost = cost * base + figure
    assert cost is not None
    return cost


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
) -> Found | None:
    """The cheapest placement in any of some boxes; among equals the one from the narrowest.

    Args:
        cost: int64[K, M]; below 0 = the member must not take the task.
        tie: int64[K, M], decides between equally cheap placements of one box.
        choices: narrowest first.
        need: how many members each task needs.
        unit: int32[K], units that must be spread over the members (S4-25); None = they need not.
    """
    both = np.where(cost < 0, -1, folded([np.maximum(cost, 0), tie]))
    rows = np.arange(len(cost))[:, None]

    def solved(box: Box) -> Found | None:
        found = _spread(both, box, need, unit)
        if found is None:
            return None
        return Found(found, int(cost[rows, found].sum()), box)

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


def _spread(cost: Longs, box: Box, need: int, unit: IntArray | None) -> IntArray | None:
    """The cheapest placement in a box; with units, one that gives no member too many of one."""
    if unit is None:
        return _within(cost, box, need)
    size = np.bincount(unit)[:, None]
    found = _within(cost, box, need, unit, -(-size * box.high // len(unit)))
    if found is None:
        return None
    count = np.bincount(found.ravel(), minlength=cost.shape[1])
    most = -(-size * count // len(unit))
    held = np.zeros(most.shape, dtype=np.int64)
    np.add.at(held, (unit, found[:, 0]), 1)
    return found if (held <= most).all() else _within(cost, Box(count, count), need, unit, most)


def _within(
    cost: Longs, box: Box, need: int, unit: IntArray | None = None, most: Counts | None = None
) -> IntArray | None:
    """The cheapest placement in a box; None if there is none."""
    tasks, members = cost.shape
    network = Network()
    task, member = network.nodes(tasks), network.nodes(members)
    pool, sink = network.node(), network.node()
    network.supply(task, need)
    network.supply(sink, -need * tasks)
    row, column = np.nonzero(cost >= 0)
    gate = member[column]
    if unit is not None and most is not None:
        gates = network.nodes(most.size).reshape(most.shape)
        network.arcs(gates, member[None, :], most, 0)
        gate = gates[unit[row], column]
    arcs = network.arcs(task[row], gate, 1, cost[row, column])
    network.arcs(member, sink, box.low, 0)
    network.arcs(member, pool, box.high - box.low, 0)
    network.arcs(pool, sink, need * tasks - int(box.low.sum()), 0)
    dear = int(cost.max(axis=1, initial=0).sum()) * need + 1
    lost = network.arcs(task, sink, need, dear)
    flow, _ = network.solve()
    if flow[lost].any():
        return None
    chosen = flow[arcs] > 0
    return column[chosen].reshape(tasks, need).astype(np.int32)
