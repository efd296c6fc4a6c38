"""What a worker says of itself in its log: one line for each assignment that is news."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TypeAlias

from muster.protocol.records import NO_TASKS
from muster.worker.assignment import Assignment

log = logging.getLogger("muster.worker")
_LogAdapter: TypeAlias = logging.LoggerAdapter[logging.Logger]


class Teller:
    """The log of one worker.

    Attributes:
        log: takes lines; their fields name the group, the member and the newest generation.
    """

    def __init__(self, group: str, member: str) -> None:
        self.log = _LogAdapter(log, {"group": group, "member": member})
        self._member = member
        self._told: Assignment | None = None

    def assigned(self, now: Assignment) -> None:
        """An assignment: one line, however often it comes."""
        self.log = _LogAdapter(log, now.about)
        news = replace(now, revision=0)
        if news == self._told:
            return
        self._told = news
        if now.message.startswith(NO_TASKS):  # else it would wait in silence, perhaps for ever
            self.log.warning("%s: %s", self._member, now.message)
            return
        held = f"{len(now.active)} active, {len(now.standby)} standby, {len(now.learner)} learner"
        self.log.info("%s: assigned %s (%s)", self._member, held, now.message or "no news")

    def lost(self, reason: str) -> None:
        """Everything is lost, and the next assignment is news whatever it says."""
        self.log.warning("%s lost its tasks: %s", self._member, reason)
        self._told = None

    def notice(self, text: str) -> None:
        """Something a person should know."""
        self.log.warning("%s: %s", self._member, text)

    def left(self) -> None:
        """The worker is no member any more, by its own will."""
        self.log.info("%s: has left the group", self._member)
