"""What a worker says of itself in its log: one line for each assignment that is news."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from muster.protocol.misspelt import no_tasks_beside
from muster.protocol.records import NO_TASKS
from muster.worker.assignment import Assignment

log = logging.getLogger("muster.worker")
_LogAdapter: TypeAlias = logging.LoggerAdapter[logging.Logger]


class Teller:
    """The log of one worker.

    Attributes:
        log: takes lines; their fields name the group, the member and the newest generation.
        others: looks up which groups have tasks; None = it cannot be said.
    """

    others: Callable[[], Sequence[str] | None] = staticmethod(lambda: None)

    def __init__(self, group: str, member: str) -> None:
        self.log = _LogAdapter(log, {"group": group, "member": member})
        self._member = member
        self._told: Assignment | None = None
        self._noticed = ""

    def assigned(self, now: Assignment) -> None:
        """An assignment: one line, however often it comes."""
        self.log = _LogAdapter(log, now.about)
        self._noticed = ""
        news = replace(now, revision=0)
        if news == self._told:
            return
        self._told = news
        if now.message.startswith(NO_TASKS):  # else it would wait in silence, perhaps for ever
            threading.Thread(
                target=self._tell_bare, args=(now,), name="muster-groups", daemon=True
            ).start()
            return
        held = f"{len(now.active)} active, {len(now.standby)} standby, {len(now.learner)} learner"
        self.log.info("%s: assigned %s (%s)", self._member, held, now.message or "no news")

    def _tell_bare(self, now: Assignment) -> None:
        """The group has no tasks: most often its name is misspelt, so the others are named."""
        others = self.others()
        told = now.message if others is None else no_tasks_beside(now.group, others)
        self.log.warning("%s: %s", self._member, told)

    def hung(self, call: str | None) -> None:
        """A callback has not returned for long; None = none."""
        if call is not None:
            self.log.warning("%s: %s", self._member, call)

    def lost(self, reason: str) -> None:
        """Everything is lost, and the next assignment is news whatever it says."""
        self.log.warning("%s lost its tasks: %s", self._member, reason)
        self._told = None

    def notice(self, text: str) -> None:
        """Something a person should know: one line, however often it is said in a row."""
        if text == self._noticed:
            return
        self._noticed = text
        self.log.warning("%s: %s", self._member, text)

    def left(self) -> None:
        """The worker is no member any more, by its own will."""
        self.log.info("%s: has left the group", self._member)
