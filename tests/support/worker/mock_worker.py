"""A `Worker` on librdkafka's mock cluster, with a scripted coordinator at the other end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.kafka.mock_kafka import QUICK, mock_kafka
from support.worker.scripted_coordinator import ScriptedCoordinator, eventually

from muster import Worker
from muster.protocol.events import Join
from muster.protocol.ids import Task
from muster.worker import kafka_link
from muster.worker.assignment import Assignment


@pytest.fixture(scope="module")
def mock_servers() -> Iterator[str]:
    """A mock cluster for the whole file; each test has a group of its own."""
    with mock_kafka() as servers:
        yield servers


@pytest.fixture
def closes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads check more often than usual whether they must end."""
    monkeypatch.setattr(kafka_link, "WAIT_S", 0.02)


@pytest.fixture
def coordinator(mock_servers: str, request: pytest.FixtureRequest) -> Iterator[ScriptedCoordinator]:
    """A coordinator for a group named after the test."""
    with ScriptedCoordinator(mock_servers, request.node.name) as scripted:
        yield scripted


class Story:
    """Callbacks that record their calls as lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, name: str):
        def called(tasks: tuple[Task, ...], assignment: Assignment) -> None:
            self.lines.append(f"{name} {' '.join(map(str, tasks))} @{assignment.generation}")

        return called


def worker(mock_servers: str, coordinator: ScriptedCoordinator, **more) -> Worker:
    """A member of the coordinator's group, not yet started."""
    return Worker(group=coordinator.group, bootstrap_servers=mock_servers, config=QUICK, **more)


def given(w: Worker, coordinator: ScriptedCoordinator, *tasks: str) -> Join:
    """Assign tasks to a worker that joins; return its join when it holds them."""
    join = coordinator.wait_for(Join)
    coordinator.assign(join, tasks)
    eventually(lambda: all(map(w.holds, tasks)))
    return join
