"""The broker is away for 20 seconds: no member loses a task."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.kafka.brokers import new_topics
from support.streams.job import Job
from support.worker.fleet import Fleet

from muster.broker.embedded_kafka import EmbeddedKafka

pytestmark = [pytest.mark.broker, pytest.mark.spark]

AWAY_S = 20


def test_broker_stopped_for_a_while(own_broker: EmbeddedKafka, tmp_path: Path) -> None:
    """During an outage no task moves; after it the same query goes on and the group can change.

    The session timeout is longer than the outage and the time that a busy machine needs to get over
    it, so the members keep working.
    """
    topics = new_topics(own_broker.bootstrap_server)
    with Job(topics, tmp_path) as job, Fleet(topics, tmp_path, "g") as fleet:
        job.start()
        fleet.configure(6, config={"session.timeout.ms": "120000", "heartbeat.interval.ms": "1000"})
        fleet.start("W1", "W2", "W3")
        before = fleet.settled()
        tenures = fleet.check()
        own_broker.stop()
        time.sleep(AWAY_S)  # the outage itself, not a wait for a condition
        own_broker.start()
        fleet.stop("W3")
        after = fleet.settled()
        assert job.poll() is None, job.tail()
        assert all(after[name] > before[name] for name in after)
        kept = [t for t in tenures if t.member != "W3"]
        assert [t for t in fleet.check() if t in kept] == kept, fleet.story()
    topics.close()
