"""What a KIP-924 plug-in is given of a live group: the members' own data."""

from __future__ import annotations

from collections.abc import Mapping

from support.state.story import Story, config, join, report, tick

from muster.assignor.api import (
    LATEST_OFFSET,
    Adapted,
    ApplicationState,
    AssignedTask,
    AssignmentConfigs,
    KafkaStreamsState,
    Task,
    TaskAssignment,
    TaskAssignor,
    TaskType,
    identity_assignment,
)
from muster.protocol.events import Lag
from muster.protocol.tasks import Subtopology

T0, T1, STATELESS = Task("0", 0), Task("0", 1), Task("1", 0)
NAME = "mine:Noting"


class Noting(TaskAssignor):
    """Members keep their tasks, the rest goes to the first; records what it was given."""

    def __init__(self) -> None:
        self.states: list[Mapping[str, KafkaStreamsState]] = []
        self.configs: list[AssignmentConfigs] = []
        self.tasks: list[tuple[frozenset[Task], frozenset[Task]]] = []

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Identity, and a standby of 0_1 on B."""
        self.states.append(state.kafka_streams_states(compute_lags=True))
        self.configs.append(state.assignment_configs)
        self.tasks.append((state.stateful_tasks, state.stateless_tasks))
        assignments = identity_assignment(state)
        owned = {task for one in assignments.values() for task in one.of_type(TaskType.ACTIVE)}
        for task in state.all_tasks.keys() - owned:
            assignments["A"].assign_task(AssignedTask(task))
        if "B" in assignments:
            assignments["B"].assign_task(AssignedTask(T1, TaskType.STANDBY))
        return TaskAssignment.of(assignments.values())


def test_a_plug_in_sees_what_members_said() -> None:
    """S1-03, S1-15 to S1-18, S1-F04: capacity, rack, tags, tasks held, lags reported, settings."""
    plugin = Noting()
    assignor = Adapted(NAME, plugin)
    story = Story(lookup=lambda name: assignor)
    units = (Subtopology("0", 2, stateful=True), Subtopology("1", 1))
    given = config(*units, assignor=NAME, max_warmup_replicas=3, stream_imbalance_percentage=20)
    story.take(given, join("A", capacity=4, rack="r0", tags=(("zone", "x"),)))
    story.at(1).take(tick())  # takes what the plug-in answered
    story.at(100).take(join("B"))
    story.at(101).take(tick())
    behind = report("B", 1, standby=[T1], epoch=2, lags=(Lag(T1, 7),))
    story.at(200).take(report("A", 1, T0, T1, STATELESS), behind)
    story.at(300).take(join("C"))
    first, last = plugin.states[0], plugin.states[-1]
    assert list(first) == ["A"]
    a, b = last["A"], last["B"]
    assert (a.num_processing_threads, a.rack_id, dict(a.client_tags)) == (4, "r0", {"zone": "x"})
    assert (a.previous_active_tasks, a.previous_standby_tasks) == ({T0, T1, STATELESS}, set())
    assert (b.previous_active_tasks, b.previous_standby_tasks) == (set(), {T1})
    assert (a.lag_for(T0), b.lag_for(T1)) == (LATEST_OFFSET, 7)
    assert plugin.tasks[-1] == ({T0, T1}, {STATELESS})
    assert plugin.configs[-1].max_warmup_replicas == 3
    assert plugin.configs[-1].settings.stream_imbalance_percentage == 20
