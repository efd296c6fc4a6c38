"""muster: Kafka-native task assignment as a service.

`Worker` is what a member of a group is made of, `MusterError` the root of all errors. Both are
loaded when first used: ``import muster`` is free, so the command line starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.protocol.errors import MusterError
    from muster.worker.worker import Worker

    __version__: str

__all__ = ["MusterError", "Worker", "__version__"]

_HOMES = {"MusterError": "muster.protocol.errors", "Worker": "muster.worker.worker"}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("muster-kafka")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
