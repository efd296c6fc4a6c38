"""The values of KIP-924: what a plug-in reads about a group, and what it answers.

A plug-in cannot change what it reads, and may change its answer (S1-09). A warm-up is a standby
plus a follow-up deadline, as in Kafka. Users import all this from `muster.assignor.api`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from muster.assignor.errors import AssignorError
from muster.protocol.ids import Task
from muster.protocol.settings import Settings

LATEST_OFFSET = -2
"""Lag of a task that the member runs as active now (S1-F04)."""


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


@dataclass(frozen=True, slots=True)
class TaskTopicPartition:
    """One of the partitions a task reads.

    Attributes:
        topic_partition: a name for people; groups declare racks, not topics.
        is_source: the task reads it as input.
        is_changelog: it holds the task's state.
        rack_ids: racks of its replicas; None = unknown.
    """

    topic_partition: str
    is_source: bool
    is_changelog: bool
    rack_ids: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """What is known about a task, and the partitions that it reads.

    `weight` is its declared load (beyond Kafka).
    """

    id: Task
    is_stateful: bool
    topic_partitions: tuple[TaskTopicPartition, ...] = ()
    weight: float = 1


@dataclass(frozen=True, slots=True)
class AssignmentConfigs:
    """The settings an assignor may use (S1-23, S1-F12). None = the assignor's own default.

    Attributes:
        settings: every setting of the group, also those that only muster has: `settings.x_y_z`
            is the key ``x.y.z``. The other attributes are Kafka's getters, with its names.
    """

    acceptable_recovery_lag: int
    max_warmup_replicas: int
    num_standby_replicas: int
    probing_rebalance_interval_ms: int
    rack_aware_assignment_tags: tuple[str, ...] = ()
    rack_aware_assignment_strategy: str = "none"
    rack_aware_traffic_cost: int | None = None
    rack_aware_non_overlap_cost: int | None = None
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class KafkaStreamsState:
    """One member's present state (S1-F04). Read only.

    Attributes:
        process_id: member id.
        num_processing_threads: its capacity.
        previous_active_tasks, previous_standby_tasks: what it holds; learners count as standbys.
        rack_id: None = unknown.
        host_info: None; muster keeps no addresses of members.
        draining: whether it must give up all tasks (beyond Kafka).
    """

    process_id: str
    num_processing_threads: int
    previous_active_tasks: frozenset[Task]
    previous_standby_tasks: frozenset[Task]
    client_tags: Mapping[str, str] = field(default_factory=dict[str, str])
    rack_id: str | None = None
    host_info: str | None = None
    draining: bool = False
    _lags: Mapping[Task, int] | None = None

    @property
    def consumer_client_ids(self) -> tuple[str, ...]:
        """A member is one consumer."""
        return (self.process_id,)

    def lag_for(self, task: Task) -> int:
        """Offsets this member is behind; `LATEST_OFFSET` for an active it runs.

        Raises:
            RuntimeError: lags were not asked for.
            KeyError: the task has no state, or is not of this group.
        """
        return self.stateful_tasks_to_lag_sums[task]

    @property
    def stateful_tasks_to_lag_sums(self) -> Mapping[Task, int]:
        """Every stateful task of the group -> offsets this member is behind.

        Raises:
            RuntimeError: lags were not asked for.
        """
        if self._lags is None:
            raise RuntimeError("lags were not asked for: kafka_streams_states(compute_lags=True)")
        return self._lags

    def prev_tasks_by_lag(self, consumer_client_id: str) -> list[Task]:
        """Tasks this member holds, least behind first.

        Raises:
            RuntimeError: lags were not asked for.
        """
        lags = self.stateful_tasks_to_lag_sums
        if consumer_client_id != self.process_id:
            return []
        held = (self.previous_active_tasks | self.previous_standby_tasks) & set(lags)
        return sorted(held, key=lambda task: (lags[task], task))


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
