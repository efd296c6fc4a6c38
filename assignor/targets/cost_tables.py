"""What every task costs at every member, as tables (figures), for small problems.

A figure is a table of tasks x members; less is better. Figures judge a placement: moves, learners,
cold starts, copies restored from nothing, traffic. Only state counts: it costs nothing to lose a
standby without a reported lag.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from muster.assignor.copy_lags import NO_COPY, Copies, Longs, contains
from muster.assignor.model import NO_MEMBER, BoolArray, Pairs

READY, WARM, LEARNER, STANDBY, COLD_COPY, UNREPORTED, NO_STATE = range(7)
"""How good a copy is as a destination, best first.

`UNREPORTED` is a standby without a reported lag, `COLD_COPY` any other reported state.
"""
OTHER_STATE = 5
"""Rank of state of any age in `Figures.usefulness`."""


class Figures:
    """The figures of a group; `usable` (bool[M]) members may be given tasks."""

    def __init__(self, copies: Copies, usable: BoolArray) -> None:
        self._view, self._copies, self._usable = copies.view, copies, usable
        self.shape = len(self._view.tasks), len(self._view.members)
        task = np.repeat(np.arange(self.shape[0], dtype=np.int32), self.shape[1])
        member = np.tile(np.arange(self.shape[1], dtype=np.int32), self.shape[0])
        self._pairs = Pairs(task, member)

    def _table(self, values: BoolArray) -> BoolArray:
        table: BoolArray = values.reshape(self.shape)
        return table

    @cached_property
    def _lag(self) -> Longs:
        """int64[T, M], as `Copies.lag`."""
        return self._copies.lag(self._pairs.task, self._pairs.member).reshape(self.shape)

    @cached_property
    def stateful(self) -> BoolArray:
        """bool[T, 1]."""
        column: BoolArray = self._view.tasks.stateful[:, None]
        return column

    @cached_property
    def owned(self) -> BoolArray:
        """bool[T, M]: the member has the active."""
        owner: BoolArray = self._view.active[:, None] == np.arange(self.shape[1])
        return owner

    @cached_property
    def warm(self) -> BoolArray:
        """bool[T, M]: the copy is caught up."""
        return self._table(self._copies.reported_warm(self._pairs.task, self._pairs.member))

    @cached_property
    def bare(self) -> BoolArray:
        """bool[T, M]: the task is stateful and the member has no state of it."""
        bare: BoolArray = (self._lag == NO_COPY) & self.stateful
        return bare

    @cached_property
    def standing(self) -> BoolArray:
        """bool[T, M]: the member has a standby."""
        return self._table(contains(self._view.standby, self._pairs.code))

    @cached_property
    def learning(self) -> BoolArray:
        """bool[T, M]: the member has a learner."""
        return self._table(contains(self._view.learner, self._pairs.code))

    @cached_property
    def moved(self) -> BoolArray:
        """bool[T, M]: the task has an owner, and it is another member."""
        moved: BoolArray = (self._view.active != NO_MEMBER)[:, None] & ~self.owned
        return moved

    @cached_property
    def orphaned(self) -> BoolArray:
        """bool[T, 1]: the task has no owner."""
        unowned: BoolArray = (self._view.active == NO_MEMBER)[:, None]
        return unowned

    @cached_property
    def somewhere_warm(self) -> BoolArray:
        """bool[T, 1]: a member that may be given tasks is caught up."""
        warm = (self.warm & self._usable).any(axis=1, keepdims=True)
        somewhere_warm: BoolArray = warm & self.stateful
        return somewhere_warm

    @cached_property
    def cold(self) -> BoolArray:
        """bool[T, M]: an active would start cold here although a warm copy exists."""
        return self.somewhere_warm & ~self.warm

    def outrun(self, standbys: int) -> BoolArray:
        """bool[T, M]: the task has no owner and no warm copy, and a copy elsewhere is less behind.

        That copy would run the task meanwhile. Present standbys always count; other state counts
        only if no standbys are wanted, if no more members have state than standbys are wanted, or
        if every other member gets a copy anyway: else that member may become a standby (EX-H6).
        """
        state = (~self.bare & self._usable).sum(axis=1, keepdims=True)
        any_state = state <= standbys
        if standbys <= 0 or standbys >= np.count_nonzero(self._usable) - 1:
            any_state = np.ones_like(any_state)
        behind = np.where(self._usable, self._lag, NO_COPY)
        least = behind.min(axis=1, keepdims=True)
        first = (behind == least) & (behind != NO_COPY) & (self.standing | any_state)
        unowned = self.orphaned & self.stateful & ~self.somewhere_warm
        outrun: BoolArray = first.any(axis=1, keepdims=True) & unowned & (behind > least)
        return outrun

    def late(self, standbys: int) -> BoolArray:
        """bool[T, M]: another member runs the active meanwhile, while a learner restores here."""
        return (self.moved & ~self.warm & self.stateful) | self.cold | self.outrun(standbys)

    def wasted(self, standbys: int) -> BoolArray:
        """bool[T, M]: an active here leaves a copy unused, and one more is restored.

        A task has `standbys` + 1 copies. If no more members than that have state, each of them gets
        a copy, whichever member runs the task.
        """
        enough = (~self.bare & self._usable).sum(axis=1, keepdims=True) > standbys
        wasted: BoolArray = enough & self.bare
        return wasted

    @cached_property
    def quality(self) -> Longs:
        """int64[T, M]: `READY` (best) to `NO_STATE`, as the destination of an active."""
        rank = np.where(self.bare | ~self.stateful, NO_STATE, COLD_COPY)
        rank[self.standing] = np.where(self.bare[self.standing], UNREPORTED, STANDBY)
        rank[self.learning] = LEARNER
        rank[self.warm] = WARM
        rank[self._table(contains(self._view.ready, self._pairs.code))] = READY
        rank[self.owned | ~self.stateful] = READY
        return rank.astype(np.int64)

    @cached_property
    def behind(self) -> Longs:
        """int64[T, M]: lag of the copy as a power of two; 0 where there is no state."""
        lag = np.where(self.bare | ~self.stateful, 0, self._lag)
        powers: Longs = np.floor(np.log2(lag + 1.0)).astype(np.int64)
        return powers

    def usefulness(self, at_once: BoolArray) -> Longs:
        """int64[T, M]: rank as the place of a standby, best first.

        The order: a present standby, the former owner (S2-14; 1 if it may give the task up
        `at_once`, bool[T, 1]), a warm copy, a learner, state of any age, a standby without a
        reported lag, nothing.
        """
        rank = np.where(self.bare, 7, OTHER_STATE)
        rank[self.learning] = 4
        rank[self.warm] = 3
        rank = np.where(self.owned, np.where(at_once, 1, 2), rank)
        rank = np.where(self.standing, np.where(self.bare, 6, 0), rank)
        return rank.astype(np.int64)
