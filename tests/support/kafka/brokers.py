"""A Kafka for tests, and separate topics for each test.

`bootstrap` is one for the whole session. Where it comes from says ``MUSTER_TEST_BROKER``:

=============  ====================================================================
(not set)      ``MUSTER_TEST_BOOTSTRAP`` if set, else a container if an engine answers,
               else an embedded broker
``container``  a container; without an engine the tests fail
``embedded``   an embedded broker
=============  ====================================================================

`kafka` gives each module topics with a prefix of their own, so tests that share a broker do not see
each other. `own_broker` is for tests that stop theirs; it is always an embedded one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from support.suite.waiting import until

from muster.broker.embedded_kafka import EmbeddedKafka
from muster.kafka.client_settings import ClientSettings, client_settings
from muster.protocol import codec
from muster.protocol.events import Event
from muster.protocol.ids import GroupId
from muster.protocol.keys import parse_key
from muster.protocol.records import Record
from muster.protocol.topics import TOPICS, TopicKind, topic_name
from muster.testing.kafka_for_tests import IMAGE, choice, kafka_container

PARTITIONS = 2
ENGINE_TIMEOUT_S = 10
PULL_TIMEOUT_S = 300


@cache
def is_at_hand() -> bool:
    """Whether an engine answers and has or gets the image. Returns at once without an engine."""
    if shutil.which("docker") is None or not _docker("version", timeout_s=ENGINE_TIMEOUT_S):
        return False
    return _docker("image", "inspect", IMAGE, timeout_s=ENGINE_TIMEOUT_S) or _docker(
        "pull", "--quiet", IMAGE, timeout_s=PULL_TIMEOUT_S
    )


def _docker(*arguments: str, timeout_s: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            ["docker", *arguments], capture_output=True, check=False, timeout=timeout_s
        )
        return done.returncode == 0
    return False


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """Address of the Kafka that the whole test session shares."""
    chosen = choice(os.environ, is_at_hand)
    if chosen == "container":
        with kafka_container() as address:
            yield address
    elif chosen == "embedded":
        with EmbeddedKafka() as broker:
            yield broker.bootstrap_server
    else:
        yield chosen


@pytest.fixture
def own_broker() -> Iterator[EmbeddedKafka]:
    """A broker that a test may stop, freeze and kill; it keeps its port and data."""
    with EmbeddedKafka() as broker:
        yield broker


def create_topics(
    address: str,
    prefix: str,
    partitions: int = PARTITIONS,
    kinds: Collection[TopicKind] = tuple(TopicKind),
) -> None:
    """Create all of muster's topics, or those of these kinds, on a single-node cluster."""
    new = [
        NewTopic(
            topic.name(prefix),
            num_partitions=topic.partitions or partitions,
            replication_factor=1,
            config=dict(topic.settings),
        )
        for topic in TOPICS
        if topic.kind in kinds
    ]
    admin = AdminClient({"bootstrap.servers": address})  # its futures end with it
    for future in admin.create_topics(new).values():
        future.result(30)


@dataclass(frozen=True)
class Written:
    """One record in Kafka.

    Attributes:
        record: what it says.
        at_ms: its timestamp.
        partition, offset: where it is.
        key, value: its bytes.
        headers: its headers.
    """

    record: Record
    at_ms: int
    partition: int
    offset: int
    key: bytes
    value: bytes | None
    headers: Mapping[str, bytes]


