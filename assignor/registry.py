"""Assignors by name. Modules are imported when their assignor is asked for, not before.

Third parties register under the entry point group ``muster.assignors``, or are named as
``module:Class``. A plug-in is either an `Assignor` of this package or a KIP-924 `TaskAssignor`.
Plug-ins are handed out behind the guard that the shell has set, if it has (`guard_with`): running
foreign code safely takes threads and a clock, which this room does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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


def _unguarded(assignor: Assignor) -> Assignor:
    return assignor


_guards: list[Callable[[Assignor], Assignor]] = [_unguarded]


def names() -> tuple[str, ...]:
    """Names of the built-in assignors, then of installed plug-ins."""
    plugged = sorted(point.name for point in entry_points(group=ENTRY_POINTS))
    return (*BUILT_IN, *(name for name in plugged if name not in BUILT_IN))


@cache
def get(name: str) -> Assignor:
    """The assignor of that name: built in, ``module:Class``, or an installed entry point.

    Raises:
        UnknownAssignor: no such name; the message lists the names there are.
    """
    if name in BUILT_IN:
        return _load(name, BUILT_IN[name])
    path = _entry_point(name) or (name if ":" in name else None)
    if path is None:
        raise UnknownAssignor(
            f"no assignor is called {name!r}; there are {', '.join(names())},"
            " or module:Class of an installed plug-in"
        )
    return _guards[-1](_load(name, path))


def guard_with(guard: Callable[[Assignor], Assignor]) -> None:
    """Hand plug-ins out behind `guard` from now on. For the shell, once, when it starts."""
    if _guards[-1] is not guard:
        _guards.append(guard)
        get.cache_clear()


def _entry_point(name: str) -> str | None:
    for point in entry_points(group=ENTRY_POINTS, name=name):
        return point.value
    return None


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
