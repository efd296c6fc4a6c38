"""The state and settings a KIP-924 plug-in reads, and the order of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, replace
from operator import attrgetter
from typing import Any

import pytest
from support.assignor.placing import Member, group
from support.plugin_assignors import FirstTakesAll

from muster import plugins
from muster.assignor.api import (
    Adapted,
    ApplicationState,
    AssignedTask,
    AssignmentConfigs,
    KafkaStreamsAssignment,
    Task,
    TaskAssignment,
    TaskTopicPartition,
    TaskType,
    default_standby_task_assignment,
    identity_assignment,
    optimize_rack_aware_active_tasks,
    optimize_rack_aware_standby_tasks,
)
from muster.assignor.api import RackAwareOptimizationParams as Params
from muster.assignor.errors import AssignorError
from muster.assignor.model import GroupView, Placement
from muster.protocol.tasks import Subtopology

T0, T1 = Task("0", 0), Task("0", 1)


def tagged(**config: object) -> GroupView:
    """Two zones of two members; A runs both tasks."""
    members = {
        "A": Member(tags={"zone": "x"}, active=["0_0", "0_1"], capacity=2),
        "B": Member(tags={"zone": "x"}),
        "C": Member(tags={"zone": "y"}, standby=["0_1"], lag={"0_1": 3}),
        "D": Member(tags={"zone": "y"}),
    }
    return group([Subtopology("0", 2, stateful=True)], members, **config)


def test_a_plugin_is_configured_before_it_is_asked() -> None:
    """S1-07: `configure` gets the group's settings each time, then `assign` is called."""

    class Noting(FirstTakesAll):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[object] = []

        def configure(self, configs: AssignmentConfigs) -> None:
            self.calls.append(configs.num_standby_replicas)

        def assign(self, state: ApplicationState) -> TaskAssignment:
            self.calls.append("assign")
            return super().assign(state)

    plugin = Noting()
    for standbys in (0, 2):
        Adapted("noting", plugin).assign(tagged(num_standby_replicas=standbys))
    assert plugin.calls == [0, "assign", 2, "assign"]


def test_an_answer_lists_members_in_order() -> None:
    """S1-08, S1-11, S1-F05: members by id; tasks added and removed by role; follow-ups copy."""
    one = KafkaStreamsAssignment.of("b", [AssignedTask(T1), AssignedTask(T0, TaskType.STANDBY)])
    assert (one.of_type(TaskType.ACTIVE), one.of_type(TaskType.STANDBY)) == ([T1], [T0])
    one.assign_task(AssignedTask(T0))
    one.remove_task(AssignedTask(T1, TaskType.STANDBY))
    assert (one.of_type(TaskType.ACTIVE), one.of_type(TaskType.STANDBY)) == ([T0, T1], [])
    later = one.with_followup_rebalance(7)
    later.remove_task(AssignedTask(T0))
    assert (one.followup_rebalance_deadline, later.followup_rebalance_deadline) == (None, 7)
    assert (len(one.tasks), len(later.tasks)) == (2, 1)
    answer = TaskAssignment.of([one, KafkaStreamsAssignment.of("a")])
    assert [each.process_id for each in answer.assignment] == ["a", "b"]
    assert answer.num_nodes == 2
    assert repr(answer).index("'a'") < repr(answer).index("'b'")


def test_an_answer_lists_tasks_with_and_without_state() -> None:
    """S1-11: the tasks of a member in one role, and those of them that have state or have none."""
    units = [Subtopology("0", 2, stateful=True), Subtopology("1", 1)]
    state = ApplicationState(group(units, {"A": Member(active=["0_0", "1_0"], standby=["0_1"])}))
    one = identity_assignment(state)["A"]
    assert one.of_type(TaskType.ACTIVE) == [T0, Task("1", 0)]
    assert one.of_type(TaskType.ACTIVE, among=state.stateful_tasks) == [T0]
    assert one.of_type(TaskType.ACTIVE, among=state.stateless_tasks) == [Task("1", 0)]
    assert one.of_type(TaskType.STANDBY, among=state.stateful_tasks) == [T1]


def test_states_are_read_only() -> None:
    """S1-09: a plug-in cannot change the group through what it reads."""
    view = tagged()
    state = ApplicationState(view)
    member: Any = state.kafka_streams_states()["A"]
    with pytest.raises(FrozenInstanceError):
        member.num_processing_threads = 9
    with pytest.raises(TypeError):
        member.client_tags["zone"] = "z"
    with pytest.raises(AttributeError):
        member.previous_active_tasks.add(Task("9", 9))
    all_tasks: Any = state.all_tasks
    with pytest.raises(TypeError):
        del all_tasks[T0]
    assert view.tags[0] == {"zone": "x"}


