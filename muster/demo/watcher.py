"""Follows a group's topics in a thread and folds them into its `Story`."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition

from muster.demo.story import News, Story
from muster.kafka.client_settings import ClientSettings
from muster.kafka.cluster import QUIET
from muster.kafka.reader import row_of
from muster.protocol.events import Origin
from muster.protocol.topics import TopicKind, kind_of, topic_name
from muster.streams.background_thread import Loop

KINDS = (TopicKind.MEMBERSHIP, TopicKind.CONFIG, TopicKind.GROUPS)
POLL_S = 0.05
TIMEOUT_S = 30


class Watcher(Loop):
    """A reader of three topics, from their beginning; a context manager.

    Attributes:
        story: the group's history so far; hold `lock` to read more than one of its fields.
        lock: held while a row is read.
    """

    def __init__(
        self, clients: ClientSettings, story: Story, on_news: Callable[[News], None]
    ) -> None:
        super().__init__("muster-watcher")
        self.story = story
        self.lock = threading.RLock()
        self._clients = clients
        self._on_news = on_news

    def _run(self) -> None:
        more = {"fetch.wait.max.ms": 20, **QUIET}
        consumer = Consumer(self._clients.reader(f"muster.demo-{uuid.uuid4().hex}", more))
        try:
            topics = consumer.list_topics(timeout=TIMEOUT_S).topics
            names = [topic_name(kind, self.story.prefix) for kind in KINDS]
            consumer.assign([TopicPartition(n, p, 0) for n in names for p in topics[n].partitions])
            while not self._closing.is_set():
                message = consumer.poll(POLL_S)
                if message is None or message.error() is not None:
                    continue
                row = row_of(message)
                kind = kind_of(row.topic, self.story.prefix)
                assert kind is not None
                origin = Origin(row.topic, row.partition, row.offset, row.at_ms)
                with self.lock:
                    for each in self.story.read(kind, row.key, row.value, origin):
                        self._on_news(each)
        finally:
            consumer.close()
