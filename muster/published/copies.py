"""The copies in a group's snapshot, each with its state."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from muster.protocol.ids import Role
from muster.protocol.records import GroupSnapshot


class CopyState(IntEnum):
    """The state of a copy. The console's pages know these numbers."""

    KEPT = 0
    RESTORING = 1
    READY = 2
    LEAVING = 3
    """Its member has been asked to drop it."""


class Copy(NamedTuple):
    """A standby or learner.

    Attributes:
        task: index of its task in the group's table.
        slot: slot of its member.
        lag: offsets behind the changelog; None = not reported.
    """

    role: Role
    task: int
    slot: int
    state: CopyState
    lag: int | None


def copies_of(snapshot: GroupSnapshot) -> Iterator[Copy]:
    """Every standby, then every learner."""
    lags = {(task, slot): offsets for task, slot, offsets in snapshot.lags.tolist()}
    ready = set(map(tuple, snapshot.ready.tolist()))
    for role, pairs, revoking, otherwise in (
        (Role.STANDBY, snapshot.standby, snapshot.standby_revoking, CopyState.KEPT),
        (Role.LEARNER, snapshot.learner, snapshot.learner_revoking, CopyState.RESTORING),
    ):
        leaving = set(map(tuple, revoking.tolist()))
        for task, slot in pairs.tolist():
            pair = (task, slot)
            state = (
                CopyState.LEAVING
                if pair in leaving
                else CopyState.READY
                if pair in ready
                else otherwise
            )
            yield Copy(role, task, slot, state, lags.get(pair))
