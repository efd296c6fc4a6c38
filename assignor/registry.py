"""Assignors by name. A module is imported when its assignor is first asked for.

Third parties register under the entry point group ``muster.assignors``, or are named as
``module:Class``; a plug-in is an `Assignor` or a KIP-924 `TaskAssignor`. A guard that the process
sets (`guard_with`) loads and runs plug-ins: safety from foreign code takes threads and a clock,
which this package does not have.

A config record names an assignor, and importing a module runs its code: `is_registered` says which
names are safe to load from a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from muster.assignor.errors import UnknownAssignor
from muster.assignor.model import Assignor

ENTRY_POINTS = "muster.assignors"

BUILT_IN = {
    "eager": "muster.assignor.connect.eager:Eager",
    "cooperative": "muster.assignor.connect.protocols:Cooperative",
    "static": "muster.assignor.connect.protocols:Static",
    "high-availability": "muster.assignor.high_availability_assignor:HighAvailability",
    "sticky": "muster.assignor.sticky_assignor:Sticky",
    "fallback": "muster.assignor.fallback_assignor:Fallback",
    "learner": "muster.assignor.learner_assignor:Learner",
}


Load = Callable[[], Assignor]
"""Imports a plug-in's module and makes the plug-in; runs foreign code."""
Guard = Callable[[str, Load], Assignor]
"""Loads a plug-in, given its name, and hands it out."""


def _unguarded(_name: str, load: Load) -> Assignor:
    return load()


_guards: list[Guard] = [_unguarded]


def names() -> tuple[str, ...]:
    """Names of the built-in assignors, then of installed plug-ins."""
    return (*BUILT_IN, *(name for name in sorted(_plugged()) if name not in BUILT_IN))


def is_registered(name: str) -> bool:
    """Whether the name is built in or an installed entry point, and so safe to load."""
    return name in BUILT_IN or name in _plugged()


@cache
def get(name: str) -> Assignor:
    """The assignor of that name: built in, ``module:Class``, or an installed entry point.

    Raises:
        UnknownAssignor: no such name; the message lists the names there are.
    """
    if name in BUILT_IN:
        return _load(name, BUILT_IN[name])
    path = _plugged().get(name) or (name if ":" in name else None)
    if path is None:
        raise UnknownAssignor(
            f"no assignor is called {name!r}; there are {', '.join(names())},"
            " or module:Class of an installed plug-in"
        )
    return _guards[-1](name, partial(_load, name, path))


def guard_with(guard: Guard) -> None:
    """Load plug-ins, and hand them out, through `guard` from now on; called at process start."""
    if _guards[-1] is not guard:
        _guards.append(guard)
        get.cache_clear()


@cache
def _plugged() -> Mapping[str, str]:
    """Name → path of the installed plug-ins. Cached: the lookup scans every distribution."""
    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


def _load(name: str, path: str) -> Assignor:
    module, _, attribute = path.partition(":")
    try:
        instance = getattr(import_module(module), attribute)()
    except Exception as failure:  # a plug-in may fail in any way
        raise UnknownAssignor(f"assignor {name!r} cannot be loaded: {failure}") from failure
    if not callable(getattr(instance, "assign", None)):
        raise UnknownAssignor(f"assignor {name!r}: {path} has no method assign(view)")
    return adapted(name, instance)


def adapted(name: str, instance: object) -> Assignor:
    """An object with `assign` as an assignor; a KIP-924 plug-in is wrapped in `Adapted`."""
    from muster.assignor.kip924.adapted_plugin import Adapted, TaskAssignor  # only for plug-ins

    if isinstance(instance, TaskAssignor):
        return Adapted(name, instance)
    return cast(Assignor, instance)  # it has `assign`
