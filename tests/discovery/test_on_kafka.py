"""Discovery and a real Kafka: what it writes to the config topic, and when."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from support.kafka.brokers import Topics
from support.suite.waiting import until

from muster.protocol.events import GroupConfig, TopicsFound
from muster.protocol.ids import GroupId
from muster.protocol.keys import key_of, parse_key, partition_of
from muster.protocol.settings import Settings
from muster.protocol.sources import Source
from muster.protocol.topics import TopicKind
from muster.streams.discovery_thread import Discovery, Pace

pytestmark = pytest.mark.broker
PACE = Pace(interval_ms=200, measure_ms=400, grace_ms=1_500)


class Cluster:
    """Topics with names of their own, and what discovery has written about groups."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.admin = AdminClient({"bootstrap.servers": topics.address})
        self.suffix = uuid.uuid4().hex[:8]

    def name(self, name: str) -> str:
        """The full name of a topic."""
        return f"{name}-{self.suffix}"

    def create(self, name: str, partitions: int) -> None:
        """Create a topic."""
        self.admin.create_topics([NewTopic(self.name(name), partitions)])[self.name(name)].result()

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions to a topic."""
        new = NewPartitions(self.name(name), partitions)
        self.admin.create_partitions([new])[self.name(name)].result()

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        full = self.name(name)
        self.admin.delete_topics([full])[full].result()
        until(lambda: full not in self.admin.list_topics(timeout=10).topics, "the topic is gone")

    def declare(self, group: str, *sources: Source) -> None:
        """Write a group's config."""
        event = GroupConfig(
            group=GroupId(group), assignor="sticky", settings=Settings(), tasks=(), sources=sources
        )
        self.topics.write(TopicKind.CONFIG, event)

    def written(self, group: str) -> list[TopicsFound]:
        """What was written about a group, oldest first."""
        from muster.kafka.reader import read
        from muster.protocol import codec
        from muster.protocol.events import Origin

        topic = self.topics.name(TopicKind.CONFIG)
        events = []
        for row in read(self.topics.clients, topic, key=key_of(group)):
            if parse_key(row.key).part:
                origin = Origin(topic, row.partition, row.offset, row.at_ms)
                event = codec.decode(TopicKind.CONFIG, row.key, row.value, origin)
                assert isinstance(event, TopicsFound)
                events.append(event)
        return sorted(events, key=lambda event: event.origin.at_ms)

    def sizes(self, group: str) -> dict[str, int]:
        """Unit → partitions, of the newest record."""
        written = self.written(group)
        units = [unit for each in (written[-1].found if written else ()) for unit in each.units]
        return {unit.name.removesuffix(f"-{self.suffix}"): unit.partitions for unit in units}


@pytest.fixture
def cluster(topics: Topics) -> Iterator[Cluster]:
    """A Kafka with a discovery that looks every 200 ms."""
    with Discovery(topics.clients, [topics.prefix], PACE):
        yield Cluster(topics)


def test_a_topic_that_is_made_later_and_grows(cluster: Cluster) -> None:
    """Nothing is found at first; then its partitions, written beside the group's config."""
    orders = Source(topics=(cluster.name("orders"),))
    cluster.declare("g", orders)
    until(lambda: cluster.written("g"), "the first record")
    assert cluster.sizes("g") == {}
    cluster.create("orders", 2)
    until(lambda: cluster.sizes("g") == {"orders": 2}, "two partitions")
    cluster.grow("orders", 4)
    until(lambda: cluster.sizes("g") == {"orders": 4}, "four partitions")
    [place] = {event.origin.partition for event in cluster.written("g")}
    assert place == partition_of(key_of("g"), 2)
    ids = [dict(event.found[0].ids) for event in cluster.written("g")[-2:]]
    assert ids[0] == ids[1]


def test_a_pattern_and_its_grace(cluster: Cluster) -> None:
    """A topic that is deleted keeps its tasks for the grace time; a new one is found at once."""
    cluster.create("shop.a", 1)
    cluster.create("shop.b", 2)
    cluster.declare("g", Source(pattern=rf"shop[.].*-{cluster.suffix}"))
    until(lambda: cluster.sizes("g") == {"shop.a": 1, "shop.b": 2}, "both topics")
    cluster.delete("shop.b")
    cluster.create("shop.c", 3)
    until(lambda: "shop.c" in cluster.sizes("g"), "the new topic")
    assert cluster.sizes("g") == {"shop.a": 1, "shop.b": 2, "shop.c": 3}
    until(lambda: cluster.sizes("g") == {"shop.a": 1, "shop.c": 3}, "the end of the grace time")


