"""Errors of placement."""

from __future__ import annotations

from muster.protocol.errors import MusterError


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
    """

    def __init__(self, error: str, task: str | None = None, member: str | None = None) -> None:
        super().__init__(error, task, member)
        self.error = error
        self.task = task
        self.member = member

    def __str__(self) -> str:
        about = [
            f"task {self.task}" if self.task else "",
            f"member {self.member}" if self.member else "",
        ]
        return " ".join([self.error, *filter(None, about)])
