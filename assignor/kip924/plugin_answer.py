"""What a KIP-924 plug-in answers, and the placement that its answer becomes.

A plug-in may change its answer until it returns it. A warm-up is a standby plus a follow-up
deadline, as in Kafka. A member that is listed twice gets what both entries say; of several
follow-ups the earliest counts. Users import the values from `muster.assignor.api`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import index

import numpy as np

from muster.assignor.errors import AssignorError, InvalidPlacement
from muster.assignor.kip924.validation import Claim, first_violation
from muster.assignor.model import NO_MEMBER, GroupView, Pairs, Placement
from muster.assignor.reason_arrays import Moves, Reasons, changed
from muster.protocol.ids import Role, Task


class TaskAssignmentException(AssignorError):
    """Raised by a plug-in that cannot decide now: the group keeps its assignment and asks again.

    Operator action: none; the plug-in's message says what it waits for (S1-F09).
    """

    retriable = True


class TaskType(Enum):
    """The role of an assigned task. There is no warm-up type."""

    ACTIVE = "ACTIVE"
    STANDBY = "STANDBY"


class AssignmentError(Enum):
    """Errors of an assignment (S1-F07)."""

    NONE = "NONE"
    UNKNOWN_TASK_ID = "UNKNOWN_TASK_ID"
    ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES = "ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES"
    ACTIVE_AND_STANDBY_TASK_ASSIGNED_TO_SAME_KAFKASTREAMS = (
        "ACTIVE_AND_STANDBY_TASK_ASSIGNED_TO_SAME_KAFKASTREAMS"
    )
    INVALID_STANDBY_TASK = "INVALID_STANDBY_TASK"
    MISSING_PROCESS_ID = "MISSING_PROCESS_ID"
    UNKNOWN_PROCESS_ID = "UNKNOWN_PROCESS_ID"


@dataclass(frozen=True, slots=True)
class AssignedTask:
    """A task in a role."""

    id: Task
    type: TaskType = TaskType.ACTIVE


@dataclass(slots=True)
class KafkaStreamsAssignment:
    """What one member gets. The plug-in may change it.

    Attributes:
        process_id: member id.
        tasks: what it gets, by task: a task has one role on a member.
        followup_rebalance_deadline: when the plug-in is asked again, in time of the group's clock,
            but not before members have carried this assignment out. Any other placement erases it
            (S1-13, S1-F06). None = not needed.
    """

    process_id: str
    tasks: dict[Task, AssignedTask] = field(default_factory=dict[Task, AssignedTask])
    followup_rebalance_deadline: int | None = None

    @classmethod
    def of(cls, process_id: str, tasks: Iterable[AssignedTask] = ()) -> KafkaStreamsAssignment:
        """An assignment of these tasks."""
        return cls(process_id, {task.id: task for task in tasks})

    def with_followup_rebalance(self, deadline_ms: int) -> KafkaStreamsAssignment:
        """A copy that asks for another assignment at this time; a past time means at once."""
        return replace(self, tasks=dict(self.tasks), followup_rebalance_deadline=deadline_ms)

    def assign_task(self, task: AssignedTask) -> None:
        """Add a task; it replaces an earlier role of that task."""
        self.tasks[task.id] = task

    def remove_task(self, task: AssignedTask) -> None:
        """Remove a task in that role, if the member has it."""
        if self.tasks.get(task.id) == task:
            del self.tasks[task.id]

    def of_type(self, type_: TaskType, among: Collection[Task] | None = None) -> list[Task]:
        """Its tasks in one role, ascending (S1-11).

        Args:
            type_: the role.
            among: only these, such as `state.stateful_tasks`; None = all.
        """
        return sorted(
            task
            for task, held in self.tasks.items()
            if held.type is type_ and (among is None or task in among)
        )


@dataclass(frozen=True, slots=True)
class TaskAssignment:
    """What all members get. A class, so that fields can be added later (S1-06)."""

    assignment: tuple[KafkaStreamsAssignment, ...]

    @classmethod
    def of(cls, assignment: Iterable[KafkaStreamsAssignment]) -> TaskAssignment:
        """Sorted by member id (S1-08)."""
        return cls(tuple(sorted(assignment, key=lambda member: member.process_id)))

    @property
    def num_nodes(self) -> int:
        """How many members it lists, also those that get nothing (S1-08)."""
        return len(self.assignment)


def violation_of(
    view: GroupView, assignment: Iterable[KafkaStreamsAssignment]
) -> InvalidPlacement | None:
    """The first error of what members get; None = there is none.

    A member that is listed twice gets what both entries say, as in Kafka.
    """

    def stateful(printed: str) -> bool | None:
        index = view.tasks.index(printed)
        return None if index is None else bool(view.tasks.stateful[index])

    claims: dict[str, Claim] = {}
    for of_member in assignment:
        before = claims.get(of_member.process_id, Claim())
        claims[of_member.process_id] = Claim(
            (*before.active, *map(str, of_member.of_type(TaskType.ACTIVE))),
            (*before.copies, *map(str, of_member.of_type(TaskType.STANDBY))),
        )
    return first_violation(claims, view.members, stateful)


def holdings(view: GroupView, assignment: Mapping[str, KafkaStreamsAssignment]) -> GroupView:
    """The view as it would be if all members held what an assignment says.

    Raises:
        AssignorError: it names a task or a member that the group does not have.
    """
    owner = np.full(len(view.tasks), NO_MEMBER, dtype=np.int32)
    index_of = {name: index for index, name in enumerate(view.members)}
    copies: list[tuple[int, int]] = []
    for name, member_assignment in assignment.items():
        if name not in index_of:
            raise AssignorError(f"the assignment names {name}, which is no member of the group")
        for task, assigned in member_assignment.tasks.items():
            index = view.tasks.find(task)
            if index is None:
                raise AssignorError(f"the assignment gives {name} task {task}; the group has none")
            if assigned.type is TaskType.ACTIVE:
                owner[index] = index_of[name]
            else:
                copies.append((index, index_of[name]))
    columns = np.array(copies, dtype=np.int32).reshape(len(copies), 2)
    return replace(view, active=owner, standby=Pairs.of(columns[:, 0], columns[:, 1]))


def _deadline(entry: KafkaStreamsAssignment) -> tuple[int, ...]:
    """The time of a member's follow-up, in a tuple; empty = it asks for none."""
    deadline = entry.followup_rebalance_deadline
    if deadline is None:
        return ()
    try:
        return (index(deadline),)
    except TypeError:
        raise AssignorError(
            f"the follow-up of {entry.process_id} is due at {deadline!r:.40};"
            " expected a whole number of ms"
        ) from None


