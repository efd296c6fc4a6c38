"""The outcome of asking an assignor: a new target, or a failure.

`placement.py` asks, and applies the outcome.

A built-in assignor is deterministic, so its outcome is applied at once. A plug-in may answer
otherwise if Spark runs the batch again, and members would get records of both attempts. So its
outcome is *deferred*: stored with the group, unpublished, and applied by the next batch.

A large placement takes seconds, and all groups of a batch would wait for it. The job computes it
*aside* (`Aside`): the batch goes on without an answer, and the group asks again some moments later.
Whether the answer is there then depends on how fast the machine is. So it is deferred as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from muster.protocol.events import NOWHERE, Origin
from muster.protocol.ids import Role
from muster.protocol.records import Move
from muster.protocol.tasks import IntArray
from muster.state.ownership import Codes, no_codes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """A placement in the group's own terms.

    Attributes:
        active, destination: int32[T], slots; see `Placement`.
        copies: role → pairs of the target, as `ownership.codes`.
        moves: the tasks that change owner, with reasons.
        again, delay_ms, followup_ms, memory, warnings: see `Placement`.
        caught_up, behind: copies that had caught up, and those that were reported to be behind, in
            the group that was placed; what members said since is compared with the target when the
            answer is applied (`lag.note_reported_since`).
    """

    active: IntArray
    destination: IntArray
    copies: Mapping[Role, Codes]
    moves: tuple[Move, ...] = ()
    again: bool = False
    delay_ms: int = 0
    followup_ms: int | None = None
    memory: Mapping[str, object] | None = None
    warnings: tuple[str, ...] = ()
    caught_up: Codes = field(default_factory=no_codes)
    behind: Codes = field(default_factory=no_codes)


@dataclass(frozen=True, slots=True)
class Failure:
    """The assignor failed: the target stays.

    Attributes:
        story: the error in words, for the cause and the dead letter.
        retriable: whether asking again may help.
        origin: the newest event of the batch.
    """

    story: str
    retriable: bool = False
    origin: Origin = NOWHERE


Outcome = Answer | Failure
Question: TypeAlias = tuple[str, int, int, int, int]
"""Names a placement that is computed aside: group, generation, time at which it was asked for,
offset of the newest config, version of the tasks."""
Aside: TypeAlias = Callable[[Question, Callable[[], Outcome]], Outcome | str | None]
"""Computes a placement while batches go on: the first call with a question begins it, later calls
give its outcome, the words why there will be none, or None while it is computed."""


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
                "caught_up": outcome.caught_up.tolist(),
                "behind": outcome.behind.tolist(),
            }


def from_json(read: Any) -> Outcome | None:  # noqa: ANN401  # what `json.loads` gives
    """Read what `to_json` gave."""
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
        caught_up=np.array(read.get("caught_up", []), dtype=np.int64),
        behind=np.array(read.get("behind", []), dtype=np.int64),
    )
