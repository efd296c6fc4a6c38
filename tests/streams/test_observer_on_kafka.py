"""The observer with a real broker: one that restarts, and one with records from before."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from structlog.testing import capture_logs
from support.kafka.brokers import PARTITIONS, Topics, new_topics
from support.state.snapshots import orders
from support.suite.waiting import until

from muster.broker.embedded_kafka import EmbeddedKafka
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupState, Quarantine
from muster.protocol.topics import TOPICS, TopicKind
from muster.streams.observability.group_stats import GroupStats
from muster.streams.observability.health import Health
from muster.streams.observability.late_records import LateRecords
from muster.streams.observability.metrics import Metrics
from muster.streams.observability.observer import Observer

pytestmark = pytest.mark.broker
STALL_S = 5.0
ROWS = 50


def observer_of(topics: Topics, health: Health, partitions: int) -> Observer:
    """The observer of a query that hangs at offset 0."""
    metrics = Metrics()
    return Observer(
        topics.clients,
        {topic.name(topics.prefix): topic.partitions or partitions for topic in TOPICS},
        [topics.prefix],
        metrics=metrics,
        fold=GroupStats(metrics, {topics.prefix: 0}, 10),
        health=health,
        read=dict,
        late=LateRecords({}, lambda *_: None),
    )


def test_a_query_that_hangs_after_a_restart_of_the_broker(own_broker: EmbeddedKafka) -> None:
    """The rows that wait are seen, and /healthz fails once the stall time is over.

    librdkafka's admin client would send the old leader epoch, and be refused, for 15 minutes.
    """
    topics = new_topics(own_broker.bootstrap_server, 1)
    health = Health(STALL_S, lambda: True)
    with observer_of(topics, health, 1) as observer:
        own_broker.stop()
        own_broker.start()
        health.running(time.monotonic())
        for number in range(ROWS):
            topics.write_raw(TopicKind.MEMBERSHIP, b"g", str(number).encode())
        until(
            lambda: observer.rows_behind == ROWS,
            "the observer sees the rows",
            story=lambda: observer.rows_behind,
        )
        until(
            lambda: not health.well(time.monotonic()).fine,
            "the query counts as stalled",
            story=lambda: health.well(time.monotonic()),
        )
    topics.close()


def test_quarantined_groups_are_told_at_the_start(topics: Topics) -> None:
    """The newest records of the groups say which are; other old records are not told again."""
    aside = replace(orders(), quarantine=Quarantine(5, "its process was ended by SIGABRT"))
    dead = replace(orders(), group=GroupId("dead"), state=GroupState.DEAD)
    free = replace(aside, group=GroupId("free"))
    topics.write(TopicKind.GROUPS, dead, aside, aside, free, replace(free, quarantine=None))
    with (
        capture_logs() as said,
        observer_of(topics, Health(STALL_S, lambda: True), PARTITIONS),
    ):

        def count(event: str) -> int:
            return sum(each["event"] == event for each in said)

        until(lambda: count("group quarantined"), "the group is told", story=lambda: said)
        topics.write(TopicKind.GROUPS, dead)
        until(lambda: count("group deleted"), "a new record is told", story=lambda: said)
    assert (count("group quarantined"), count("group deleted")) == (1, 1)
