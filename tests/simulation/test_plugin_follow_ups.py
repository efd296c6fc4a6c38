"""Follow-ups that a KIP-924 plug-in requests (S1-12, S1-13, S1-F06, EX-S1-8, EX-S1-9).

The group names the plug-in as users do (``module:Class``), so what it answers is kept for a batch
and taken by the next one, as in the job.
"""

from __future__ import annotations

import pytest

from muster.assignor.api import (
    Adapted,
    ApplicationState,
    AssignedTask,
    KafkaStreamsAssignment,
    TaskAssignment,
    TaskAssignor,
)
from muster.assignor.model import Assignor
from muster.documents.scenario import parse_scenario
from muster.simulation.scenario_player import BEGINNING_MS, SimulatedGroup

NAME = "mine:Wishing"
SIZE = 4


class Wishing(TaskAssignor):
    """Assigns round robin; with each answer one member requests the next follow-up of a list.

    Args:
        wishes_ms: times of the scenario; None = none.
    """

    def __init__(self, *wishes_ms: int | None) -> None:
        self.wishes_ms = list(wishes_ms)
        self.asked_ms: list[int] = []

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Assign, with the next follow-up requested by the last member."""
        self.asked_ms.append(state.now_ms - BEGINNING_MS)
        names = sorted(state.kafka_streams_states())
        assignments = {name: KafkaStreamsAssignment.of(name) for name in names}
        for number, task in enumerate(sorted(state.all_tasks)):
            assignments[names[number % len(names)]].assign_task(AssignedTask(task))
        wish = self.wishes_ms.pop(0) if self.wishes_ms else None
        if wish is not None:
            assignments[names[-1]] = assignments[names[-1]].with_followup_rebalance(
                BEGINNING_MS + wish
            )
        return TaskAssignment.of(assignments.values())


def lived(plugin: Wishing, *events: dict[str, object], ack_ms: int = 1) -> SimulatedGroup:
    """Simulate 900 s: W1 and W2 join, then these events."""
    tasks = [{"subtopology": "0", "partitions": SIZE}]
    joins = [{"at_ms": 0, "join": {"id": name}} for name in ("W1", "W2")]
    assignor: Assignor = Adapted(NAME, plugin)
    world = SimulatedGroup(lookup=lambda name: assignor)
    world.play(
        parse_scenario(
            {
                "group": {"assignor": NAME, "tasks": tasks},
                "defaults": {"ack_ms": ack_ms},
                "events": [*joins, *events],
                "until_ms": 900_000,
            }
        )
    )
    return world


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        pytest.param(None, [0, 100_000], id="EX-S1-8 dropped"),
        pytest.param(600_000, [0, 100_000, 600_000], id="EX-S1-9 asked again"),
    ],
)
def test_only_the_newest_answers_follow_up_counts(second: int | None, expected: list[int]) -> None:
    """A follow-up is due at 600 s; at 100 s a member leaves, and the next answer decides anew."""
    plugin = Wishing(600_000, second)
    lived(plugin, {"at_ms": 100_000, "leave": "W2"})
    assert plugin.asked_ms == expected


def test_a_follow_up_that_is_due_waits_for_the_hand_over() -> None:
    """S1-F06: a follow-up due 1 s after a move waits until the old owner has stopped, at 20 s."""
    plugin = Wishing(None, 101_000)
    lived(plugin, {"at_ms": 100_000, "join": {"id": "W3"}}, ack_ms=20_000)
    assert plugin.asked_ms == [0, 100_000, 120_000]


def test_a_member_that_asked_for_a_follow_up_may_go() -> None:
    """S1-13: its leave causes a rebalance, and the plug-in sees the group without it."""
    plugin = Wishing(600_000)
    world = lived(plugin, {"at_ms": 100_000, "crash": "W2"})
    assert [ms for ms in plugin.asked_ms if ms > 200_000] == []
    assert world.group.owned.holder.tolist() == [0, 0, 0, 0]
