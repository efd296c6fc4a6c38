"""The assignment as callbacks of a worker get it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

from muster.protocol.ids import Role, Task
from muster.protocol.records import MemberAssignment
from muster.protocol.tasks import EMPTY, TaskSet


class Token(NamedTuple):
    """A fencing token: send it to outside systems with every write, and let them refuse older ones.

    Each owner of a task has a greater token than the owner before it; compare them as tuples.

    Attributes:
        generation: group epoch in which the task was granted.
        epoch: the member's epoch then.
    """

    generation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """What this member should hold, as of one record of the coordinator.

    Attributes:
        group, member: the group and the member it is for.
        incarnation: the member's session.
        coordinator_epoch: the coordinator that wrote it.
        generation: group epoch it works towards.
        epoch: member epoch.
        revision: number of the record among those to this member.
        active: tasks to run.
        standby: tasks to keep a warm copy of.
        learner: tasks to restore, in order to take them over.
        next: standbys that become active here as soon as they have caught up.
        message: the cause of the generation, one line.
    """

    group: str
    member: str
    incarnation: int
    coordinator_epoch: int
    generation: int
    epoch: int
    revision: int
    active: TaskSet
    standby: TaskSet
    learner: TaskSet
    message: str = ""
    next: TaskSet = EMPTY

    @property
    def token(self) -> Token:
        """The fencing token of tasks that this assignment grants."""
        return Token(self.generation, self.epoch)

    @property
    def about(self) -> dict[str, object]:
        """Its fields in a log line."""
        return {"group": self.group, "member": self.member, "generation": self.generation}

    def role_of(self, task: Task) -> Role | None:
        """The role of a task; None when it is not assigned to this member."""
        sets = zip(Role, (self.active, self.standby, self.learner), strict=True)
        return next((role for role, tasks in sets if task in tasks), None)


def assignment_of(record: MemberAssignment) -> Assignment:
    """The assignment in a record."""
    return Assignment(*_fields_of(record))


_fields_of = attrgetter(*(field.name for field in fields(Assignment)))
