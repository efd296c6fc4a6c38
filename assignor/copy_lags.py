"""Copies of state: how far behind each is, and which may take over.

A copy is *warm* (Kafka: caught up, S2-F27) when its learner is ready, or its member reported a lag
within `acceptable.recovery.lag`. Without a report, the owner is caught up and any other member has
nothing. A task is *overtaken* when its owner reported that it still restores while another copy is
warm.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, no_pairs
from muster.protocol.setting_values import LONG_MAX
from muster.protocol.tasks import IntArray

Longs = NDArray[np.int64]
NO_COPY = LONG_MAX
"""Lag of a member that has reported nothing about a task."""


class Copies:
    """The copies of a view, looked up in bulk.

    Attributes:
        view: the group.
        acceptable: largest lag of a warm copy, in offsets.
        owner: int32[T], present owners that may still take the task, `NO_MEMBER` elsewhere.
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
    def _reported(self) -> Longs:
        return code(self.view.lags.task, self.view.lags.member)

    def lag(self, task: IntArray, member: IntArray) -> Longs:
        """int64[K]: offsets each member is behind; 0 for ready learners and unreported owners."""
        behind: Longs = np.where(self.view.active[task] == member, 0, NO_COPY).astype(np.int64)
        pairs = code(task, member)
        if len(self._reported):
            index = np.minimum(np.searchsorted(self._reported, pairs), len(self._reported) - 1)
            behind = np.where(self._reported[index] == pairs, self.view.lags.offsets[index], behind)
        behind[contains(self.view.ready, pairs)] = 0
        return behind

    def lag_of(self, task: int, member: int) -> int:
        """`lag` of one pair, without arrays."""
        if holds(self.view.ready, task, member):
            return 0
        reported, pair = self._reported, task << 32 | member
        index = int(reported.searchsorted(pair))
        if index < len(reported) and reported[index] == pair:
            return int(self.view.lags.offsets[index])
        return 0 if self.view.active[task] == member else NO_COPY

    def warm(self, task: IntArray, member: IntArray) -> BoolArray:
        """bool[K]: whether each copy may take over at once.

        Always True where `acceptable.recovery.lag` is the largest possible number.
        """
        if self.acceptable == LONG_MAX:
            return np.ones(len(task), dtype=np.bool_)
        return self.reported_warm(task, member)

    def reported_warm(self, task: IntArray, member: IntArray) -> BoolArray:
        """bool[K]: as `warm`, but always False for members without state."""
        behind = self.lag(task, member)
        warm: BoolArray = (behind >= 0) & (behind <= self.acceptable) & (behind != NO_COPY)
        return warm

    def reported_warm_of(self, task: int, member: int) -> bool:
        """`reported_warm` of one pair."""
        behind = self.lag_of(task, member)
        return 0 <= behind <= self.acceptable and behind != NO_COPY

    def overtaken(self) -> IntArray:
        """Tasks whose owner restores while a member that does not drain has a warm copy."""
        view, lags = self.view, self.view.lags
        late = (view.active[lags.task] == lags.member) & (lags.offsets > self.acceptable)
        tasks: IntArray = lags.task[late]
        if len(tasks) == 0:
            return tasks
        pairs = self.of(tasks)
        usable = self.reported_warm(pairs.task, pairs.member) & ~view.draining[pairs.member]
        overtaken: IntArray = np.unique(pairs.task[usable])
        return overtaken

    def of(self, tasks: IntArray) -> Pairs:
        """Every copy of the given tasks, owners included: held in any role, or with a reported lag.

        Stateless tasks have none. Copies on members that may not take the task are left out.

        Args:
            tasks: task indexes, in any order.
        """
        view = self.view
        asked = np.zeros(len(view.tasks), dtype=np.bool_)
        asked[tasks] = True
        asked &= view.tasks.stateful
        if not asked.any():
            return no_pairs()
        owned = np.flatnonzero(asked & (view.active >= 0)).astype(np.int32)
        task, member = [owned], [view.active[owned]]
        for source in (view.standby, view.learner, view.ready, view.lags):
            keep = asked.take(source.task)
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
    """Whether `pairs` contains one pair."""
    codes, pair = pairs.code, task << 32 | member
    index = int(codes.searchsorted(pair))
    return index < len(codes) and bool(codes[index] == pair)


def contains(pairs: Pairs, codes: Longs) -> BoolArray:
    """bool[K]: which of the given codes are among the pairs."""
    if len(pairs) == 0:
        return np.zeros(len(codes), dtype=np.bool_)
    present = pairs.code
    index = np.minimum(np.searchsorted(present, codes), len(present) - 1)
    contained: BoolArray = present[index] == codes
    return contained
