"""What the planner asks for when it places standbys, what copies cost, and the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from muster.assignor.copy_lags import Longs, code, contains
from muster.assignor.model import BoolArray, GroupView, Pairs, no_pairs
from muster.assignor.solvers.flow import TOO_DEAR, CostsTooLarge
from muster.assignor.solvers.shares import Counts
from muster.protocol.tasks import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Toll:
    """Cost of a copy by rack.

    Attributes:
        class_of: int32[T], class of each task.
        across: int64[C, R], cost of a copy of a class in a rack.
        rack: int32[M], rack of each member.
    """

    class_of: IntArray
    across: Longs
    rack: IntArray

    def __call__(self, task: IntArray, member: IntArray) -> Longs:
        """int64[K]: cost of a copy of ``task[k]`` at ``member[k]``."""
        cost: Longs = self.across[self.class_of[task], self.rack[member]]
        return cost

    def least(self, need: Counts) -> int:
        """Least cost of `need[t]` copies of each task, wherever they go."""
        tasks = np.flatnonzero(need)
        cheapest = self.across[:, np.unique(self.rack)].min(axis=1)
        return int((cheapest[self.class_of[tasks]] * need[tasks]).sum())


NEW_COPY = 50
"""Price of a copy on a member without state; prices of existing copies are far below."""


class ExistingCopies(NamedTuple):
    """Copies that exist, and the price of using each (int64[K])."""

    pairs: Pairs
    price: Longs


class PlacedStandbys(NamedTuple):
    """Standbys placed.

    Attributes:
        pairs: the copies.
        missing: how many found no member.
        bound: lower bound of the cost, in the sense of `StandbyRequest.cost`.
        warning: what could not be honoured; empty = everything was.
    """

    pairs: Pairs
    missing: int
    bound: int = 0
    warning: str = ""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StandbyRequest:
    """The standbys to place, and what to minimise.

    Attributes:
        view: the group; its standbys are the copies that exist.
        tasks: int32[K], tasks that need copies, ascending.
        target: int32[T], final owner of each active.
        copies: copies per task.
        capacity: int64[M], 0 = takes nothing.
        may: bool[M, U], which units a member may take; None = all.
        toll: cost of a copy by rack; None = the same everywhere.
        leaving: cost of a new copy, beside the toll.
        tolls_first: a toll outweighs any number of new copies, and `cost` is tolls alone; else the
            sum of both is minimised and is the cost.
        loads: int64[M], actives each member has, stateless ones included if they are placed;
            None = those of `tasks`.
        copies_in_distinct_racks: for how many copies of a task a rack without a copy outweighs any
            traffic; for the other copies traffic comes first, then such a rack (S4-31).
        taken: copies that exist in other roles; no second one goes to their members.
        rack: int32[M], rack of each member, -1 = unknown; between equal choices a copy goes to a
            rack where the task has none yet (S4-29). None = all in one rack.
    """

    view: GroupView
    tasks: IntArray
    target: IntArray
    copies: int
    capacity: Counts
    may: BoolArray | None = None
    toll: Toll | None = None
    leaving: int = 0
    tolls_first: bool = False
    loads: Counts | None = None
    copies_in_distinct_racks: int = 0
    taken: Pairs = field(default_factory=no_pairs)
    rack: IntArray | None = None

    def beside_active(self, task: IntArray, member: IntArray) -> BoolArray:
        """bool[K]: whether each member is in the rack of the task's active."""
        if self.rack is None:
            return np.zeros(len(task), dtype=np.bool_)
        rack = np.append(self.rack, -2)  # entry -1: no member
        same_rack: BoolArray = (rack[self.target[task]] == rack[member]) & (rack[member] >= 0)
        return same_rack

    def cost(self, pairs: Pairs) -> int:
        """Cost of copies, as far as it is minimised."""
        if self.toll is None or len(pairs) == 0:
            return 0
        tolls = int(self.toll(pairs.task, pairs.member).sum())
        if self.tolls_first:
            return tolls
        new = ~contains(self.view.standby, pairs.code)
        return tolls + self.leaving * int(np.count_nonzero(new))

    def price(self, copies: int, task: IntArray, member: IntArray) -> Longs:
        """int64[K]: price of each choice when `copies` are placed; only good for comparison."""
        if self.toll is None:
            return np.zeros(len(task), dtype=np.int64)
        new = ~contains(self.view.standby, code(task, member))
        return self.toll(task, member) * self.heavy(copies) + self.leaving * new

    def heavy(self, copies: int) -> int:
        """Factor of tolls against `leaving` when `copies` are placed.

        Raises:
            CostsTooLarge: the price of a copy may not fit 64 bits.
        """
        factor = copies * self.leaving + 1 if self.tolls_first else 1
        dearest = 0 if self.toll is None else int(self.toll.across.max(initial=0))
        if dearest * factor * copies * NEW_COPY >= 1 << 62:
            raise CostsTooLarge(TOO_DEAR)
        return factor


def joined(first: Pairs, second: Pairs) -> Pairs:
    """The union of two sets of pairs."""
    if len(first) == 0 or len(second) == 0:
        return first if len(second) == 0 else second
    return Pairs.of(
        np.concatenate((first.task, second.task)), np.concatenate((first.member, second.member))
    )
