"""Copies of state: who has how much of a task, and which copies are good enough to take over.

A copy is *warm* (Kafka: caught up, S2-F27) when its member said its learner is ready, or told a lag
within `acceptable.recovery.lag`. Nothing told means a full restore; of a task that the member runs
now it means that it has caught up. A task is *overtaken* when who runs it told that it is still
restoring, and a copy elsewhere is warm.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, no_pairs
from muster.protocol.accepted import LONG_MAX
from muster.protocol.tasks import IntArray

Longs = NDArray[np.int64]
NO_COPY = LONG_MAX
"""Lag of a member that has told nothing about a task."""


class Copies:
    """The copies of a view, looked up in bulk.

    Attributes:
        view: the group.
        acceptable: largest lag of a warm copy.
        owner: int32[T], present owners that may go on running the task, `NO_MEMBER` elsewhere.
    """

    def __init__(self, view: GroupView) -> None:
        self.view = view
        self.acceptable = view.settings.acceptable_recovery_lag
        self._restricted = not view.unrestricted
        self.owner = view.active
        if self._restricted and int(view.active.max(initial=NO_MEMBER)) != NO_MEMBER:
            fits = view.kinds.may_take(view.tasks.unit_of, view.active)
            if not fits.all():
                self.owner = np.where(fits, view.active, NO_MEMBER).astype(np.int32)

    @property
    def none(self) -> bool:
        """Whether no member but the owners has any state."""
        view = self.view
        return not (
            len(view.standby) or len(view.learner) or len(view.ready) or len(view.lags.task)
        )

    @cached_property
    def _told(self) -> Longs:
        return code(self.view.lags.task, self.view.lags.member)

    def lag(self, task: IntArray, member: IntArray) -> Longs:
        """int64[K]: offsets each member is behind; 0 for a silent owner and for ready learners."""
        behind: Longs = np.where(self.view.active[task] == member, 0, NO_COPY).astype(np.int64)
        pairs = code(task, member)
        if len(self._told):
            place = np.minimum(np.searchsorted(self._told, pairs), len(self._told) - 1)
            behind = np.where(self._told[place] == pairs, self.view.lags.offsets[place], behind)
        behind[contains(self.view.ready, pairs)] = 0
        return behind

    def lag_of(self, task: int, member: int) -> int:
        """`lag` of one pair, without the cost of arrays."""
        if holds(self.view.ready, task, member):
            return 0
        told, pair = self._told, task << 32 | member
        place = int(told.searchsorted(pair))
        if place < len(told) and told[place] == pair:
            return int(self.view.lags.offsets[place])
        return 0 if self.view.active[task] == member else NO_COPY

    def warm(self, task: IntArray, member: IntArray) -> BoolArray:
        """bool[K]: whether each pair's copy may take over at once."""
        if self.acceptable == LONG_MAX:
            return np.ones(len(task), dtype=np.bool_)
        return self.told_warm(task, member)

    def told_warm(self, task: IntArray, member: IntArray) -> BoolArray:
        """bool[K]: as `warm`, but a member that told nothing has nothing."""
        behind = self.lag(task, member)
        answer: BoolArray = (behind >= 0) & (behind <= self.acceptable) & (behind != NO_COPY)
        return answer

    def told_warm_of(self, task: int, member: int) -> bool:
        """`told_warm` of one pair."""
        behind = self.lag_of(task, member)
        return 0 <= behind <= self.acceptable and behind != NO_COPY

    def overtaken(self) -> IntArray:
        """Tasks whose owner restores while a member that may go on running them has caught up."""
        view, lags = self.view, self.view.lags
        late = (view.active[lags.task] == lags.member) & (lags.offsets > self.acceptable)
        tasks: IntArray = lags.task[late]
        if len(tasks) == 0:
            return tasks
        pairs = self.of(tasks)
        usable = self.told_warm(pairs.task, pairs.member) & ~view.draining[pairs.member]
        found: IntArray = np.unique(pairs.task[usable])
        return found

    def of(self, tasks: IntArray) -> Pairs:
        """Every copy of some tasks, owners included: held in any role, or told a lag about.

        Tasks without state have none. Copies on members that may not take the task are left out.

        Args:
            tasks: their indexes, in any order.
        """
        view = self.view
        wanted = np.zeros(len(view.tasks), dtype=np.bool_)
        wanted[tasks] = True
        wanted &= view.tasks.stateful
        if not wanted.any():
            return no_pairs()
        owned = np.flatnonzero(wanted & (view.active >= 0)).astype(np.int32)
        task, member = [owned], [view.active[owned]]
        for source in (view.standby, view.learner, view.ready, view.lags):
            keep = wanted.take(source.task)
            task.append(source.task[keep])
            member.append(source.member[keep])
        pairs = Pairs.of(np.concatenate(task), np.concatenate(member))
        if not self._restricted:
            return pairs
        fits = view.may_take(pairs.task, pairs.member)
        return pairs.only(fits)


def code(task: IntArray, member: IntArray) -> Longs:
    """int64[K]: pairs as single numbers, ``task << 32 | member``."""
    return task.astype(np.int64) << 32 | member.astype(np.int64)


def holds(pairs: Pairs, task: int, member: int) -> bool:
    """Whether one pair is among some pairs."""
    held, pair = pairs.code, task << 32 | member
    place = int(held.searchsorted(pair))
    return place < len(held) and bool(held[place] == pair)


def contains(pairs: Pairs, wanted: Longs) -> BoolArray:
    """bool[K]: which codes are among some pairs."""
    if len(pairs) == 0:
        return np.zeros(len(wanted), dtype=np.bool_)
    held = pairs.code
    place = np.minimum(np.searchsorted(held, wanted), len(held) - 1)
    answer: BoolArray = held[place] == wanted
    return answer
