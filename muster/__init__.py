"""muster: Kafka-native task assignment as a service.

`Worker` makes a process a member of a group; its callbacks get tuples of `Task` with the
`Assignment` that granted or revoked them, in a `Role`. `parse_task` reads a task's id.
`MusterError` is the base class of all errors. Each name is loaded when first used, so that
``import muster`` and the command line are quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.protocol.errors import MusterError
    from muster.protocol.ids import Role, Task, parse_task
    from muster.worker.assignment import Assignment
    from muster.worker.worker import Worker

    __version__: str

__all__ = ["Assignment", "MusterError", "Role", "Task", "Worker", "__version__", "parse_task"]

_HOMES = {
    "Assignment": "muster.worker.assignment",
    "MusterError": "muster.protocol.errors",
    "Role": "muster.protocol.ids",
    "Task": "muster.protocol.ids",
    "Worker": "muster.worker.worker",
    "parse_task": "muster.protocol.ids",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("muster-kafka")
        except PackageNotFoundError:  # a checkout that is not installed
            return "unknown"
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
