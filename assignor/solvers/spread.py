"""Spreading the tasks of each unit over members, as prices of flow arcs.

The n-th task of a unit on a member costs more than the one before, and the steeper the smaller the
member, so the cheapest flow spreads a unit most evenly by capacity. A *window* says how few and how
many tasks of a unit each member should have; a task outside it costs more than everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import NamedTuple

import numpy as np

from muster.assignor.solvers.flow import Longs
from muster.assignor.solvers.shares import Counts
from muster.protocol.tasks import IntArray

_FINEST = 12
"""Loads of a unit are compared in steps of 1 / this where capacities differ."""


class Levels(NamedTuple):
    """Steps of a spread, int64[L] each: one more task of a unit on a member, and its price.

    Attributes:
        unit, member: what the step belongs to.
        price: 0 for the cheapest step of all.
        outside: 1 above the window, -1 where the member still lacks tasks, else 0.
    """

    unit: Longs
    member: Longs
    price: Longs
    outside: Longs


class Window(NamedTuple):
    """How few and how many tasks of each unit each member should have: int64[U, M] each."""

    low: Counts
    high: Counts


@dataclass(frozen=True, eq=False)
class Spread:
    """How the tasks of units lie on members.

    Attributes:
        unit: int32[K], the unit of each task to be placed.
        beside: int64[U, M], tasks of each unit each member has beside these.
        capacity: int64[M], 0 = takes nothing.
        window: how few and how many there should be; None = any number.
    """

    unit: IntArray
    beside: Counts
    capacity: Counts
    window: Window | None = None

    @cached_property
    def _size(self) -> Counts:
        return np.bincount(self.unit, minlength=len(self.beside))

    def levels(self, high: Counts) -> Levels:
        """The steps that exist if no member takes more than `high` (int64[M]) tasks."""
        number = np.minimum(self._size[:, None], np.where(self.capacity > 0, high, 0))
        pairs = np.repeat(np.arange(number.size), number.ravel())
        ends = np.cumsum(number.ravel())
        nth = np.arange(len(pairs)) - (ends - number.ravel())[pairs]
        unit, member = np.divmod(pairs, number.shape[1])
        count = nth + self.beside[unit, member]
        price = self._price(count, member)
        outside = np.zeros_like(price)
        if self.window is not None:
            outside += count >= self.window.high[unit, member]
            outside -= count < self.window.low[unit, member]
        return Levels(unit, member, price - price.min(initial=0), outside)

    def _price(self, count: Longs, member: Longs) -> Longs:
        usable = self.capacity[self.capacity > 0]
        step = min(lcm(*np.unique(usable // np.gcd.reduce(usable)).tolist()), _FINEST)
        size = self.capacity[member] // np.gcd.reduce(usable)
        price: Longs = (2 * count + 1) * step // size
        return price

    @cached_property
    def range(self) -> int:
        """Largest difference between the prices of two steps."""
        return int(self.levels(np.full_like(self.capacity, len(self.unit))).price.max(initial=0))

    def beyond(self, member: IntArray) -> int:
        """How many tasks of a placement (int32[K, n], below 0 = none) are outside the window."""
        if self.window is None:
            return 0
        count = self.beside.copy()
        task, nth = np.nonzero(member >= 0)
        np.add.at(count, (self.unit[task], member[task, nth]), 1)
        count = count[:, self.capacity > 0]
        low, high = (bound[:, self.capacity > 0] for bound in self.window)
        return int((np.maximum(low - count, 0) + np.maximum(count - high, 0)).sum())
