"""The interface of a KIP-924 plug-in, and a plug-in as the rest of muster calls it.

`Adapted` runs a `TaskAssignor`, checks its answer in the KIP's order and turns it into a placement.
This module has no clock and no threads; `muster.plugins` enforces time limits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

from muster.assignor.errors import AssignorError
from muster.assignor.kip924.application_state import ApplicationState, AssignmentConfigs
from muster.assignor.kip924.plugin_answer import (
    AssignmentError,
    TaskAssignment,
    placement_of,
    violation_of,
)
from muster.assignor.model import GroupView, Placement


class TaskAssignor(ABC):
    """The interface a plug-in implements."""

    def configure(self, configs: AssignmentConfigs) -> None:  # noqa: B027  # optional in the KIP
        """Called with the group's settings before every assignment."""

    @abstractmethod
    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Assign every task of the group.

        Raises:
            TaskAssignmentException: it cannot decide now; the group keeps its assignment and asks
                again.
        """

    def on_assignment_computed(  # noqa: B027  # optional in the KIP
        self, assignment: TaskAssignment | None, state: ApplicationState, error: AssignmentError
    ) -> None:
        """Called after every assignment, also an invalid one; None = it was no TaskAssignment."""


class Adapted:
    """A `TaskAssignor` as an assignor over arrays, under the name that the user configured."""

    def __init__(self, name: str, plugin: TaskAssignor) -> None:
        self.name = name
        self.plugin = plugin

    def assign(self, view: GroupView) -> Placement:
        """Run the plug-in and check its answer.

        Raises:
            TaskAssignmentException: the plug-in cannot decide now; ask again.
            InvalidPlacement: the answer breaks the KIP's rules; `on_assignment_computed` got the
                error.
            AssignorError: the answer is no TaskAssignment.
        """
        state = ApplicationState(view)
        self.plugin.configure(state.assignment_configs)
        answer = cast("object", self.plugin.assign(state))  # a plug-in may return anything
        if not isinstance(answer, TaskAssignment):
            self.plugin.on_assignment_computed(None, state, AssignmentError.NONE)
            raise AssignorError(
                f"assignor {self.name} answered {type(answer).__name__}, not a TaskAssignment"
            )
        violation = violation_of(view, answer.assignment)
        error = AssignmentError(violation.error) if violation else AssignmentError.NONE
        self.plugin.on_assignment_computed(answer, state, error)
        if violation is not None:
            raise violation
        return placement_of(view, answer)
