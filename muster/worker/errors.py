"""Errors of a worker."""

from __future__ import annotations

from muster.protocol.errors import MusterError
from muster.protocol.records import Fault


class WorkerError(MusterError):
    """The worker cannot go on. Its tasks have stopped, or the process must end."""


class Fenced(WorkerError):
    """The coordinator refused this member for good.

    Operator action: `FENCED_INSTANCE_ID`: two processes use one instance id, stop one of them;
    `INVALID_REQUEST`: it says that it runs more tasks than a group can track that are not in the
    group's list, or a newer coordinator refuses it; the message says which. Start the process anew.

    Attributes:
        fault: why.
        message: the coordinator's explanation.
    """

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(fault, message)
        self.fault = fault
        self.message = message

    def __str__(self) -> str:
        return f"{self.fault.value}: {self.message}"


class CallbackFailed(WorkerError):
    """A callback that stops tasks kept raising, so it is unknown whether they stopped.

    The worker sends no heartbeats any more; when its session ends, other members get the tasks.
    Operator action: end the process before that, and fix the callback (its error is the cause).

    Attributes:
        callback: name of the callback.
        tasks: printed ids of the tasks it was called with.
    """

    def __init__(self, callback: str, tasks: tuple[str, ...]) -> None:
        super().__init__(callback, tasks)
        self.callback = callback
        self.tasks = tasks

    def __str__(self) -> str:
        return f"{self.callback} kept failing for {', '.join(self.tasks) or 'no task'}"
