"""A test kit for users: tests their callbacks and assignors under faults, without Kafka.

`Environment` runs the real worker and the real coordinator on simulated time. Python loads each
name when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.testing.assignor_check import Checked, check_assignor
    from muster.testing.cluster import Cluster
    from muster.testing.environment import Environment
    from muster.testing.errors import AssignorBroken, EnvironmentFailed
    from muster.testing.fault_scripts import Fault, Script, faults
    from muster.testing.threads import CallbackHangs

__all__ = [
    "AssignorBroken",
    "CallbackHangs",
    "Checked",
    "Cluster",
    "Environment",
    "EnvironmentFailed",
    "Fault",
    "Script",
    "check_assignor",
    "faults",
]

_MODULES = {
    "AssignorBroken": "muster.testing.errors",
    "Checked": "muster.testing.assignor_check",
    "Cluster": "muster.testing.cluster",
    "check_assignor": "muster.testing.assignor_check",
    "CallbackHangs": "muster.testing.threads",
    "Environment": "muster.testing.environment",
    "EnvironmentFailed": "muster.testing.errors",
    "Fault": "muster.testing.fault_scripts",
    "Script": "muster.testing.fault_scripts",
    "faults": "muster.testing.fault_scripts",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
