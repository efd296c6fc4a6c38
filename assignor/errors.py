"""Errors of placement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from muster.protocol.errors import MusterError

RIGHT = {
    "UNKNOWN_PROCESS_ID": "the group has no such member; an answer names present members only",
    "MISSING_PROCESS_ID": "an answer has an entry for each member of the group, if only an empty"
    " one",
}
"""What would be right in place of a violation whose name does not say it."""


class AssignorError(MusterError):
    """An assignor could not place. The group keeps its target and says why."""


class UnknownAssignor(AssignorError):
    """No assignor of that name.

    Operator action: use one of the built-in names, or ``module:Class`` of an installed plug-in.
    """


class InvalidPlacement(AssignorError):
    """The first violation of the placement rules that `check.valid` met.

    Attributes:
        error: the violation's name (KIP-924's where it has one).
        task: printed id of the task concerned; None when the violation is about a member.
        member: member concerned, None when the violation is about a task alone.
        assignor: whose answer it is, as `answer_of` notes; empty = the caller says it.
    """

    def __init__(self, error: str, task: str | None = None, member: str | None = None) -> None:
        super().__init__(error, task, member)
        self.assignor = ""
        self.error = error
        self.task = task
        self.member = member

    def __str__(self) -> str:
        about = [
            f"task {self.task}" if self.task else "",
            f"member {self.member}" if self.member else "",
        ]
        violation = " ".join([self.error, *filter(None, about)])
        right = f": {RIGHT[self.error]}" if self.error in RIGHT else ""
        who = f"the answer of assignor {self.assignor} is refused: " if self.assignor else ""
        return f"{who}{violation}{right}"


@contextmanager
def answer_of(assignor: str) -> Iterator[None]:
    """Note in an `InvalidPlacement` whose answer it refuses."""
    try:
        yield
    except InvalidPlacement as error:
        error.assignor = assignor
        raise
