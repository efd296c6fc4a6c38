"""The observer with a real broker that restarts."""

from __future__ import annotations

import time

import pytest
from support.kafka.brokers import new_topics
from support.suite.waiting import until

from muster.broker.embedded_kafka import EmbeddedKafka
from muster.protocol.topics import TOPICS, TopicKind
from muster.streams.observability.group_stats import GroupStats
from muster.streams.observability.health import Health
from muster.streams.observability.metrics import Metrics
from muster.streams.observability.observer import Observer

pytestmark = pytest.mark.broker
STALL_S = 5.0
ROWS = 50


def test_a_query_that_hangs_after_a_restart_of_the_broker(own_broker: EmbeddedKafka) -> None:
    """The rows that wait are seen, and /healthz fails once the stall time is over.

    librdkafka's admin client would send the old leader epoch, and be refused, for 15 minutes.
    """
    topics = new_topics(own_broker.bootstrap_server, 1)
    metrics, health = Metrics(), Health(STALL_S, lambda: True)
    observer = Observer(
        topics.clients,
        {topic.name(topics.prefix): 1 for topic in TOPICS},
        [topics.prefix],
        metrics=metrics,
        fold=GroupStats(metrics, {topics.prefix: 0}, 10),
        health=health,
        read=dict,  # it hangs at offset 0
        on_late=lambda *_: None,
    )
    with observer:
        own_broker.stop()
        own_broker.start()
        health.running(time.monotonic())
        for number in range(ROWS):
            topics.write_raw(TopicKind.MEMBERSHIP, b"g", str(number).encode())
        until(
            lambda: observer.rows_behind == ROWS,
            "the observer sees the rows",
            timeout_s=60,
            story=lambda: observer.rows_behind,
        )
        until(
            lambda: not health.well(time.monotonic()).fine,
            "the query counts as stalled",
            timeout_s=60,
            story=lambda: health.well(time.monotonic()),
        )
    topics.close()
