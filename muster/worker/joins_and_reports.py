"""Builds the events of one member. `Session` decides which one is sent, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from muster.protocol.digest import Holding
from muster.protocol.events import Heartbeat, Join, Lag, LagReport, Leave, Report
from muster.protocol.ids import Task
from muster.protocol.records import MemberAssignment
from muster.protocol.tasks import TaskSet

LAGS_MAX: Final = 20_000
"""Lags in one `LagReport`: as many as fit into a record with the longest unit names."""


class EventBuilder:
    """Builds the events of a member, and remembers the lags that its reports carry.

    The join that it gets has the member's own settings; the rest of each join is filled in.
    """

    def __init__(self, join: Join) -> None:
        self.plain = self._join = join
        self._lags: dict[Task, int] = {lag.task: lag.offsets for lag in join.lags}

    # ---------------------------------------------------------------------------------------- lags

    def note_lags(self, lags: tuple[Lag, ...]) -> None:
        """Remember the newest lags of copies and of actives that still restore."""
        self._lags.update((lag.task, lag.offsets) for lag in lags)

    def forget_lags(self, tasks: TaskSet) -> None:
        """Forget the lags of these tasks."""
        self._lags = {task: n for task, n in self._lags.items() if task not in tasks}

    def end_lags(self, tasks: TaskSet) -> None:
        """Set the lags of these tasks to 0 where one is known."""
        self._lags.update({task: 0 for task in self._lags if task in tasks})

    def forget_all_lags(self) -> None:
        """Forget all lags: every task was lost, and its copy may be gone."""
        self._lags.clear()

    def lag_reports(self, lags: tuple[Lag, ...]) -> Iterator[LagReport]:
        """These lags, in as many events as they need."""
        for first in range(0, len(lags), LAGS_MAX):
            part = lags[first : first + LAGS_MAX]
            yield LagReport(group=self._join.group, member=self._join.member, lags=part)

    # -------------------------------------------------------------------------------------- events

    def offer(self, apart: bool) -> None:
        """Note whether joins offer to heartbeat apart."""
        self._join = replace(self._join, apart=apart)

    def join(self, incarnation: int, holding: Holding) -> Join:
        """A join, with what the member runs already and the lags of copies found on its disk."""
        lags = tuple(Lag(task, offsets) for task, offsets in sorted(self._lags.items()))
        return replace(self._join, incarnation=incarnation, holding=holding, lags=lags)

    def report(
        self, record: MemberAssignment, holding: Holding, incarnation: int, coordinator_epoch: int
    ) -> Report:
        """Everything the member holds, as of a record."""
        held = holding.active | holding.standby | holding.learner
        return Report(
            group=self._join.group,
            member=self._join.member,
            incarnation=incarnation,
            epoch=record.epoch,
            revision=record.revision,
            holding=holding,
            lags=tuple(Lag(t, n) for t, n in sorted(self._lags.items()) if t in held),
            coordinator_epoch=coordinator_epoch,
        )

    def heartbeat(self, record: MemberAssignment, holding: Holding) -> Heartbeat:
        """A heartbeat: the digest of the holding says whether the coordinator knows it."""
        return Heartbeat(
            group=self._join.group,
            member=self._join.member,
            epoch=record.epoch,
            digest=holding.digest(),
        )

    def leave(self, incarnation: int, temporary: bool) -> Leave:
        """A leave: every task has stopped. If `temporary`, the member returns soon."""
        return Leave(
            group=self._join.group,
            member=self._join.member,
            incarnation=incarnation,
            temporary=temporary,
        )
