"""Plug-in assignors for tests, good and bad, named as ``support.plugin_assignors:Class``.

Groups stored in `tests/golden/state` have this name, so the file stays where it is.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable

from muster.assignor.api import (
    ApplicationState,
    AssignedTask,
    AssignmentError,
    KafkaStreamsAssignment,
    TaskAssignment,
    TaskAssignmentException,
    TaskAssignor,
    TaskType,
    identity_assignment,
)
from muster.assignor.model import GroupView, Placement

RELEASE = threading.Event()
"""Set this to end a hanging plug-in."""


class FirstTakesAll(TaskAssignor):
    """Gives all tasks to the first member; records the errors that its callback gets."""

    def __init__(self) -> None:
        self.errors: list[AssignmentError] = []

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Every task is active on the member with the lowest id."""
        names = state.kafka_streams_states()
        assignments = {name: KafkaStreamsAssignment.of(name) for name in names}
        first = next(iter(assignments.values()))
        for task in state.all_tasks:
            first.assign_task(AssignedTask(task, TaskType.ACTIVE))
        return TaskAssignment.of(assignments.values())

    def on_assignment_computed(
        self, assignment: TaskAssignment | None, state: ApplicationState, error: AssignmentError
    ) -> None:
        """Record the error."""
        self.errors.append(error)


class Scripted(FirstTakesAll):
    """The identity assignment, modified by `change`."""

    def __init__(self, change: Callable[[dict[str, KafkaStreamsAssignment]], object]) -> None:
        super().__init__()
        self.change = change

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """The modified identity assignment."""
        kept = identity_assignment(state)
        self.change(kept)
        return TaskAssignment.of(kept.values())


class NotNow(TaskAssignor):
    """Returns a failure that asks for another call."""

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Raise."""
        raise TaskAssignmentException("lags are not known yet")


class Raises(TaskAssignor):
    """Raises an error."""

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Raise."""
        raise ZeroDivisionError("oops")


class Hangs(TaskAssignor):
    """Hangs until `RELEASE` is set."""

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Return too late."""
        RELEASE.wait(60)
        return TaskAssignment.of(identity_assignment(state).values())


class Nonsense:
    """An assignor over arrays that returns another type."""

    name = "nonsense"

    def assign(self, view: GroupView) -> Placement:
        """Return no placement."""
        return "everything to me"  # type: ignore[return-value]


class Exits(TaskAssignor):
    """Tries to end the process."""

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Raise."""
        raise SystemExit(3)


class Aborts(TaskAssignor):
    """Ends the process, whatever guards it, as a fault in a native library does."""

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Never."""
        os.abort()


class Holds(TaskAssignor):
    """Never comes back, and lets no other thread of Python's run meanwhile."""

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Never."""
        re.match(r"(a+)+$", "a" * 60 + "b")
        return TaskAssignment.of(identity_assignment(state).values())
