"""Kafka's own group protocols under the same load: members, tasks, one join, one leave.

Each member is a confluent-kafka consumer in its own thread, with default timings. "Settled" means
the same for every system (`latency.py`): every task has exactly one owner, every member has its
fair share, and no member has to give up a task.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

POLL_S = 0.01
SETTLE_TIMEOUT_S = 120.0
PROTOCOLS: dict[str, dict[str, str]] = {
    "consumer (KIP-848)": {"group.protocol": "consumer"},
    "cooperative-sticky": {
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
    },
}


def shares(tasks: int, members: int) -> set[int]:
    """The sizes of a fair share."""
    return {tasks // members, -(-tasks // members)}


def await_settled(held: Callable[[], Sequence[set[int]]], tasks: int, members: int) -> float:
    """Wait until every task has one owner and every member its share.

    Returns:
        `time.perf_counter` when this was first seen.

    Raises:
        TimeoutError: the members did not settle in time.
    """
    fair = shares(tasks, members)
    deadline = time.perf_counter() + SETTLE_TIMEOUT_S
    while time.perf_counter() < deadline:
        found = held()
        sizes = [len(each) for each in found]
        shared_out = len(found) == members and set(sizes) <= fair and sum(sizes) == tasks
        if shared_out and len(set().union(*found)) == tasks:
            return time.perf_counter()
        time.sleep(0.002)
    raise TimeoutError(f"not settled: {sorted(len(each) for each in held())}")


class KafkaMember:
    """A consumer and its thread; `held` are the partitions assigned and not revoked."""

    def __init__(self, address: str, topic: str, group: str, protocol: dict[str, str]) -> None:
        self.held: set[int] = set()
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **protocol,
            }
        )
        self._topic = topic
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Join."""
        self._thread.start()

    def stop(self) -> None:
        """Leave, and wait until the consumer is closed."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        # With the cooperative protocols the client itself applies assignments.
        self._consumer.subscribe(
            [self._topic],
            on_assign=lambda _, partitions: self._add(partitions),
            on_revoke=lambda _, partitions: self._remove(partitions),
            on_lost=lambda _, partitions: self._remove(partitions),
        )
        while not self._stop.is_set():
            try:
                self._consumer.poll(POLL_S)
            except KafkaException:
                time.sleep(POLL_S)
        self._consumer.close()

    def _add(self, partitions: Sequence[TopicPartition]) -> None:
        self.held = self.held | {p.partition for p in partitions}

    def _remove(self, partitions: Sequence[TopicPartition]) -> None:
        self.held = self.held - {p.partition for p in partitions}


def settle_times(
    address: str, protocol: dict[str, str], members: int, tasks: int, rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds until settled after a join, and after a leave, `rounds` times each."""
    topic = f"tasks-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(topic, tasks, 1)]).values():
        future.result(60)
    group = uuid.uuid4().hex[:8]
    fleet = [KafkaMember(address, topic, group, protocol) for _ in range(members)]
    joins: list[float] = []
    leaves: list[float] = []
    try:
        for member in fleet:
            member.start()
        await_settled(lambda: [m.held for m in fleet], tasks, members)
        for _ in range(rounds):
            newcomer = KafkaMember(address, topic, group, protocol)
            began = time.perf_counter()
            newcomer.start()
            fleet.append(newcomer)
            joins.append(await_settled(lambda: [m.held for m in fleet], tasks, members + 1) - began)
            began = time.perf_counter()
            fleet.remove(newcomer)
            newcomer.stop()
            leaves.append(await_settled(lambda: [m.held for m in fleet], tasks, members) - began)
    finally:
        for member in fleet:
            member.stop()
    return joins, leaves