def placement_of(view: GroupView, assignment: TaskAssignment) -> Placement:
    """The placement that an answer without violations becomes.

    Raises:
        AssignorError: a follow-up is due at something that is no whole number of ms.
    """
    together: dict[str, KafkaStreamsAssignment] = {}
    for entry in assignment.assignment:
        of_member = together.setdefault(entry.process_id, KafkaStreamsAssignment(entry.process_id))
        of_member.tasks |= entry.tasks
    after = holdings(view, together)
    deadlines = [deadline for entry in assignment.assignment for deadline in _deadline(entry)]

    def text(*_: int) -> str:
        return "decided by the plug-in"

    def moves() -> list[Moves]:
        new = ~np.isin(after.standby.code, view.standby.code)
        no_member = np.full(int(new.sum()), NO_MEMBER, dtype=np.int32)
        task, member = after.standby.task[new], after.standby.member[new]
        return [
            Moves(Role.ACTIVE, *changed(view.active, after.active), text),
            Moves(Role.STANDBY, task, no_member, member, text),
        ]

    return Placement(
        active=after.active,
        destination=after.active,
        standby=after.standby,
        reasons=Reasons(moves),
        followup_ms=max(min(deadlines) - view.now_ms, 0) if deadlines else None,
    )


def unchanged(view: GroupView, why: TaskAssignmentException) -> Placement:
    """The placement for a plug-in that cannot decide: nothing changes, ask again at once (S1-F09).

    It is for the command line; the coordinator asks again by itself (the error is retriable).
    """
    return Placement(
        active=view.active,
        destination=view.active,
        standby=view.standby,
        learner=view.learner,
        unassigned=np.flatnonzero(view.active == NO_MEMBER).astype(np.int32),
        followup_ms=0,
        warnings=(f"the plug-in cannot decide now: {why}",),
    )
