"""Assignors by name. Modules are imported when their assignor is asked for, not before.

Third parties register under the entry point group ``muster.assignors``, or are named as
``module:Class``. A plug-in is either an `Assignor` of this package or a KIP-924 `TaskAssignor`.
Plug-ins are loaded and handed out behind the guard that the shell has set, if it has
(`guard_with`): running foreign code safely takes threads and a clock, which this room does not
have. Importing a module runs its code, so loading is guarded as well.

A name that comes out of a record is not the operator's own word: anyone who may write to the config
topic can choose it. `is_registered` tells the names that are safe to load whichever record says
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points

from muster.assignor.errors import UnknownAssignor
from muster.assignor.model import Assignor

ENTRY_POINTS = "muster.assignors"

BUILT_IN = {
    "eager": "muster.assignor.connect.eager:Eager",
    "cooperative": "muster.assignor.connect.cooperative:Cooperative",
    "static": "muster.assignor.connect.static:Static",
    "high-availability": "muster.assignor.availability:HighAvailability",
    "sticky": "muster.assignor.sticky:Sticky",
    "fallback": "muster.assignor.sticky:Fallback",
    "learner": "muster.assignor.learner:Learner",
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
    """Whether the name is built in or an installed entry point, so that no record invented it."""
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
    """Load plug-ins, and hand them out, by `guard` from now on. For the shell, when it starts."""
    if _guards[-1] is not guard:
        _guards.append(guard)
        get.cache_clear()


@cache
def _plugged() -> Mapping[str, str]:
    """Name → path of the installed plug-ins; to find them takes a look at every distribution."""
    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


def _load(name: str, path: str) -> Assignor:
    module, _, attribute = path.partition(":")
    try:
        made = getattr(import_module(module), attribute)()
    except Exception as failure:  # a plug-in may fail in any way
        raise UnknownAssignor(f"assignor {name!r} cannot be loaded: {failure}") from failure
    if not callable(getattr(made, "assign", None)):
        raise UnknownAssignor(f"assignor {name!r}: {path} has no method assign(view)")
    from muster.assignor.kip924.application import Adapted, TaskAssignor  # plug-ins alone need it

    if isinstance(made, TaskAssignor):
        return Adapted(name, made)
    assignor: Assignor = made
    return assignor
