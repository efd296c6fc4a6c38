"""Progress with a real broker that restarts."""

from __future__ import annotations

import queue
from itertools import count

import pytest
from support.kafka.brokers import PARTITIONS, new_topics
from support.suite.waiting import until

from muster.broker.embedded_kafka import EmbeddedKafka
from muster.protocol.topics import TopicKind
from muster.worker.reader_progress import LOST_MS, Progress
from muster.worker.session_messages import CaughtUp

pytestmark = pytest.mark.broker


def test_a_new_leader_is_asked(own_broker: EmbeddedKafka) -> None:
    """The end offset is answered again after the leader's epoch has changed.

    librdkafka's admin client would send the old epoch, and be refused, for 15 minutes.
    """
    topics = new_topics(own_broker.bootstrap_server)
    inputs: queue.SimpleQueue[CaughtUp] = queue.SimpleQueue()
    progress = Progress(topics.clients.librdkafka({}), inputs.put, lambda: None)
    progress.stand(topics.name(TopicKind.ASSIGNMENTS), 0, 0, PARTITIONS)
    clock = count(step=LOST_MS // 10)

    def caught_up() -> bool:
        progress.ask(next(clock))
        return not inputs.empty()

    for _ in range(2):
        until(caught_up, "the reader has caught up", pause_s=0.4)
        own_broker.stop()
        own_broker.start()
        while not inputs.empty():
            inputs.get()
    until(caught_up, "it has caught up again", pause_s=0.4)
    progress.close()
    topics.close()