@pytest.mark.parametrize("part", ["active", "standby.member", "tasks.stateful", "tags"])
def test_the_groups_own_arrays_cannot_be_written_to(part: str) -> None:
    """A plug-in over arrays that writes into its view fails, and the group is unchanged."""

    class Scribbles:
        name = "scribbles"

        def assign(self, view: GroupView) -> Placement:
            target: Any = attrgetter(part)(view)
            target[0] = {} if part == "tags" else 1
            return Placement(active=view.active, destination=view.active)

    view = tagged()
    with pytest.raises(AssignorError, match=r"read-only|item assignment"):
        plugins.Guarded(Scribbles()).assign(view)
    assert view.active.tolist() == [0, 0]
    assert view.standby.member.tolist() == [2]


def test_a_plug_in_may_change_its_memory_and_return_it() -> None:
    """The group's own memory stays as it is, so that a batch can be repeated."""

    class Counts:
        name = "counts"

        def assign(self, view: GroupView) -> Placement:
            memory: Any = view.memory
            memory["sizes"].append(len(view.members))
            return Placement(active=view.active, destination=view.active, memory=memory)

    view = replace(tagged(), memory={"sizes": [1]})
    answers = [plugins.Guarded(Counts()).assign(view).memory for _ in range(2)]
    assert answers == [{"sizes": [1, len(view.members)]}] * 2
    assert view.memory == {"sizes": [1]}


def test_settings_are_those_of_the_group() -> None:
    """S1-18, S1-23, S1-F12: every getter has the group's value; prices are None unless set.

    Settings that only muster has (here the percentage) are in `settings`.
    """
    view = tagged(
        acceptable_recovery_lag=5,
        max_warmup_replicas=3,
        num_standby_replicas=1,
        probing_rebalance_interval_ms=70_000,
        rack_aware_assignment_tags=["zone"],
        rack_aware_assignment_strategy="min_traffic",
        rack_aware_assignment_traffic_cost=4,
        stream_imbalance_percentage=20,
    )
    configs = ApplicationState(view).assignment_configs
    kafkas = (5, 3, 1, 70_000, ("zone",), "min_traffic", 4, None)
    assert configs == AssignmentConfigs(*kafkas, settings=view.settings)
    assert configs.settings.stream_imbalance_percentage == 20


def test_tasks_say_what_they_read() -> None:
    """S1-F02: inputs and changelogs of a task with the racks of their replicas."""
    unit = Subtopology(
        "0",
        1,
        stateful=True,
        source_racks=((("r0", "r1"), ("r2",)),),
        changelog_racks=((("r1",),),),
    )
    state = ApplicationState(group([unit], {"A": Member(rack="r0")}))
    about = state.all_tasks[T0]
    assert (about.id, about.is_stateful, about.weight) == (T0, True, 1)
    assert about.topic_partitions == (
        TaskTopicPartition("0/source-0-0", True, False, frozenset({"r0", "r1"})),
        TaskTopicPartition("0/source-1-0", True, False, frozenset({"r2"})),
        TaskTopicPartition("0/changelog-0-0", False, True, frozenset({"r1"})),
    )
    assert isinstance(state.all_tasks, Mapping)


def test_default_standbys_differ_in_tags() -> None:
    """S1-19, S1-F11: with tags configured a standby goes to another zone; without, anywhere."""
    state = ApplicationState(tagged(num_standby_replicas=1, rack_aware_assignment_tags=["zone"]))
    placement = default_standby_task_assignment(state, identity_assignment(state))
    holders = {
        task: name for name, one in placement.items() for task in one.of_type(TaskType.STANDBY)
    }
    assert set(holders) == {T0, T1}
    assert set(holders.values()) <= {"C", "D"}
    assert holders[T1] == "C"


@pytest.mark.parametrize(
    "improve",
    [
        default_standby_task_assignment,
        lambda state, of: optimize_rack_aware_active_tasks(Params.of(state), of),
        lambda state, of: optimize_rack_aware_standby_tasks(Params.of(state), of),
    ],
    ids=["standbys", "actives for racks", "standbys for racks"],
)
def test_utilities_say_what_is_wrong_with_an_assignment(improve: Any) -> None:
    """A task and a member that the group does not have are named."""
    state = ApplicationState(tagged(num_standby_replicas=1))
    unknown_task, unknown_member = identity_assignment(state), identity_assignment(state)
    unknown_task["B"].assign_task(AssignedTask(Task("0", 9), TaskType.STANDBY))
    unknown_member["X"] = KafkaStreamsAssignment("X")
    with pytest.raises(AssignorError, match="gives B task 0_9; the group has none"):
        improve(state, unknown_task)
    with pytest.raises(AssignorError, match="names X, which is no member"):
        improve(state, unknown_member)


def test_default_standbys_need_an_entry_for_each_member() -> None:
    """The entry of a member that gets a standby is missing: the error names the member."""
    state = ApplicationState(tagged(num_standby_replicas=3))
    listed = {name: of for name, of in identity_assignment(state).items() if name != "D"}
    with pytest.raises(AssignorError, match="no entry for member D"):
        default_standby_task_assignment(state, listed)