def test_a_pattern_that_would_match_for_ever(cluster: Cluster) -> None:
    """The group of the pattern gets no tasks; the topics of another group are found as before."""
    cluster.create("orders-payments-settlement-archive-of-all-regions-2026-eu", 1)
    cluster.create("shop", 2)
    cluster.declare("hostile", Source(pattern="([a-z0-9]+-?)+[.]events"))
    until(lambda: cluster.written("hostile"), "the group has an answer")
    cluster.declare("g", Source(pattern=f"shop-{cluster.suffix}"))
    until(lambda: cluster.sizes("g") == {"shop": 2}, "the other group has its tasks")
    cluster.grow("shop", 3)
    until(lambda: cluster.sizes("g") == {"shop": 3}, "and more of them")
    assert cluster.sizes("hostile") == {}


def test_a_topic_that_is_made_again(cluster: Cluster) -> None:
    """Its id shows that it is another topic: gone in one record, found in the next."""
    cluster.create("orders", 3)
    cluster.declare("g", Source(topics=(cluster.name("orders"),)))
    until(lambda: cluster.sizes("g") == {"orders": 3}, "the topic")
    before = dict(cluster.written("g")[-1].found[0].ids)
    cluster.delete("orders")
    cluster.create("orders", 3)
    until(lambda: dict(cluster.written("g")[-1].found[0].ids) not in ({}, before), "the new id")
    written = [len(event.found[0].units) for event in cluster.written("g")]
    assert written[-2:] == [0, 1]


def test_several_discoveries_agree(cluster: Cluster) -> None:
    """A second one has nothing to write; a config that is set again is answered."""
    cluster.create("orders", 2)
    orders = Source(topics=(cluster.name("orders"),))
    cluster.declare("g", orders)
    until(lambda: cluster.sizes("g") == {"orders": 2}, "the topic")
    with Discovery(cluster.topics.clients, [cluster.topics.prefix], PACE) as second:
        count = len(cluster.written("g"))
        cluster.create("other", 1)
        cluster.declare("h", Source(topics=(cluster.name("other"),)))
        until(lambda: cluster.sizes("h") == {"other": 1}, "another group's topic")
        assert len(cluster.written("g")) == count
        cluster.declare("g")
        until(lambda: cluster.written("g")[-1].found == (), "a group without sources")
        cluster.declare("g", orders)
        until(lambda: cluster.sizes("g") == {"orders": 2}, "the topic again")
        assert second.alive


def test_weights_by_records_and_by_lag(cluster: Cluster) -> None:
    """A partition that is written more weighs more; by lag, one that the group has not read."""
    cluster.create("orders", 3)
    name = cluster.name("orders")
    producer = Producer({"bootstrap.servers": cluster.topics.address})
    for number in range(300):
        producer.produce(name, b"x", partition=0 if number % 3 else 1)
    producer.flush(30)
    group = f"lagging-{cluster.suffix}"
    consumer = Consumer({"bootstrap.servers": cluster.topics.address, "group.id": group})
    read = [TopicPartition(name, 0, 200), TopicPartition(name, 1, 40), TopicPartition(name, 2, 0)]
    consumer.commit(offsets=read, asynchronous=False)
    consumer.close()

    def weights(group: str) -> tuple[float, ...] | None:
        written = cluster.written(group)
        units = [unit for each in (written[-1].found if written else ()) for unit in each.units]
        return units[0].weights if units else None

    cluster.declare("by-records", Source(topics=(name,), measure="records"))
    cluster.declare("by-bytes", Source(topics=(name,), measure="bytes"))
    cluster.declare(group, Source(topics=(name,), measure="lag"))
    until(lambda: weights("by-records") == (2.0, 1.0, 0.05), "weights by records")
    until(lambda: (weights("by-bytes") or (0,))[0] > 1.5, "weights by bytes")
    until(lambda: weights(group) == (0.05, 3.0, 0.05), "weights by lag")
    count = len(cluster.written("by-records"))
    until(lambda: cluster.sizes("by-records") == {"orders": 3}, "another look")
    assert len(cluster.written("by-records")) == count
