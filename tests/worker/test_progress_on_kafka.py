"""What the member takes for read, asked of a real broker that is started anew."""

from __future__ import annotations

import queue
from itertools import count

import pytest
from support.brokers import PARTITIONS, new_topics
from support.waiting import until

from muster.broker.kafka import EmbeddedKafka
from muster.protocol.topics import TopicKind
from muster.worker.exchange import CaughtUp
from muster.worker.progress import LOST_MS, Progress

pytestmark = pytest.mark.broker


def test_a_new_leader_is_asked(own_broker: EmbeddedKafka) -> None:
    """A partition whose leader's epoch has changed says where it ends, as it did before.

    librdkafka's admin client would name the old epoch, and be refused, for a quarter of an hour.
    """
    topics = new_topics(own_broker.bootstrap_server)
    told: queue.SimpleQueue[CaughtUp] = queue.SimpleQueue()
    progress = Progress(topics.clients.librdkafka({}), told.put, lambda: None)
    progress.stand(topics.name(TopicKind.ASSIGNMENTS), 0, 0, PARTITIONS)
    clock = count(step=LOST_MS // 10)

    def caught_up() -> bool:
        progress.ask(next(clock))
        return not told.empty()

    for _ in range(2):
        until(caught_up, "the reader is known to stand at the end", timeout_s=60, pause_s=0.4)
        own_broker.stop()
        own_broker.start()
        while not told.empty():
            told.get()
    until(caught_up, "it is known again", timeout_s=60, pause_s=0.4)
    progress.close()
    topics.close()
