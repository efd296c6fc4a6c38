"""A plug-in's placement in plain values, so that it can be stored, published and printed.

A plug-in may answer with numpy scalars, with lists in place of arrays, or with reasons that are
computed, by its own code, when they are read. `plain` reads all of it once, where the plug-in runs
and its time is limited. Whether the placement is lawful is checked later
(`muster.assignor.check`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.assignor.errors import AssignorError
from muster.assignor.model import NO_MEMBER, GroupView, Pairs, Placement, Reason
from muster.protocol.ids import Role

TEXT_CHARS_MAX = 1_000
"""A longer reason is cut."""


def plain(name: str, view: GroupView, answer: object) -> Placement:
    """The answer of the plug-in `name` in plain values.

    Raises:
        AssignorError: it is not a `Placement`, or a part of it has another type or shape than
            `Placement` says; the message names the part.
    """
    if not isinstance(answer, Placement):
        raise AssignorError(f"assignor {name} answered {type(answer).__name__}, not a Placement")
    try:
        followup_ms = answer.followup_ms
        return replace(
            answer,
            active=_owners("active", answer.active, view),
            destination=_owners("destination", answer.destination, view),
            standby=_pairs("standby", answer.standby),
            learner=_pairs("learner", answer.learner),
            revoked=_pairs("revoked", answer.revoked),
            unassigned=_array("unassigned", answer.unassigned),
            reasons=_reasons(view, answer.reasons),
            again=bool(answer.again),
            delay_ms=_whole("delay_ms", answer.delay_ms),
            followup_ms=None if followup_ms is None else _whole("followup_ms", followup_ms),
            cost=_whole("cost", answer.cost),
            cost_lower_bound=_whole("cost_lower_bound", answer.cost_lower_bound),
            warnings=tuple(_text("warnings", w) for w in _listed("warnings", answer.warnings)),
        )
    except _Wrong as wrong:
        raise AssignorError(f"assignor {name} answered a bad Placement: {wrong}") from None


class _Wrong(Exception):
    """A part of a placement has a wrong type."""


def _pairs(part: str, value: object) -> Pairs:
    if not isinstance(value, Pairs):
        raise _Wrong(f"{part} is {_kind(value)}; expected Pairs")
    return Pairs(_array(f"{part}.task", value.task), _array(f"{part}.member", value.member))


def _array(part: str, value: object) -> NDArray[Any]:
    """An array of whole numbers. An empty one may have any type, as `np.array([])` has."""
    if isinstance(value, np.ndarray):
        if np.issubdtype(value.dtype, np.integer):
            return value
        if value.size == 0:
            return value.astype(np.int32)
    raise _Wrong(f"{part} is {_kind(value)}; expected an array of int32")


def _owners(part: str, value: object, view: GroupView) -> NDArray[Any]:
    """An array with a number for each task."""
    owners, wanted = _array(part, value), (len(view.tasks),)
    if owners.shape != wanted:
        raise _Wrong(f"{part} has the shape {owners.shape}; expected {wanted}, one for each task")
    return owners


def _kind(value: object) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__


def _whole(part: str, value: Any) -> int:  # noqa: ANN401  # a plug-in may answer anything
    try:
        return index(value)
    except TypeError:
        raise _Wrong(f"{part} is {value!r:.40}; expected a whole number") from None


def _text(part: str, value: object) -> str:
    """A text that can be written as UTF-8, and is not too long."""
    if not isinstance(value, str):
        raise _Wrong(f"{part} has {value!r:.40}; expected a text")
    cut = value if len(value) <= TEXT_CHARS_MAX else f"{value[: TEXT_CHARS_MAX - 1]}…"
    return cut.encode(errors="backslashreplace").decode()


def _listed(part: str, value: object) -> list[object]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise _Wrong(f"{part} is {_kind(value)}; expected a list")
    return list(value)


def _reasons(view: GroupView, reasons: object) -> tuple[Reason, ...]:
    return tuple(_reason(view, reason) for reason in _listed("reasons", reasons))


def _reason(view: GroupView, reason: object) -> Reason:
    if not isinstance(reason, Reason):
        raise _Wrong(f"reasons has {type(reason).__name__}; expected Reason")
    return Reason(
        _within("task of a reason", reason.task, 0, len(view.tasks)),
        _role(reason.role),
        _within("source of a reason", reason.source, NO_MEMBER, len(view.members)),
        _within("destination of a reason", reason.destination, NO_MEMBER, len(view.members)),
        _text("reasons", reason.text),
    )


def _role(role: object) -> Role:
    if not isinstance(role, Role):
        raise _Wrong(f"role of a reason is {role!r:.40}; expected a Role")
    return role


def _within(part: str, value: object, least: int, end: int) -> int:
    number = _whole(part, value)
    if not least <= number < end:
        raise _Wrong(f"{part} is {number}; expected {least} to {end - 1}")
    return number
