"""Kafka's own group protocols under the same load: members that come and go, each with its tasks.

Each member is a confluent-kafka consumer in its own thread, with default timings; the tasks are the
partitions of a topic. "Settled" means the same for every system: every task has exactly one owner,
every member its fair share, and no member has to give up a task.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from ownership import Ownership, place_of

POLL_S = 0.01
PROTOCOLS: dict[str, dict[str, str]] = {
    "consumer (KIP-848)": {"group.protocol": "consumer"},
    "cooperative-sticky": {
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
    },
}


class KafkaMember:
    """A consumer and its thread."""

    def __init__(
        self, name: str, topic: str, config: dict[str, str | bool], owned: Ownership
    ) -> None:
        self.name = name
        self._owned = owned
        self._stop = threading.Event()
        self._consumer = Consumer(config)
        self._topic = topic
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Join."""
        self._owned.come(self.name)
        self._thread.start()

    def leave(self) -> None:
        """Begin to leave."""
        self._stop.set()

    def join(self) -> None:
        """Wait until the consumer is closed."""
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
        self._owned.go(self.name)

    def _add(self, partitions: Sequence[TopicPartition]) -> None:
        self._owned.start(self.name, [p.partition for p in partitions])

    def _remove(self, partitions: Sequence[TopicPartition]) -> None:
        self._owned.stop(self.name, [p.partition for p in partitions])


class Consumers:
    """A fleet of consumers of one topic, which is created, and one group; a context manager."""

    def __init__(
        self, address: str, protocol: dict[str, str], tasks: int, *, static: bool = False
    ) -> None:
        self.owned = Ownership(tasks)
        self._topic = f"tasks-{uuid.uuid4().hex[:8]}"
        self._static = static
        self._config: dict[str, str | bool] = {
            "bootstrap.servers": address,
            "group.id": uuid.uuid4().hex[:8],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **protocol,
        }
        admin = AdminClient({"bootstrap.servers": address})
        for future in admin.create_topics([NewTopic(self._topic, tasks, 1)]).values():
            future.result(60)
        self._members: dict[str, KafkaMember] = {}
        self._leaving: list[KafkaMember] = []

    def __enter__(self) -> Consumers:
        return self

    def __exit__(self, *_: object) -> None:
        self.go(list(self._members))
        self.await_gone()

    def come(self, names: Sequence[str]) -> None:
        """Start members."""
        for name in names:
            config = dict(self._config)
            if self._static:
                config["group.instance.id"] = place_of(name)
            self._members[name] = KafkaMember(name, self._topic, config, self.owned)
            self._members[name].start()

    def go(self, names: Sequence[str]) -> None:
        """Stop members; returns at once."""
        for name in names:
            member = self._members.pop(name)
            member.leave()
            self._leaving.append(member)

    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def settle(self) -> None:
        """Wait until settled (`Ownership.await_shared_out`)."""
        self.owned.await_shared_out(len(self._members))

    def await_gone(self) -> None:
        """Wait until all members that were stopped have ended."""
        for member in self._leaving:
            member.join()
        self._leaving.clear()
