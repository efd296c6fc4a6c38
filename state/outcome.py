"""What an assignor answered: a new target, or why there is none.

A built-in assignor is a function: asked again, it says the same, so what it said is taken at once.
A plug-in is code of others that runs against a deadline; a batch that is tried twice might be told
two things, and members would hear of both. So what a plug-in said is *kept* with the group for one
batch, unseen by anybody, and taken by the next one. The first attempt that is stored is the one
that counts, and whatever is published follows from what is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.protocol.events import NOWHERE, Origin
from muster.protocol.ids import Role
from muster.protocol.records import Move
from muster.protocol.tasks import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """A placement in the group's own terms.

    Attributes:
        active, destination: int32[T], slots; see `Placement`.
        copies: role → pairs the target asks for, as `group.codes`.
        moves: what changes hands, and why.
        again, delay_ms, followup_ms, memory, warnings: see `Placement`.
    """

    active: IntArray
    destination: IntArray
    copies: Mapping[Role, NDArray[np.int64]]
    moves: tuple[Move, ...] = ()
    again: bool = False
    delay_ms: int = 0
    followup_ms: int | None = None
    memory: Mapping[str, object] | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """No placement: the target stays.

    Attributes:
        story: for people.
        retriable: whether it is worth asking again.
        origin: newest event the group had taken in.
    """

    story: str
    retriable: bool = False
    origin: Origin = NOWHERE


Outcome = Answer | Failure


def to_json(outcome: Outcome | None) -> object:
    """An outcome as JSON values."""
    match outcome:
        case None:
            return None
        case Failure(story, retriable, origin):
            return {"story": story, "retriable": retriable, "origin": list(origin)}
        case Answer():
            return {
                "active": outcome.active.tolist(),
                "destination": outcome.destination.tolist(),
                "copies": {role.name: pairs.tolist() for role, pairs in outcome.copies.items()},
                "moves": [
                    [m.task, m.role.name, m.from_member, m.to_member, m.reason]
                    for m in outcome.moves
                ],
                "again": outcome.again,
                "delay_ms": outcome.delay_ms,
                "followup_ms": outcome.followup_ms,
                "memory": outcome.memory,
                "warnings": list(outcome.warnings),
            }


def from_json(read: Any) -> Outcome | None:  # noqa: ANN401  # what `json.loads` gives
    """The outcome back."""
    if read is None:
        return None
    if "story" in read:
        return Failure(read["story"], read["retriable"], Origin(*read["origin"]))
    return Answer(
        active=np.array(read["active"], dtype=np.int32),
        destination=np.array(read["destination"], dtype=np.int32),
        copies={
            Role[name]: np.array(pairs, dtype=np.int64) for name, pairs in read["copies"].items()
        },
        moves=tuple(
            Move(task=task, role=Role[role], from_member=source, to_member=to, reason=reason)
            for task, role, source, to, reason in read["moves"]
        ),
        again=read["again"],
        delay_ms=read["delay_ms"],
        followup_ms=read["followup_ms"],
        memory=read["memory"],
        warnings=tuple(read["warnings"]),
    )
