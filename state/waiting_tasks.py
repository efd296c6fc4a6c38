"""Which tasks are not at their destination yet, and what each of them waits for, in words.

An active or a moving standby waits until the copy at its destination has caught up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from muster.protocol.ids import Role
from muster.protocol.records import GroupSnapshot
from muster.protocol.tasks import IntArray, TaskTable
from muster.state.ownership import NO_MEMBER, Codes, codes, slot_of, task_of, union


class Wait(NamedTuple):
    """A task that is not at its destination yet.

    Attributes:
        task: printed task id.
        role: its role at the destination, active or standby.
        member: id of the destination member.
        behind: offsets the copy there is behind; None = not reported.
        restores: whether the member has a copy; if not, other tasks restore first.
    """

    task: str
    role: Role
    member: str
    behind: int | None
    restores: bool

    def __str__(self) -> str:
        subject = self.task if self.role is Role.ACTIVE else f"the standby of {self.task}"
        if not self.restores:
            why = "others restore first (max.warmup.replicas)"
        elif self.behind is None:
            why = "it has not said that its copy has caught up"
        else:
            why = f"its copy is {self.behind:,} offset{'s' * (self.behind != 1)} behind"
        return f"{subject} waits for {self.member}: {why}"


def waits_of(snapshot: GroupSnapshot) -> tuple[Wait, ...]:
    """The waits of a group: actives first, then standbys, both in the order of tasks."""
    table = TaskTable(snapshot.tasks)
    name = {member.slot: str(member.id) for member in snapshot.members}
    lag = {(int(task), int(slot)): int(offsets) for task, slot, offsets in snapshot.lags}
    standby, learner = _codes(snapshot.target_standby), _codes(snapshot.target_learner)
    placed_tasks = np.flatnonzero(snapshot.destination != NO_MEMBER).astype(np.int32)
    destinations = codes(placed_tasks, snapshot.destination[placed_tasks])
    waiting = destinations[snapshot.target[task_of(destinations)] != slot_of(destinations)]
    copies = union(standby, learner)
    restoring_standbys = np.setdiff1d(np.setdiff1d(learner, destinations), _codes(snapshot.ready))

    def wait(pair: int, role: Role) -> Wait:
        task, slot = pair >> 32, pair & 0xFFFFFFFF
        restores = bool(np.isin(pair, copies))
        behind = lag.get((task, slot)) if restores else None
        return Wait(str(table.task(task)), role, name.get(slot, "?"), behind, restores)

    actives = [wait(pair, Role.ACTIVE) for pair in waiting.tolist()]
    return (*actives, *(wait(pair, Role.STANDBY) for pair in restoring_standbys.tolist()))


def _codes(pairs: IntArray) -> Codes:
    return codes(pairs[:, 0], pairs[:, 1])
