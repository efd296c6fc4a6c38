"""Assignors as the shell runs them: plug-ins behind a guard, and only those the operator wants.

The core asks `muster.assignor.registry` for assignors and calls them like functions; it has no
clock and no threads. A plug-in is code of others: it may raise, hang, or answer nonsense. The
caller that starts a process that places (the job, the command line) therefore calls `install` once;
from then on the registry hands plug-ins out behind a `Guarded`, which runs them on a thread of
their own for at most `assignor.timeout.ms` and turns every failure into an `AssignorError`. The
group keeps its target then and says why (S1-F08, S1-F09). They are loaded on such a thread as well,
because importing a module runs its code.

A thread cannot be killed. One that hangs is left to itself (it is a daemon and holds nothing but a
view it cannot write to), and its plug-in is not asked again before it has ended.

To load ``module:Class`` is to run code. Where the name comes out of a record (the job, `muster
plan`, `muster replay`), anyone who may write to the config topic has chosen it, and ``sys:exit`` is
such a name. `from_record` therefore loads only what is built in, installed under the entry point
group ``muster.assignors``, or allowed by name: ``--conf muster.assignors=…`` of the job,
``MUSTER_ASSIGNORS`` of the commands.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from muster.assignor import registry
from muster.assignor.check import valid
from muster.assignor.errors import AssignorError, UnknownAssignor
from muster.assignor.model import Assignor, GroupView, Lags, Pairs, Placement

_Number = TypeVar("_Number", bound=np.generic)
_Result = TypeVar("_Result")

LOAD_TIMEOUT_S = 10.0
"""A plug-in that takes longer to import and make is given up."""
ALLOWED_VARIABLE = "MUSTER_ASSIGNORS"
"""Names ``module:Class`` the commands may load when a record names them, commas between."""


def install() -> None:
    """From now on plug-ins are loaded and run behind a guard, in this process."""
    registry.guard_with(_guarded)


def get(name: str) -> Assignor:
    """The assignor of that name, guarded if it is a plug-in.

    Raises:
        UnknownAssignor: there is none.
    """
    install()
    return registry.get(name)


def from_record(name: str, allowed: Collection[str] = ()) -> Assignor:
    """The assignor that a record names.

    Args:
        name: as the record has it.
        allowed: names ``module:Class`` that the operator allows.

    Raises:
        UnknownAssignor: there is none, or a record is not enough to have it loaded.
    """
    if registry.is_registered(name) or name in allowed or ":" not in name:
        return get(name)
    raise UnknownAssignor(
        f"assignor {name[:80]!r} is code that a record names, and is not loaded; install it under"
        f" the entry point group {registry.ENTRY_POINTS}, or allow it by name: the job with --conf"
        f" muster.assignors=module:Class, a command with {ALLOWED_VARIABLE}=module:Class"
    )


def allowed_here() -> frozenset[str]:
    """What the environment of a command allows a record to name."""
    return names_in(os.environ.get(ALLOWED_VARIABLE, ""))


def names_in(text: str) -> frozenset[str]:
    """The names of an allow-list: ``module:Class``, commas between.

    Raises:
        ValueError: something else is in it.
    """
    names = frozenset(filter(None, (part.strip() for part in text.split(","))))
    for name in names:
        module, _, attribute = name.partition(":")
        if not module or not attribute:
            raise ValueError(name)
    return names


class _Aside(Generic[_Result]):
    """Foreign code on a thread of its own; whatever it raises stays there.

    Args:
        name: of the thread.
        work: what runs.
    """

    def __init__(self, name: str, work: Callable[[], _Result]) -> None:
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.found: _Result | None = None
        self.failure: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        try:
            self.found = self._work()
        except BaseException as failure:
            self.failure = failure

    def ends_within(self, timeout_s: float) -> bool:
        """Wait for its end; whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


_loading: dict[str, _Aside[Assignor]] = {}
"""Plug-ins that were given up while they were loaded."""


def _guarded(name: str, load: registry.Load) -> Guarded:
    """Load a plug-in on a thread of its own.

    Raises:
        UnknownAssignor: it raised, or took too long.
    """
    again = name in _loading
    aside = _loading.pop(name, None) or _Aside(f"loads {name}", load)
    if not aside.ends_within(0 if again else LOAD_TIMEOUT_S):
        _loading[name] = aside
        raise UnknownAssignor(
            f"assignor {name!r} took more than {LOAD_TIMEOUT_S:.0f} s to load, and still does"
        )
    if isinstance(aside.failure, AssignorError):
        raise aside.failure
    if aside.found is None:
        told = f"{type(aside.failure).__name__}: {aside.failure}"
        raise UnknownAssignor(f"assignor {name!r} cannot be loaded: {told}") from aside.failure
    return Guarded(aside.found)


@dataclass(slots=True)
class Guarded:
    """A plug-in that cannot harm its group.

    Attributes:
        assignor: the plug-in.
    """

    assignor: Assignor
    name: str = field(init=False)
    _hanging: _Aside[Placement] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.name = getattr(self.assignor, "name", type(self.assignor).__name__)

    def assign(self, view: GroupView) -> Placement:
        """What the plug-in answers in time, checked against the law.

        Raises:
            AssignorError: it raised, took too long, or broke the law (`InvalidPlacement`).
        """
        if self._hanging is not None and not self._hanging.ends_within(0):
            raise AssignorError(f"assignor {self.name} still hangs from an earlier call")
        run = _Aside(f"assignor {self.name}", partial(self.assignor.assign, _sealed(view)))
        budget_ms = view.settings.assignor_timeout_ms
        if not run.ends_within(min(budget_ms / 1000, threading.TIMEOUT_MAX)):
            self._hanging = run
            raise AssignorError(f"assignor {self.name} took more than {budget_ms} ms")
        if isinstance(run.failure, AssignorError):
            raise run.failure
        if run.failure is not None:
            told = f"{type(run.failure).__name__}: {run.failure}"
            raise AssignorError(f"assignor {self.name} failed: {told}") from run.failure
        placement: object = run.found
        if not isinstance(placement, Placement):
            raise AssignorError(
                f"assignor {self.name} answered {type(placement).__name__}, not a Placement"
            )
        valid(view, placement)
        return placement


def _sealed(view: GroupView) -> GroupView:
    """The view with arrays and tags that cannot be written to: they may be the group's own."""
    tasks = view.tasks
    for array in (tasks.start, tasks.unit_of, tasks.number_of, tasks.stateful, tasks.weight):
        array.flags.writeable = False
    return replace(
        view,
        capacity=_read_only(view.capacity),
        active=_read_only(view.active),
        standby=_pairs(view.standby),
        learner=_pairs(view.learner),
        ready=_pairs(view.ready),
        lags=Lags(
            _read_only(view.lags.task), _read_only(view.lags.member), _read_only(view.lags.offsets)
        ),
        draining=_read_only(view.draining),
        rack=_read_only(view.rack),
        tags=tuple(map(MappingProxyType, view.tags)),
        also_active=_pairs(view.also_active),
        report_order=None if view.report_order is None else _read_only(view.report_order),
        config_offsets=_read_only(view.config_offsets),
    )


def _pairs(pairs: Pairs) -> Pairs:
    return Pairs(_read_only(pairs.task), _read_only(pairs.member))


def _read_only(array: NDArray[_Number]) -> NDArray[_Number]:
    sealed = array.view()
    sealed.flags.writeable = False
    return sealed
