"""What a KIP-924 plug-in reads: the group, its tasks, its members and their lags (S1-09).

`ApplicationState` reads the arrays of a `GroupView`; each part is computed on first use. Users
import all this from `muster.assignor.api`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np

from muster.assignor.copy_lags import Copies
from muster.assignor.model import NO_MEMBER, GroupView
from muster.protocol.ids import Task
from muster.protocol.settings import Settings
from muster.protocol.tasks import RackLists, Subtopology

LATEST_OFFSET = -2
"""Lag of a task that the member runs as active now (S1-F04)."""


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


class ApplicationState:
    """A group, read only (S1-F03). All mappings are sorted."""

    def __init__(self, view: GroupView) -> None:
        self.view = view

    @property
    def now_ms(self) -> int:
        """Time of the group's clock; follow-up deadlines are times of this clock."""
        return self.view.now_ms

    @property
    def assignment_configs(self) -> AssignmentConfigs:
        """The group's settings."""
        settings = self.view.settings
        return AssignmentConfigs(
            acceptable_recovery_lag=settings.acceptable_recovery_lag,
            max_warmup_replicas=settings.max_warmup_replicas,
            num_standby_replicas=settings.num_standby_replicas,
            probing_rebalance_interval_ms=settings.probing_rebalance_interval_ms,
            rack_aware_assignment_tags=settings.rack_aware_assignment_tags,
            rack_aware_assignment_strategy=settings.rack_aware_assignment_strategy,
            rack_aware_traffic_cost=settings.rack_aware_assignment_traffic_cost,
            rack_aware_non_overlap_cost=settings.rack_aware_assignment_non_overlap_cost,
            settings=settings,
        )

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Every task, by index in the view's table."""
        return tuple(map(self.view.tasks.task, range(len(self.view.tasks))))

    @cached_property
    def all_tasks(self) -> Mapping[Task, TaskInfo]:
        """Every task and what is known about it; a plug-in must assign all of them (S1-18)."""
        weight, stateful = self.view.tasks.weight.tolist(), self.view.tasks.stateful.tolist()
        infos = {
            task: TaskInfo(task, stateful[place], self._partitions(task, place), weight[place])
            for place, task in enumerate(self.tasks)
        }
        return MappingProxyType(infos)

    @cached_property
    def stateful_tasks(self) -> frozenset[Task]:
        """The tasks with state."""
        return frozenset(task for task, about in self.all_tasks.items() if about.is_stateful)

    @cached_property
    def stateless_tasks(self) -> frozenset[Task]:
        """The tasks without state."""
        return frozenset(self.all_tasks) - self.stateful_tasks

    def kafka_streams_states(self, compute_lags: bool = False) -> Mapping[str, KafkaStreamsState]:
        """Every member by id, with lags only if asked for."""
        view = self.view
        active: list[list[Task]] = [[] for _ in view.members]
        standby: list[list[Task]] = [[] for _ in view.members]
        for place, member in enumerate(view.active.tolist()):
            if member != NO_MEMBER:
                active[int(member)].append(self.tasks[place])
        for pairs in (view.standby, view.learner):
            for place, member in zip(pairs.task.tolist(), pairs.member.tolist(), strict=True):
                standby[int(member)].append(self.tasks[int(place)])
        return {
            name: KafkaStreamsState(
                process_id=name,
                num_processing_threads=int(view.capacity[member]),
                previous_active_tasks=frozenset(active[member]),
                previous_standby_tasks=frozenset(standby[member]),
                client_tags=MappingProxyType(view.tags[member]),
                rack_id=view.racks[int(view.rack[member])] if view.rack[member] >= 0 else None,
                draining=bool(view.draining[member]),
                _lags=_Lags(self, member) if compute_lags else None,
            )
            for member, name in enumerate(view.members)
        }

    def _partitions(self, task: Task, place: int) -> tuple[TaskTopicPartition, ...]:
        unit = self.view.tasks.units[int(self.view.tasks.unit_of[place])]
        if not isinstance(unit, Subtopology):
            return ()
        sources = _racks_of(unit.source_racks, task.number)
        changelogs = _racks_of(unit.changelog_racks, task.number)
        if unit.stateful and not changelogs:
            changelogs = [None]
        return (
            *(
                TaskTopicPartition(f"{unit.name}/source-{n}-{task.number}", True, False, racks)
                for n, racks in enumerate(sources or [None])
            ),
            *(
                TaskTopicPartition(f"{unit.name}/changelog-{n}-{task.number}", False, True, racks)
                for n, racks in enumerate(changelogs)
            ),
        )


def _racks_of(lists: RackLists | None, number: int) -> list[frozenset[str] | None]:
    return [] if lists is None else [frozenset(topic) for topic in lists[number]]


class _Lags(Mapping[Task, int]):
    """Lags of one member, looked up on access."""

    def __init__(self, state: ApplicationState, member: int) -> None:
        self._state = state
        self._member = member

    def __getitem__(self, task: Task) -> int:
        view = self._state.view
        index = view.tasks.find(task)
        if index is None or not view.tasks.stateful[index]:
            raise KeyError(task)
        copies = Copies(view)
        behind = copies.lag_of(index, self._member)
        if view.active[index] == self._member and behind <= copies.acceptable:
            return LATEST_OFFSET
        return behind

    def __iter__(self) -> Iterator[Task]:
        stateful = np.flatnonzero(self._state.view.tasks.stateful)
        return (self._state.tasks[place] for place in stateful.tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._state.view.tasks.stateful))
