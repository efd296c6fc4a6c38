"""Runs plug-in assignors with a timeout, and only those that the operator allows.

A plug-in may raise, hang, or return an invalid placement, and the core has no clock and no threads.
So every process that places tasks calls `install` once. From then on the registry returns plug-ins
wrapped in `Guarded`, which runs each on a thread for at most `assignor.timeout.ms` and turns every
failure into an `AssignorError`: the group keeps its target and publishes the reason (S1-F08,
S1-F09). Plug-ins are loaded on such a thread too. A thread that hangs cannot be killed; it is left
running, and its plug-in is not called again before it has ended.

Loading ``module:Class`` runs code, such as ``sys:exit``, and a client that may write to the config
topic can put any name into a record. So `from_record` loads only assignors that are built in,
installed under the entry point group ``muster.assignors``, or allowed by name: with
``--conf muster.assignors=…`` in the job and ``MUSTER_ASSIGNORS`` for commands.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np

from muster.assignor import registry
from muster.assignor.check import valid
from muster.assignor.errors import AssignorError, UnknownAssignor
from muster.assignor.model import Assignor, GroupView, Lags, Pairs, Placement
from muster.assignor.plain_answer import plain

_Result = TypeVar("_Result")

LOAD_TIMEOUT_S = 10.0
"""Longest time for importing and creating a plug-in."""
ALLOWED_VARIABLE = "MUSTER_ASSIGNORS"
"""Names ``module:Class``, separated by commas, that commands load when a record names them."""


def install() -> None:
    """Make the registry of this process load and run plug-ins with a timeout."""
    registry.guard_with(_guarded)


def get(name: str) -> Assignor:
    """The assignor of that name, wrapped in `Guarded` if it is a plug-in.

    Raises:
        UnknownAssignor: there is none.
    """
    install()
    return registry.get(name)


def from_record(
    name: str, allowed: Collection[str] = (), timeout_ms_max: int | None = None
) -> Assignor:
    """The assignor that a record names, if it may: `allowed` are the operator's ``module:Class``.

    A plug-in may take `timeout_ms_max`, if given, whatever `assignor.timeout.ms` the group has.

    Raises:
        UnknownAssignor: there is none, or the operator does not allow it.
    """
    if registry.is_registered(name) or name in allowed or ":" not in name:
        assignor = get(name)
        if isinstance(assignor, Guarded):
            assignor.timeout_ms_max = timeout_ms_max
        return assignor
    raise UnknownAssignor(
        f"assignor {name[:80]!r} is code that a record names, and is not loaded; install it under"
        f" the entry point group {registry.ENTRY_POINTS}, or allow it by name: the job with --conf"
        f" muster.assignors=module:Class, a command with {ALLOWED_VARIABLE}=module:Class"
    )


def allowed_here() -> frozenset[str]:
    """The names that a command's environment allows."""
    return names_in(os.environ.get(ALLOWED_VARIABLE, ""))


def names_in(text: str) -> frozenset[str]:
    """The names in a list of ``module:Class``, separated by commas.

    Raises:
        ValueError: an entry has another form.
    """
    names = frozenset(filter(None, (part.strip() for part in text.split(","))))
    for name in names:
        module, _, attribute = name.partition(":")
        if not module or not attribute:
            raise ValueError(name)
    return names


class _Call(Generic[_Result]):
    """A call of plug-in code on a thread of its own; `result` and `failure` are its outcome."""

    def __init__(self, name: str, work: Callable[[], _Result]) -> None:
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.result: _Result | None = None
        self.failure: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as failure:
            self.failure = failure

    def ends_within(self, timeout_s: float) -> bool:
        """Wait for its end. Return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


_loading: dict[str, _Call[Assignor]] = {}
"""Plug-ins that took too long to load, and still load."""


def _guarded(name: str, load: registry.Load) -> Guarded:
    """Load a plug-in on a thread of its own.

    Raises:
        UnknownAssignor: it raised, or took too long.
    """
    again = name in _loading
    call = _loading.pop(name, None) or _Call(f"loads {name}", load)
    if not call.ends_within(0 if again else LOAD_TIMEOUT_S):
        _loading[name] = call
        raise UnknownAssignor(
            f"assignor {name!r} took more than {LOAD_TIMEOUT_S:.0f} s to load, and still does"
        )
    if isinstance(call.failure, AssignorError):
        raise call.failure
    if call.result is None:
        reason = _in_words(call.failure)
        raise UnknownAssignor(f"assignor {name!r} cannot be loaded: {reason}") from call.failure
    return Guarded(call.result)


@dataclass(slots=True)
class Guarded:
    """A plug-in with a timeout, whose failures and invalid placements become `AssignorError`."""

    assignor: Assignor
    timeout_ms_max: int | None = None
    name: str = field(init=False)
    _hanging: _Call[Placement] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.name = getattr(self.assignor, "name", type(self.assignor).__name__)

    @property
    def hangs(self) -> bool:
        """Whether a call that took too long still runs."""
        return self._hanging is not None and not self._hanging.ends_within(0)

    def assign(self, view: GroupView) -> Placement:
        """The plug-in's placement, checked by `assignor.check.valid`.

        Raises:
            AssignorError: it raised, took too long, or returned something else than a valid
                placement.
        """
        if self.hangs:
            raise AssignorError(f"assignor {self.name} still hangs from an earlier call")
        call = _Call(f"assignor {self.name}", partial(self._answer, _sealed(view)))
        budget_ms = view.settings.assignor_timeout_ms
        if self.timeout_ms_max is not None:
            budget_ms = min(budget_ms, self.timeout_ms_max)
        if not call.ends_within(min(budget_ms / 1000, threading.TIMEOUT_MAX)):
            self._hanging = call
            raise AssignorError(f"assignor {self.name} took more than {budget_ms} ms")
        if isinstance(call.failure, AssignorError):
            raise call.failure
        if call.failure is not None:
            reason = _in_words(call.failure)
            raise AssignorError(f"assignor {self.name} failed: {reason}") from call.failure
        placement = call.result
        assert placement is not None  # the call has ended without a failure
        valid(view, placement)
        return placement

    def _answer(self, view: GroupView) -> Placement:
        """Call the plug-in. Its answer is read here, because that may run more of its code."""
        return plain(self.name, view, self.assignor.assign(view))


def _in_words(failure: BaseException | None) -> str:
    """A failure's type and text; the text is computed by foreign code, which may fail too."""
    try:
        return f"{type(failure).__name__}: {failure}"
    except Exception:
        return type(failure).__name__


def _sealed(view: GroupView) -> GroupView:
    """The view with read-only arrays and tags, because they may be the group's own.

    The memory is a copy, because a plug-in may change it and return it.
    """
    tasks = view.tasks
    for array in (tasks.start, tasks.unit_of, tasks.number_of, tasks.stateful, tasks.weight):
        array.flags.writeable = False
    sealed = {field.name: _read_only(getattr(view, field.name)) for field in fields(view)}
    sealed |= {"tags": tuple(map(MappingProxyType, view.tags)), "memory": deepcopy(view.memory)}
    return replace(view, **sealed)


def _read_only(value: Any) -> Any:  # noqa: ANN401  # the value of any field of a view
    """A view of an array, of pairs or of lags that cannot be written to; any other value itself."""
    if isinstance(value, Pairs | Lags):
        parts = (getattr(value, field.name) for field in fields(value))
        return type(value)(*map(_read_only, parts))
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value
