"""Windows: how many tasks of a subtopology each member should have (`subtopology.imbalance.max`).

The load of a subtopology on a member is its number of actives by capacity, capacities in lowest
terms. The largest and the smallest load may differ by the bound: for each subtopology, present
owners decide the range, so a group within its bound is left alone; the most central of equals wins.
"""

from __future__ import annotations

from math import lcm

import numpy as np

from muster.assignor.model import NO_MEMBER, BoolArray, GroupView
from muster.assignor.solvers.shares import Counts
from muster.assignor.solvers.spread import Window
from muster.protocol.tasks import IntArray

MAX_WINDOWS = 200_000
"""Up to this many subtopologies x members a bound is honoured."""
_TOO_LARGE = (
    f"subtopology.imbalance.max is not honoured: more than {MAX_WINDOWS:,} subtopologies x members"
)
_FINEST = 12
_MAX_RANGES = 48
"""Ranges that are tried for each subtopology."""


def bound_of(view: GroupView) -> tuple[int | None, str]:
    """The bound of a view, None where no bound applies; and a warning if that is not intended.

    Where tasks differ in weight no bound applies; `muster config set` has reported that.
    """
    bound = view.settings.subtopology_imbalance_max
    if bound is None or not view.tasks.weigh_alike:
        return None, ""
    if len(view.tasks.units) * len(view.members) > MAX_WINDOWS:
        return None, _TOO_LARGE
    return bound, ""


def windows(
    view: GroupView, task: IntArray, home: IntArray, capacity: Counts, bound: int
) -> Window:
    """The windows of every subtopology; 0 tasks for members that may not take it.

    The tasks may stay `home`; two loads may differ by at most `bound`, which is at least 1.
    """
    usable = capacity > 0
    size = capacity // np.gcd.reduce(capacity[usable])
    count = np.zeros((len(view.tasks.units), len(capacity)), dtype=np.int64)
    unit = view.tasks.unit_of[task]
    owned = home != NO_MEMBER
    np.add.at(count, (unit[owned], home[owned]), 1)
    total = np.bincount(unit, minlength=len(count))
    low, high = np.zeros_like(count), np.zeros_like(count)
    allowed = view.kinds.allowed[view.kinds.kind_of].T & usable
    for number in np.flatnonzero(total).tolist():
        takers = np.flatnonzero(allowed[number])
        if len(takers):
            window = _window(int(total[number]), size[takers], count[number, takers], bound)
            low[number, takers], high[number, takers] = window
    return Window(low, high)


def _window(total: int, size: Counts, count: Counts, bound: int) -> tuple[Counts, Counts]:
    """The range of one subtopology that its present owners fit best."""
    if bound >= total:
        return np.zeros_like(size), np.full_like(size, total)
    fine = min(lcm(*np.unique(size).tolist()), _FINEST)
    mean = total / int(size.sum())
    bottom = np.arange(max(int((mean - bound) * fine), 0), int(mean * fine) + 1)
    bottom = bottom[:: -(-len(bottom) // _MAX_RANGES)]
    low = -(-bottom[:, None] * size // fine)
    high = (bottom[:, None] + bound * fine) * size // fine
    fits: BoolArray = (low.sum(axis=1) <= total) & (total <= high.sum(axis=1))
    if not fits.any():
        return np.zeros_like(size), np.full_like(size, total)
    bottom, low, high = bottom[fits], low[fits], high[fits]
    over = np.maximum(count - high, 0).sum(axis=1)
    lacking = np.maximum(low - count, 0).sum(axis=1) - (total - int(count.sum()))
    eccentric = np.abs(2 * bottom + (bound - 2 * mean) * fine)
    best = np.lexsort((bottom, eccentric, np.maximum(over, lacking)))[0]
    return low[best], high[best]
