"""The log of one worker: one line for each assignment that differs from the one before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from muster.protocol.records import NO_TASKS
from muster.protocol.unknown_names import no_tasks_beside
from muster.worker.assignment import Assignment

log = logging.getLogger("muster.worker")
_LogAdapter: TypeAlias = logging.LoggerAdapter[logging.Logger]


class WorkerLog:
    """The log of one worker.

    `configured_groups` looks up which groups have tasks; it returns None if Kafka did not answer.

    Attributes:
        log: takes lines; their fields name the group, the member and the newest generation.
    """

    def __init__(
        self, group: str, member: str, configured_groups: Callable[[], Sequence[str] | None]
    ) -> None:
        self.log = _LogAdapter(log, {"group": group, "member": member})
        self._member = member
        self._configured_groups = configured_groups
        self._logged: Assignment | None = None
        self._notice = ""

    def assigned(self, assignment: Assignment) -> None:
        """Log an assignment, unless only its revision differs from the last one."""
        self.log = _LogAdapter(log, assignment.about)
        self._notice = ""
        unnumbered = replace(assignment, revision=0)
        if unnumbered == self._logged:
            return
        self._logged = unnumbered
        if assignment.message.startswith(NO_TASKS):  # it may wait for tasks for ever
            threading.Thread(
                target=self._warn_of_no_tasks, args=(assignment,), name="muster-groups", daemon=True
            ).start()
            return
        active, standby, learner = assignment.active, assignment.standby, assignment.learner
        counts = f"{len(active)} active, {len(standby)} standby, {len(learner)} learner"
        message = assignment.message or "no news"
        self.log.info("%s: assigned %s (%s)", self._member, counts, message)

    def _warn_of_no_tasks(self, assignment: Assignment) -> None:
        """Warn that the group has no tasks. Its name is often misspelt, so name other groups."""
        groups = self._configured_groups()
        message = (
            assignment.message if groups is None else no_tasks_beside(assignment.group, groups)
        )
        self.log.warning("%s: %s", self._member, message)

    def hung(self, call: str | None) -> None:
        """Log that a callback has run for long; None = none has."""
        if call is not None:
            self.log.warning("%s: %s", self._member, call)

    def lost(self, reason: str) -> None:
        """Log that every task is lost. The next assignment is logged whatever it contains."""
        self.log.warning("%s lost its tasks: %s", self._member, reason)
        self._logged = None

    def notice(self, text: str) -> None:
        """Log a warning, unless it is the same as the one before."""
        if text == self._notice:
            return
        self._notice = text
        self.log.warning("%s: %s", self._member, text)

    def left(self) -> None:
        """Log that the worker has left the group."""
        self.log.info("%s: has left the group", self._member)
