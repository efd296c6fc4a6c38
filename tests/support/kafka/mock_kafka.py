"""librdkafka's mock cluster: the real protocol over TCP, in this process, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from muster.protocol.topics import TOPICS

QUICK = {
    # The mock answers a fetch without records only at the end of its wait.
    "fetch.wait.max.ms": "10",
}
"""Client settings for members on the mock cluster."""


@contextmanager
def mock_kafka(prefix: str = "muster") -> Iterator[str]:
    """A cluster with muster's topics (4 partitions each); yields its bootstrap servers."""
    cluster = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 2})
    brokers = cluster.list_topics(timeout=10).brokers.values()
    for topic in TOPICS:
        cluster.list_topics(topic.name(prefix), timeout=10)
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    cluster.flush(0)
