"""Ordinary consumers of librdkafka in a group of Kafka's, polled by one thread."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import Self

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic


class Consumers:
    """A group and its topics, both with names of their own; all end with the block.

    Args:
        address: of the broker.
        topics: name → number of partitions.

    Attributes:
        group: the group's name.
    """

    def __init__(self, address: str, topics: Mapping[str, int]) -> None:
        self._suffix = uuid.uuid4().hex[:8]
        self.group = f"group-{self._suffix}"
        self.address = address
        self._sizes = topics
        self._running: list[Consumer] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def topic(self, name: str) -> str:
        """The full name of a topic."""
        return f"{name}-{self._suffix}"

    def start(self, settings: Mapping[str, object]) -> Consumer:
        """Start one more consumer of all topics."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                **settings,
            }
        )
        consumer.subscribe([self.topic(name) for name in self._sizes])
        with self._lock:
            self._running.append(consumer)
        return consumer

    def stop(self, consumer: Consumer) -> None:
        """Let one consumer leave."""
        with self._lock:
            self._running.remove(consumer)
        consumer.close()

    def shared_by(self, count: int) -> bool:
        """Whether so many consumers have all partitions, each at least one and none twice."""
        with self._lock:
            held = [consumer.assignment() for consumer in self._running]
        places = [(part.topic, part.partition) for parts in held for part in parts]
        return (
            len(held) == count
            and all(held)
            and len(places) == len(set(places)) == sum(self._sizes.values())
        )

    def _poll(self) -> None:
        while not self._closing.wait(0.02):
            with self._lock:
                for consumer in self._running:
                    consumer.poll(0)

    def __enter__(self) -> Self:
        admin = AdminClient({"bootstrap.servers": self.address})
        new = [NewTopic(self.topic(name), size) for name, size in self._sizes.items()]
        for future in admin.create_topics(new).values():
            future.result(30)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        for consumer in self._running:
            consumer.close()
