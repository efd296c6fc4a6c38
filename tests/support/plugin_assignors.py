"""Plug-in assignors for tests, good and bad, named as ``support.plugin_assignors:Class``."""

from __future__ import annotations

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
"""Set it to end a hanging plug-in."""


class FirstTakesAll(TaskAssignor):
    """Everything to the first member; remembers what its callback was told."""

    def __init__(self) -> None:
        self.told: list[AssignmentError] = []

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Every task is active on the member with the lowest id."""
        found = {name: KafkaStreamsAssignment.of(name) for name in state.kafka_streams_states()}
        first = next(iter(found.values()))
        for task in state.all_tasks:
            first.assign_task(AssignedTask(task, TaskType.ACTIVE))
        return TaskAssignment.of(found.values())

    def on_assignment_computed(
        self, assignment: TaskAssignment | None, state: ApplicationState, error: AssignmentError
    ) -> None:
        """Keep the error."""
        self.told.append(error)


class Scripted(FirstTakesAll):
    """Everybody keeps what it has, after `change` had its way with it."""

    def __init__(self, change: Callable[[dict[str, KafkaStreamsAssignment]], object]) -> None:
        super().__init__()
        self.change = change

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """The changed identity."""
        found = identity_assignment(state)
        self.change(found)
        return TaskAssignment.of(found.values())


class NotNow(TaskAssignor):
    """Asks to be asked again."""

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Never."""
        raise TaskAssignmentException("lags are not known yet")


class Raises(TaskAssignor):
    """Fails."""

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Never."""
        raise ZeroDivisionError("oops")


class Hangs(TaskAssignor):
    """Does not come back before `RELEASE` is set."""

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Too late."""
        RELEASE.wait(60)
        return TaskAssignment.of(identity_assignment(state).values())


class Nonsense:
    """An assignor over arrays that answers with something else."""

    name = "nonsense"

    def assign(self, view: GroupView) -> Placement:
        """No placement at all."""
        return "everything to me"  # type: ignore[return-value]


class Exits(TaskAssignor):
    """Ends the process, were it let."""

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Never."""
        raise SystemExit(3)
