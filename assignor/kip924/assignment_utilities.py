"""KIP-924's TaskAssignmentUtils: helpers for plug-ins (S1-19..22, S1-F10).

As in the KIP, functions that improve an assignment change the objects in the mapping that they get,
and return that mapping. Where tags are configured, optimise actives before placing standbys
(S1-F11). Costs are overrides, else the configured ones, else high-availability's own; Kafka's
utilities do nothing when no cost is configured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from muster.assignor.copy_lags import Copies
from muster.assignor.errors import AssignorError
from muster.assignor.kip924.application_state import ApplicationState
from muster.assignor.kip924.plugin_answer import (
    AssignedTask,
    AssignmentError,
    KafkaStreamsAssignment,
    TaskType,
    holdings,
    violation_of,
)
from muster.assignor.model import NO_MEMBER, GroupView
from muster.assignor.targets.plan_data import usable_capacity
from muster.assignor.targets.racks import AVAILABILITY, STATELESS, Prices
from muster.assignor.targets.racks_with_kept_counts import optimized
from muster.assignor.targets.standby import standbys
from muster.assignor.targets.standby_request import StandbyRequest
from muster.assignor.targets.tag_zones import tagged_standbys
from muster.protocol.ids import Task

Assignments = Mapping[str, KafkaStreamsAssignment]


@dataclass(frozen=True, slots=True)
class RackAwareOptimizationParams:
    """Which tasks are optimised, and at what prices.

    Attributes:
        state: the group.
        tasks: the tasks whose actives may be exchanged; None = all.
        traffic_cost, non_overlap_cost: override the configured ones; None = no override.
    """

    state: ApplicationState
    tasks: frozenset[Task] | None = None
    traffic_cost: int | None = None
    non_overlap_cost: int | None = None

    @classmethod
    def of(cls, state: ApplicationState) -> RackAwareOptimizationParams:
        """All tasks at the configured prices."""
        return cls(state)

    def for_stateful_tasks(self) -> RackAwareOptimizationParams:
        """Only tasks with state."""
        return self.for_tasks(self.state.stateful_tasks)

    def for_stateless_tasks(self) -> RackAwareOptimizationParams:
        """Only tasks without state."""
        return self.for_tasks(self.state.stateless_tasks)

    def for_tasks(self, tasks: Iterable[Task]) -> RackAwareOptimizationParams:
        """Only these tasks."""
        return replace(self, tasks=frozenset(tasks))

    def with_traffic_cost_override(self, cost: int) -> RackAwareOptimizationParams:
        """With this price of a partition read across racks."""
        return replace(self, traffic_cost=cost)

    def with_non_overlap_cost_override(self, cost: int) -> RackAwareOptimizationParams:
        """With this price of a task that moves."""
        return replace(self, non_overlap_cost=cost)

    def prices(self, own: Prices) -> Prices:
        """Overrides, else the configured prices, else `own`."""
        configs = self.state.assignment_configs
        traffic = (self.traffic_cost, configs.rack_aware_traffic_cost, own.traffic)
        overlap = (self.non_overlap_cost, configs.rack_aware_non_overlap_cost, own.overlap)
        return Prices(
            next(price for price in traffic if price is not None),
            next(price for price in overlap if price is not None),
        )


def validate_task_assignment(
    state: ApplicationState, assignment: Iterable[KafkaStreamsAssignment]
) -> AssignmentError:
    """The first error of an assignment; `AssignmentError.NONE` if there is none."""
    violation = violation_of(state.view, assignment)
    return AssignmentError(violation.error) if violation else AssignmentError.NONE


def identity_assignment(state: ApplicationState) -> dict[str, KafkaStreamsAssignment]:
    """The assignment in which every member keeps what it has (EX-S1-7)."""
    return {
        name: KafkaStreamsAssignment.of(
            name,
            [
                *(AssignedTask(task, TaskType.ACTIVE) for task in member.previous_active_tasks),
                *(AssignedTask(task, TaskType.STANDBY) for task in member.previous_standby_tasks),
            ],
        )
        for name, member in state.kafka_streams_states().items()
    }


def default_standby_task_assignment(
    state: ApplicationState, assignment: Assignments
) -> Assignments:
    """Add standbys of every stateful active: by tags if any are configured, else by load.

    Changes `assignment` and returns it.

    Raises:
        AssignorError: it names a task or a member that the group does not have, or lacks a member
            that gets a standby.
    """
    view = holdings(state.view, assignment)
    replicas = view.settings.num_standby_replicas
    if replicas == 0:
        return assignment
    # Present standbys are those the members hold, not those the new assignment lists.
    held = replace(view, standby=state.view.standby)
    place_standbys = tagged_standbys if view.settings.rack_aware_assignment_tags else standbys
    request = StandbyRequest(
        view=held,
        tasks=np.flatnonzero(view.tasks.stateful & (view.active != NO_MEMBER)).astype(np.int32),
        target=view.active,
        copies=replicas,
        capacity=usable_capacity(view),
    )
    pairs, *_ = place_standbys(Copies(held), request)
    for task, member in zip(pairs.task.tolist(), pairs.member.tolist(), strict=True):
        standby = AssignedTask(state.tasks[int(task)], TaskType.STANDBY)
        name = view.members[member]
        if name not in assignment:
            raise AssignorError(f"no entry for member {name}; expected one, even if it is empty")
        assignment[name].assign_task(standby)
    return assignment


def optimize_rack_aware_active_tasks(
    params: RackAwareOptimizationParams, assignment: Assignments
) -> Assignments:
    """Exchange actives so that less is read across racks; every member keeps its counts.

    Changes `assignment` and returns it. An active that goes to the member with its standby
    exchanges roles with it.

    Raises:
        AssignorError: a task to be exchanged is active on two members, or on none (S4-F07).
    """
    state = params.state
    _owned_once(assignment, params.state.all_tasks if params.tasks is None else params.tasks)
    view = _priced(params, assignment)
    chosen = np.array([params.tasks is None or task in params.tasks for task in state.tasks])
    placement = optimized(
        view,
        AVAILABILITY,
        actives=chosen.astype(np.bool_),
        standbys=False,
        stateless=params.prices(STATELESS),
    )
    for index in np.flatnonzero(placement.active != view.active).tolist():
        task = state.tasks[index]
        source = assignment[view.members[view.active[index]]]
        destination = assignment[view.members[placement.active[index]]]
        source.remove_task(AssignedTask(task, TaskType.ACTIVE))
        if task in destination.tasks:
            source.assign_task(destination.tasks[task])
        destination.assign_task(AssignedTask(task, TaskType.ACTIVE))
    return assignment


def optimize_rack_aware_standby_tasks(
    params: RackAwareOptimizationParams, assignment: Assignments
) -> Assignments:
    """Exchange standbys so that less is read across racks; every member keeps its count.

    Changes `assignment` and returns it.
    """
    state = params.state
    view = _priced(params, assignment)
    no_actives = np.zeros(len(view.tasks), dtype=np.bool_)
    placement = optimized(view, AVAILABILITY, actives=no_actives, standbys=True)
    for pairs, change in (
        (view.standby, KafkaStreamsAssignment.remove_task),
        (placement.standby, KafkaStreamsAssignment.assign_task),
    ):
        for index, member in zip(pairs.task.tolist(), pairs.member.tolist(), strict=True):
            standby = AssignedTask(state.tasks[int(index)], TaskType.STANDBY)
            change(assignment[view.members[member]], standby)
    return assignment


def _owned_once(assignment: Assignments, tasks: Iterable[Task]) -> None:
    owner: dict[Task, str] = {}
    for name, member_assignment in assignment.items():
        for task in member_assignment.of_type(TaskType.ACTIVE):
            if owner.setdefault(task, name) != name:
                raise AssignorError(
                    f"task {task} is active on {owner[task]} and on {name}; expected one member"
                )
    for task in tasks:
        if task not in owner:
            raise AssignorError(f"task {task} is active on no member; expected one")


def _priced(params: RackAwareOptimizationParams, assignment: Assignments) -> GroupView:
    """The group as the assignment has it, at the prices of the parameters."""
    view, prices = holdings(params.state.view, assignment), params.prices(AVAILABILITY)
    settings = replace(
        view.settings,
        rack_aware_assignment_traffic_cost=prices.traffic,
        rack_aware_assignment_non_overlap_cost=prices.overlap,
    )
    return replace(view, settings=settings)
