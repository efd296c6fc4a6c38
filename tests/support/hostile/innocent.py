"""An innocent group beside hostile ones: every `PACE_S` a member joins, is answered and leaves."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from support.kafka.brokers import Topics
from support.protocol.bombs import config
from support.streams.job import Job
from support.suite.waiting import until

from muster.protocol import codec
from muster.protocol.events import Event, Join, Leave
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keys import key_of
from muster.protocol.topics import TopicKind

INNOCENT = GroupId("innocent")
PACE_S = 0.1
"""Seconds between two joins of the innocent group."""
PATIENCE_S = 240.0


class Innocent:
    """A group of which a new member joins every `PACE_S`, is answered and leaves.

    The members join whether or not the ones before are answered, so that the answers of a slow
    moment count as often as those of a fast one.
    """

    def __init__(self, topics: Topics, job: Job) -> None:
        self._job = job
        self._topic = topics.name(TopicKind.MEMBERSHIP)
        self._producer = Producer(topics.clients.producer({"linger.ms": 0}))
        self._answers = answers(topics)
        self._turn = 0
        self._written_ms: dict[bytes, int] = {}
        """Record key of a member's assignment → broker timestamp of its join."""
        self._waiting: dict[bytes, Join] = {}
        self._took: list[float] = []
        topics.write(TopicKind.CONFIG, config(4, group=INNOCENT, initial_rebalance_delay_ms=0))

    def asks(self, more: Callable[[], bool]) -> list[float]:
        """Let members join while `more()`, and wait until all are answered.

        Returns:
            Seconds from each join to its answer, by the broker's timestamps.
        """
        self._took = []
        next_s = time.monotonic()
        while more():
            if time.monotonic() >= next_s:
                next_s += PACE_S
                self._join()
            self._look()
        story = self._job.tail
        until(self._is_done, "all members are answered", timeout_s=PATIENCE_S, story=story)
        return self._took

    def close(self) -> None:
        """Stop reading."""
        self._answers.close()

    def _is_done(self) -> bool:
        assert self._job.poll() is None, self._job.tail()
        self._look()
        return not self._waiting

    def _join(self) -> None:
        self._turn += 1
        member = MemberId(f"i{self._turn}")
        join = Join(group=INNOCENT, member=member, incarnation=self._turn)
        key = key_of(INNOCENT, member)
        self._waiting[key] = join
        self._write(join, key)

    def _look(self) -> None:
        """Take what has been answered; who is answered leaves."""
        self._producer.poll(0)
        for message in self._answers.consume(10_000, 0.01):
            key = message.key()
            if key not in self._waiting or key not in self._written_ms or not message.value():
                continue
            join = self._waiting.pop(key)
            spent_ms = message.timestamp()[1] - self._written_ms.pop(key)
            self._took.append(max(spent_ms, 0) / 1000)
            leave = Leave(group=INNOCENT, member=join.member, incarnation=join.incarnation)
            self._write(leave)

    def _write(self, event: Event, key: bytes | None = None) -> None:
        """Write an event; with a key, remember the broker's timestamp under it."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None
            if key is not None:
                self._written_ms[key] = message.timestamp()[1]

        encoded = codec.encode(event)
        self._producer.produce(self._topic, encoded.value, encoded.key, on_delivery=delivered)
        if key is not None:
            self._producer.flush(60)  # its answer must not be read before its timestamp is known


def answers(topics: Topics) -> Consumer:
    """A reader of the assignments; it decodes nothing, since attacks cause large records too."""
    settings = {"group.id": "rate", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    consumer = Consumer(topics.clients.librdkafka(settings))
    name = topics.name(TopicKind.ASSIGNMENTS)
    found = consumer.list_topics(name, timeout=30).topics[name].partitions
    consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for number in found])
    return consumer


def share(took: list[float], part: float) -> float:
    """A quantile."""
    return sorted(took)[min(int(part * len(took)), len(took) - 1)]


def for_seconds(length_s: float) -> Callable[[], bool]:
    """A question that is answered with yes for so long."""
    end_s = time.monotonic() + length_s
    return lambda: time.monotonic() < end_s