class Topics:
    """muster's topics under a prefix: write events, read records.

    Attributes:
        address: of the broker.
        prefix: of the topics.
        clients: settings for anything that talks to this broker.
        only: read only the records of this group; None = all.
    """

    def __init__(self, address: str, prefix: str, only: GroupId | None = None) -> None:
        self.address = address
        self.prefix = prefix
        self.only = only
        self.clients: ClientSettings = client_settings(address)
        self._producer = Producer(self.clients.producer())
        self._readers: dict[TopicKind, Consumer] = {}
        self._read: dict[TopicKind, list[Written]] = {}

    def name(self, kind: TopicKind) -> str:
        """Full name of a topic."""
        return topic_name(kind, self.prefix)

    def write(self, kind: TopicKind, *events: Event) -> None:
        """Append events; returns when Kafka has acknowledged them."""
        for event in events:
            encoded = codec.encode(event)
            self.write_raw(kind, encoded.key, encoded.value)

    def write_raw(self, kind: TopicKind, key: bytes | None, value: bytes | None) -> None:
        """Append any bytes; returns when Kafka has acknowledged them."""
        failures: list[object] = []
        self._producer.produce(
            self.name(kind),
            key=key,
            value=value,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        assert (self._producer.flush(60), failures) == (0, [])

    def read(self, kind: TopicKind) -> list[Written]:
        """Everything that was ever written to a topic, oldest first within a partition."""
        seen = self._read.setdefault(kind, [])
        if kind not in self._readers:
            settings = {"group.id": uuid.uuid4().hex, "enable.auto.commit": False}
            consumer = Consumer(self.clients.librdkafka({**settings, "fetch.wait.max.ms": 20}))
            partitions = consumer.list_topics(self.name(kind), timeout=30)
            consumer.assign(
                [
                    TopicPartition(self.name(kind), p, 0)
                    for p in partitions.topics[self.name(kind)].partitions
                ]
            )
            self._readers[kind] = consumer
        for message in self._readers[kind].consume(10_000, 0.05):
            if message.error() is None:
                key, value = message.key(), message.value()
                if self.only is not None and parse_key(key).group != self.only:
                    continue
                seen.append(
                    Written(
                        codec.decode_record(kind, key, value),
                        message.timestamp()[1],
                        message.partition(),
                        message.offset(),
                        key,
                        value,
                        dict(message.headers() or ()),
                    )
                )
        return seen

    def records(self, kind: TopicKind) -> list[Record]:
        """The records of `read`."""
        return [written.record for written in self.read(kind)]

    def end(self, kind: TopicKind) -> int:
        """Number of records written to a topic."""
        with ExitStack() as stack:
            consumer = Consumer(self.clients.librdkafka({"group.id": uuid.uuid4().hex}))
            stack.callback(consumer.close)
            topic = self.name(kind)
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            ends = [
                consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1]
                for p in partitions
            ]
        return sum(ends)

    def forget(self) -> None:
        """Read from the beginning again, after topics got more partitions."""
        for consumer in self._readers.values():
            consumer.close()
        self._readers.clear()
        self._read.clear()

    def close(self) -> None:
        """Close every client."""
        self._producer.flush(5)
        for consumer in self._readers.values():
            consumer.close()
        self._readers.clear()


def new_topics(address: str, partitions: int = PARTITIONS) -> Topics:
    """Topics under a new prefix."""
    prefix = f"t{uuid.uuid4().hex[:8]}"
    create_topics(address, prefix, partitions)
    until(lambda: _lead(address, prefix, partitions), "every partition has a leader that knows it")
    return Topics(address, prefix)


def _lead(address: str, prefix: str, partitions: int) -> bool:
    """Whether every partition has an end offset; new topics are listed before they have one."""
    wanted = {
        TopicPartition(topic.name(prefix), partition): OffsetSpec.latest()
        for topic in TOPICS
        for partition in range(topic.partitions or partitions)
    }
    admin = AdminClient({"bootstrap.servers": address})
    return all(answer.exception() is None for answer in admin.list_offsets(wanted).values())


@pytest.fixture(scope="module")
def kafka(bootstrap: str) -> Iterator[Topics]:
    """Topics for one module, on the shared broker."""
    topics = new_topics(bootstrap)
    yield topics
    topics.close()


@pytest.fixture
def topics(bootstrap: str) -> Iterator[Topics]:
    """Topics for one test, on the shared broker."""
    topics = new_topics(bootstrap)
    yield topics
    topics.close()
