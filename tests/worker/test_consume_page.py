"""What `docs/consume.md` says beside its recipe: a loss without `on_lost`, a dead broker."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from support.suite.waiting import until
from support.worker.mock_worker import given, worker
from support.worker.scripted_coordinator import ScriptedCoordinator

from muster import Assignment, Task, Worker

pytestmark = pytest.mark.usefixtures("closes_soon")
UNREACHABLE = "127.0.0.1:1"


def test_without_on_lost_a_loss_calls_on_revoked(
    mock_servers: str, coordinator: ScriptedCoordinator
) -> None:
    """It is called with what is lost, and `holds` says no by then, so a guarded commit is none."""
    calls: list[tuple[tuple[str, ...], bool]] = []
    members: list[Worker] = []

    def stop(tasks: tuple[Task, ...], _: Assignment) -> None:
        calls.append((tuple(map(str, tasks)), any(members[0].holds(task) for task in tasks)))

    with worker(mock_servers, coordinator, on_revoked=stop) as member:
        members.append(member)
        given(member, coordinator, "0_0")
        coordinator.let_go(member.member_id)
        until(lambda: calls, "it is told")
        assert calls == [(("0_0",), False)]


def test_what_a_dead_broker_raises() -> None:
    """`poll` gives no message or one with an error; what asks for offsets raises."""
    consumer = Consumer(
        {
            "bootstrap.servers": UNREACHABLE,
            "group.id": "g",
            "socket.timeout.ms": 1_000,
            "log_level": 0,
        }
    )
    here = TopicPartition("orders", 0, 7)
    consumer.assign([here])
    message = consumer.poll(0.2)
    assert message is None or message.error() is not None
    with pytest.raises(KafkaException):
        consumer.committed([here], timeout=0.5)
    consumer.close()
