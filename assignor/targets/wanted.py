"""What is asked for when standbys are placed, what they cost, and what was found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from muster.assignor.copies import Longs, code, contains
from muster.assignor.model import BoolArray, GroupView, Pairs, no_pairs
from muster.assignor.solvers.shares import Counts
from muster.protocol.tasks import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Toll:
    """What a copy costs where (racks).

    Attributes:
        class_of: int32[T], class of each task.
        across: int64[C, R], cost of a copy of a class in a rack.
        rack: int32[M], rack of each member.
    """

    class_of: IntArray
    across: Longs
    rack: IntArray

    def __call__(self, task: IntArray, member: IntArray) -> Longs:
        """int64[K]: cost of a copy of each task at the member beside it."""
        cost: Longs = self.across[self.class_of[task], self.rack[member]]
        return cost

    def least(self, need: Counts) -> int:
        """What so many copies of each task cost at least, wherever they go."""
        tasks = np.flatnonzero(need)
        cheapest = self.across[:, np.unique(self.rack)].min(axis=1)
        return int((cheapest[self.class_of[tasks]] * need[tasks]).sum())


NEW = 50
"""Price of a copy where there is none; the prices of others are far below."""


class Near(NamedTuple):
    """Copies that exist, and what it costs to use each (int64[K])."""

    pairs: Pairs
    price: Longs


class Found(NamedTuple):
    """Standbys placed.

    Attributes:
        pairs: the copies.
        missing: how many found no member.
        bound: what any such copies cost at least, by `Wanted.cost`.
        warning: what could not be honoured; empty = everything was.
    """

    pairs: Pairs
    missing: int
    bound: int = 0
    warning: str = ""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Wanted:
    """What standbys are asked for.

    Attributes:
        tasks: int32[K], tasks that want copies, ascending.
        target: int32[T], where actives belong.
        copies: copies per task.
        capacity: int64[M], 0 = takes nothing.
        may: bool[M, U], which units a member may take; None = all.
        toll: cost of a copy by rack; None = the same everywhere.
        leaving: cost of a copy that is not there yet, beside the toll.
        tolls_first: no number of new copies outweighs a toll, and `cost` is tolls alone; else the
            sum of both is minimised and told.
        loads: int64[M], actives each member has, stateless ones included if they are placed;
            None = those of `tasks`.
        apart: for how many copies of a task no traffic outweighs a rack where it has none yet;
            for the others traffic comes first, then such a rack (S4-31).
        taken: copies that stand already; no second one is placed on their members.
        rack: int32[M], rack of each member, -1 = unknown; among choices that are equal otherwise a
            copy goes to a rack where the task has none yet (S4-29). None = all in one rack.
    """

    tasks: IntArray
    target: IntArray
    copies: int
    capacity: Counts
    may: BoolArray | None = None
    toll: Toll | None = None
    leaving: int = 0
    tolls_first: bool = False
    loads: Counts | None = None
    apart: int = 0
    taken: Pairs = field(default_factory=no_pairs)
    rack: IntArray | None = None

    def beside_active(self, task: IntArray, member: IntArray) -> BoolArray:
        """bool[K]: whether each member is in the rack of the task's active."""
        if self.rack is None:
            return np.zeros(len(task), dtype=np.bool_)
        rack = np.append(self.rack, -2)  # entry -1: no member
        near: BoolArray = (rack[self.target[task]] == rack[member]) & (rack[member] >= 0)
        return near

    def within(self, members: BoolArray) -> Wanted:
        """The same asked of some members only."""
        return replace(self, capacity=np.where(members, self.capacity, 0))

    def beside(self, pairs: Pairs) -> Wanted:
        """The same, with further copies that stand already."""
        return replace(self, taken=joined(self.taken, pairs))

    def cost(self, view: GroupView, pairs: Pairs) -> int:
        """What some copies cost, as far as it is minimised."""
        if self.toll is None or len(pairs) == 0:
            return 0
        tolls = int(self.toll(pairs.task, pairs.member).sum())
        if self.tolls_first:
            return tolls
        return tolls + self.leaving * int(np.count_nonzero(~contains(view.standby, pairs.code)))

    def price(self, view: GroupView, copies: int, task: IntArray, member: IntArray) -> Longs:
        """int64[K]: price of each of some choices for so many copies, for comparison only."""
        if self.toll is None:
            return np.zeros(len(task), dtype=np.int64)
        new = ~contains(view.standby, code(task, member))
        return self.toll(task, member) * self.heavy(copies) + self.leaving * new

    def heavy(self, copies: int) -> int:
        """How much tolls weigh against leaving, when so many copies are placed."""
        return copies * self.leaving + 1 if self.tolls_first else 1


def joined(one: Pairs, other: Pairs) -> Pairs:
    """Two sets of pairs as one."""
    if len(one) == 0 or len(other) == 0:
        return one if len(other) == 0 else other
    return Pairs.of(
        np.concatenate((one.task, other.task)), np.concatenate((one.member, other.member))
    )
