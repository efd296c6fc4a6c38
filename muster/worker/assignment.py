"""What a worker's user sees of an assignment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from muster.protocol.ids import Role, Task
from muster.protocol.records import MemberAssignment
from muster.protocol.tasks import EMPTY, TaskSet


class Token(NamedTuple):
    """A fencing token: hand it to outside systems with every write, and let them refuse older ones.

    Tokens of one task only grow from owner to owner, so they compare like numbers.

    Attributes:
        generation: group epoch in which the task was given.
        epoch: the member's epoch then.
    """

    generation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """What this member should hold, as of one record of the coordinator.

    Attributes:
        group, member: whose it is.
        incarnation: the member's session.
        coordinator_epoch: which coordinator gave it.
        generation: group epoch it works towards.
        epoch: member epoch.
        revision: counts the records to this member.
        active: tasks to run.
        standby: tasks to keep a warm copy of.
        learner: tasks to restore, in order to take them over.
        next: the standbys that are to become active here as soon as they have caught up.
        message: what made the generation, one line.
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
        """The fencing token of tasks given by this assignment."""
        return Token(self.generation, self.epoch)

    @property
    def about(self) -> dict[str, object]:
        """Fields of a log line about it."""
        return {"group": self.group, "member": self.member, "generation": self.generation}

    def role_of(self, task: Task) -> Role | None:
        """What to do with a task; None when it is not ours."""
        for role, tasks in (
            (Role.ACTIVE, self.active),
            (Role.STANDBY, self.standby),
            (Role.LEARNER, self.learner),
        ):
            if task in tasks:
                return role
        return None


def assignment_of(record: MemberAssignment) -> Assignment:
    """The user's view of a record."""
    return Assignment(
        group=record.group,
        member=record.member,
        incarnation=record.incarnation,
        coordinator_epoch=record.coordinator_epoch,
        generation=record.generation,
        epoch=record.epoch,
        revision=record.revision,
        active=record.active,
        standby=record.standby,
        learner=record.learner,
        message=record.message,
        next=record.next,
    )
