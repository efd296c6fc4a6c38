"""Assignors as the shell runs them: plug-ins behind a guard.

The core asks `muster.assignor.registry` for assignors and calls them like functions; it has no
clock and no threads. A plug-in is code of others: it may raise, hang, or answer nonsense. Whoever
starts a process that places (the job, the command line) therefore calls `install` once; from then
on the registry hands plug-ins out behind a `Guarded`, which runs them on a thread of their own for
at most `assignor.timeout.ms` and turns every failure into an `AssignorError`. The group
keeps its target then and says why (S1-F08, S1-F09).

A thread cannot be killed. One that hangs is left to itself (it is a daemon and holds nothing but a
view it cannot write to), and its plug-in is not asked again before it has ended.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from muster.assignor import registry
from muster.assignor.check import valid
from muster.assignor.errors import AssignorError
from muster.assignor.model import Assignor, GroupView, Lags, Pairs, Placement
from muster.assignor.targets.previous import FromPrevious

_Number = TypeVar("_Number", bound=np.generic)


def install() -> None:
    """From now on plug-ins run behind a guard, in this process."""
    registry.guard_with(Guarded)


def get(name: str) -> Assignor:
    """The assignor of that name, guarded if it is a plug-in.

    Raises:
        UnknownAssignor: there is none.
    """
    install()
    return registry.get(name)


def from_previous(name: str) -> Assignor:
    """Racks optimised from the previous placement, at the prices of that assignor."""
    return FromPrevious(name)


@dataclass(slots=True)
class _Run:
    """One call of a plug-in, on its thread."""

    assignor: Assignor
    view: GroupView
    placement: Placement | None = None
    failure: BaseException | None = None

    def __call__(self) -> None:
        try:
            self.placement = self.assignor.assign(self.view)
        except BaseException as failure:
            self.failure = failure


@dataclass(slots=True)
class Guarded:
    """A plug-in that cannot harm its group.

    Attributes:
        assignor: the plug-in.
    """

    assignor: Assignor
    name: str = field(init=False)
    _hanging: threading.Thread | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.name = getattr(self.assignor, "name", type(self.assignor).__name__)

    def assign(self, view: GroupView) -> Placement:
        """What the plug-in answers in time, checked against the law.

        Raises:
            AssignorError: it raised, took too long, or broke the law (`InvalidPlacement`).
        """
        if self._hanging is not None and self._hanging.is_alive():
            raise AssignorError(f"assignor {self.name} still hangs from an earlier call")
        run = _Run(self.assignor, _sealed(view))
        thread = threading.Thread(target=run, name=f"assignor {self.name}", daemon=True)
        thread.start()
        budget_ms = view.settings.assignor_timeout_ms
        thread.join(budget_ms / 1000)
        if thread.is_alive():
            self._hanging = thread
            raise AssignorError(f"assignor {self.name} took more than {budget_ms} ms")
        if isinstance(run.failure, AssignorError):
            raise run.failure
        if run.failure is not None:
            told = f"{type(run.failure).__name__}: {run.failure}"
            raise AssignorError(f"assignor {self.name} failed: {told}") from run.failure
        if not isinstance(run.placement, Placement):
            raise AssignorError(
                f"assignor {self.name} answered {type(run.placement).__name__}, not a Placement"
            )
        valid(view, run.placement)
        return run.placement


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
