"""A group as a KIP-924 plug-in sees it, and a plug-in as the rest of muster sees it.

`ApplicationState` reads the arrays of a `GroupView`; each part is computed on first use. `Adapted`
runs a `TaskAssignor`, checks its answer in the KIP's order and turns it into a placement. This
module has no clock and no threads; `muster.plugins` enforces time limits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from operator import index
from types import MappingProxyType
from typing import cast

import numpy as np

from muster.assignor.copy_lags import Copies
from muster.assignor.errors import AssignorError, InvalidPlacement
from muster.assignor.kip924.validation import Claim, first_violation
from muster.assignor.kip924.values import (
    LATEST_OFFSET,
    AssignmentConfigs,
    AssignmentError,
    KafkaStreamsAssignment,
    KafkaStreamsState,
    TaskAssignment,
    TaskAssignmentException,
    TaskInfo,
    TaskTopicPartition,
    TaskType,
)
from muster.assignor.model import NO_MEMBER, GroupView, Pairs, Placement
from muster.assignor.reason_arrays import Moves, Reasons, changed
from muster.protocol.ids import Role, Task
from muster.protocol.tasks import RackLists, Subtopology


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


class TaskAssignor(ABC):
    """The interface a plug-in implements."""

    def configure(self, configs: AssignmentConfigs) -> None:  # noqa: B027  # optional in the KIP
        """Called with the group's settings before every assignment."""

    @abstractmethod
    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Assign every task of the group.

        Raises:
            TaskAssignmentException: it cannot decide now; the group keeps its assignment and asks
                again.
        """

    def on_assignment_computed(  # noqa: B027  # optional in the KIP
        self, assignment: TaskAssignment | None, state: ApplicationState, error: AssignmentError
    ) -> None:
        """Called after every assignment, also an invalid one; None = it was no TaskAssignment."""


class Adapted:
    """A `TaskAssignor` as an assignor over arrays, under the name that the user configured."""

    def __init__(self, name: str, plugin: TaskAssignor) -> None:
        self.name = name
        self.plugin = plugin

    def assign(self, view: GroupView) -> Placement:
        """Run the plug-in and check its answer.

        Raises:
            TaskAssignmentException: the plug-in cannot decide now; ask again.
            InvalidPlacement: the answer breaks the KIP's rules; `on_assignment_computed` got the
                error.
            AssignorError: the answer is no TaskAssignment.
        """
        state = ApplicationState(view)
        self.plugin.configure(state.assignment_configs)
        answer = cast("object", self.plugin.assign(state))  # a plug-in may return anything
        if not isinstance(answer, TaskAssignment):
            self.plugin.on_assignment_computed(None, state, AssignmentError.NONE)
            raise AssignorError(
                f"assignor {self.name} answered {type(answer).__name__}, not a TaskAssignment"
            )
        violation = violation_of(view, answer.assignment)
        error = AssignmentError(violation.error) if violation else AssignmentError.NONE
        self.plugin.on_assignment_computed(answer, state, error)
        if violation is not None:
            raise violation
        return _placement(view, answer)


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
    """The view as it would be if all members held what an assignment says."""
    owner = np.full(len(view.tasks), NO_MEMBER, dtype=np.int32)
    index_of = {name: index for index, name in enumerate(view.members)}
    copies: list[tuple[int, int]] = []
    for name, member_assignment in assignment.items():
        for task, assigned in member_assignment.tasks.items():
            index = view.tasks.find(task)
            assert index is not None
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


def _placement(view: GroupView, assignment: TaskAssignment) -> Placement:
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
