"""`Worker` on a real wire (librdkafka's mock cluster), a scripted coordinator at the other end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from support.mock_kafka import QUICK, mock_kafka
from support.scripted_coordinator import ScriptedCoordinator, eventually

from muster import Worker
from muster.protocol.errors import ConfigError
from muster.protocol.events import Heartbeat, Join, Leave, Report
from muster.protocol.ids import Task
from muster.protocol.records import Fault
from muster.protocol.tasks import TaskSet
from muster.worker.assignment import Assignment
from muster.worker.errors import CallbackFailed, Fenced


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A mock cluster for the whole file; each test has a group of its own."""
    with mock_kafka() as servers:
        yield servers


@pytest.fixture
def coordinator(bootstrap: str, request: pytest.FixtureRequest) -> Iterator[ScriptedCoordinator]:
    """A coordinator for a group named after the test."""
    with ScriptedCoordinator(bootstrap, request.node.name) as scripted:
        yield scripted


class Story:
    """Callbacks that write down what was called."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, name: str):
        def called(tasks: tuple[Task, ...], assignment: Assignment) -> None:
            self.lines.append(f"{name} {' '.join(map(str, tasks))} @{assignment.generation}")

        return called

    def has(self, *lines: str) -> bool:
        return self.lines == list(lines)


def worker(bootstrap: str, coordinator: ScriptedCoordinator, **more) -> Worker:
    return Worker(group=coordinator.group, bootstrap_servers=bootstrap, config=QUICK, **more)


def test_life_of_a_member(bootstrap: str, coordinator: ScriptedCoordinator) -> None:
    """Join, take, give up, report, leave: callbacks and events come in order."""
    story = Story()
    with worker(
        bootstrap,
        coordinator,
        member_id="m",
        rack="r1",
        capacity=3,
        tags={"zone": "a"},
        on_assigned=story.assigned,
        on_revoked=story.revoked,
    ) as w:
        join = coordinator.wait_for(Join)
        assert (join.rack, join.capacity, join.tags) == ("r1", 3, (("zone", "a"),))
        coordinator.assign(join, ["0_0", "0_1"])
        eventually(lambda: story.has("assigned 0_0 0_1 @1"))
        assert w.holds("0_0")
        assert not w.holds("0_2")
        coordinator.assign(join, ["0_1"], generation=2, epoch=1)
        report = coordinator.wait_for(Report)
        assert report.holding.active == TaskSet.of(["0_1"])
        assert (report.epoch, report.revision) == (1, 2)
        assert story.has("assigned 0_0 0_1 @1", "revoked 0_0 @2")
        assert not w.holds("0_0")
        coordinator.wait_for(Heartbeat, lambda h: h.digest == report.holding.digest())
    leave = coordinator.wait_for(Leave)
    assert leave.incarnation == join.incarnation
    assert not leave.temporary
    assert story.lines[2:] == ["revoked 0_1 @2"]
    assert not w.holds("0_1")
