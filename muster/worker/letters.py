"""The events of one member, filled in: what it says of itself, of what it holds and of its copies.

`Session` decides when which is sent.
"""

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
"""Lags in one `LagReport`: as many as a record has room for, whatever the units are called."""


class Letters:
    """Writes the events of a member.

    Args:
        join: what the member says of itself; its incarnation, holding and lags are filled in.
    """

    def __init__(self, join: Join) -> None:
        self._self = join
        self._lags: dict[Task, int] = {lag.task: lag.offsets for lag in join.lags}

    # ---------------------------------------------------------------------------------------- lags

    def note_lags(self, lags: tuple[Lag, ...]) -> None:
        """How far copies, and actives that still restore, are behind: newest figures."""
        self._lags.update((lag.task, lag.offsets) for lag in lags)

    def forget_lags(self, tasks: TaskSet) -> None:
        """What was said of these counts no more."""
        self._lags = {task: n for task, n in self._lags.items() if task not in tasks}

    def forget_all_lags(self) -> None:
        """Every task was lost, and its copy with it."""
        self._lags.clear()

    def lag_reports(self, lags: tuple[Lag, ...]) -> Iterator[LagReport]:
        """Lags at once, in as many events as they need."""
        for first in range(0, len(lags), LAGS_MAX):
            part = lags[first : first + LAGS_MAX]
            yield LagReport(group=self._self.group, member=self._self.member, lags=part)

    # -------------------------------------------------------------------------------------- events

    def join(self, incarnation: int) -> Join:
        """Who the member is; with the lags of what it found on its disk."""
        lags = tuple(Lag(task, offsets) for task, offsets in sorted(self._lags.items()))
        return replace(self._self, incarnation=incarnation, lags=lags)

    def report(
        self, record: MemberAssignment, holding: Holding, incarnation: int, coordinator_epoch: int
    ) -> Report:
        """All that the member holds, as of a record."""
        held = holding.active | holding.standby | holding.learner
        return Report(
            group=self._self.group,
            member=self._self.member,
            incarnation=incarnation,
            epoch=record.epoch,
            revision=record.revision,
            holding=holding,
            lags=tuple(Lag(t, n) for t, n in sorted(self._lags.items()) if t in held),
            coordinator_epoch=coordinator_epoch,
        )

    def heartbeat(self, record: MemberAssignment, holding: Holding) -> Heartbeat:
        """A sign of life."""
        return Heartbeat(
            group=self._self.group,
            member=self._self.member,
            epoch=record.epoch,
            digest=holding.digest(),
        )

    def leave(self, incarnation: int, temporary: bool) -> Leave:
        """Everything has stopped, and the member goes, for a while if `temporary`."""
        return Leave(
            group=self._self.group,
            member=self._self.member,
            incarnation=incarnation,
            temporary=temporary,
        )
