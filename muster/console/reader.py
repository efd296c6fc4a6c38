"""A thread that reads `groups`, `rejected` and `config` of every prefix, and follows them.

A process has one such thread, however many pages are open. While Kafka does not answer, the thread
tries again, and the pages show the fault.
"""

from __future__ import annotations

import time

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)

from muster.console.store import Store
from muster.errors import Unreachable
from muster.kafka import access_check
from muster.kafka.client_settings import ClientSettings
from muster.kafka.cluster import TIMEOUT_S, admin, failures_named, partitions_of
from muster.kafka.passing_errors import passes
from muster.kafka.reader import arrived, consumer_of, row_of
from muster.protocol.topics import TopicKind, topic_name
from muster.streams.background_thread import Complaints, Loop

FOLLOWED = (TopicKind.GROUPS, TopicKind.REJECTED, TopicKind.CONFIG)
POLL_S = 0.2
AT_ONCE = 200
"""Most records taken before the thread checks the time and whether it is to end."""
AGAIN_S = 2.0
LOOK_EVERY_S = 30.0
"""How often the thread checks whether topics have more partitions or were created again.

While a fault stands, it checks every `AGAIN_S`: a quiet fleet writes no record that would end it.
"""


class Reader(Loop):
    """Reads the topics into the store while its ``with`` block runs."""

    def __init__(self, clients: ClientSettings, store: Store) -> None:
        super().__init__("muster-console-reader")
        self._clients = clients
        self._store = store
        self._known: dict[str, tuple[int, str]] = {}
        self._complaints = Complaints()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._follow()
            except Exception as error:
                # A console that is left open tries again after any error, and shows it.
                self._store.fault = self._clients.hidden(str(error)) or type(error).__name__
                self._complaints.hear("the console cannot read Kafka", self._store.fault)
                self._closing.wait(AGAIN_S)

    def _follow(self) -> None:
        before, self._known = self._known, self._look()
        made_anew = {name for name, (_, id_) in before.items() if self._known[name][1] != id_}
        if made_anew:
            self._store.clear()
        consumer = consumer_of(self._clients, self._store.prefixes[0], fetch_wait_ms=50)
        try:
            places = [
                TopicPartition(topic, p, OFFSET_BEGINNING)
                for topic, (count, _) in self._known.items()
                for p in range(count)
            ]
            consumer.assign(places)
            self._store.fault = ""
            self._poll(consumer, {(place.topic, place.partition) for place in places})
        finally:
            consumer.close()

    def _poll(self, consumer: Consumer, unread: set[tuple[str, int]]) -> None:
        """Read until the thread is to end, or the topics have changed.

        Raises:
            KafkaException: an error that does not pass by itself.
        """
        looked_at = time.monotonic()
        while not self._closing.is_set():
            for message in arrived(consumer, POLL_S, 1 + AT_ONCE):
                error = message.error()
                if error is None:
                    self._store.read(row_of(message))
                    self._store.fault = ""
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard((str(message.topic()), message.partition()))
                    self._store.caught_up = self._store.caught_up or not unread
                elif passes(error):
                    self._store.fault = f"Kafka at {self._clients.bootstrap} does not answer"
                else:
                    raise KafkaException(error)
            is_faulty = bool(self._store.fault)
            if time.monotonic() > looked_at + (AGAIN_S if is_faulty else LOOK_EVERY_S):
                if (is_faulty or not unread) and self._has_changed() and not unread:
                    return
                looked_at = time.monotonic()

    def _look(self) -> dict[str, tuple[int, str]]:
        """Number of partitions and id of every topic that is followed.

        Raises:
            Unreachable, Refused, NoTopics: as `partitions_of`.
        """
        names = [topic_name(kind, prefix) for prefix in self._store.prefixes for kind in FOLLOWED]
        counts = {name: partitions_of(self._clients, name) for name in names}
        client = admin(self._clients)  # its futures end with it
        with failures_named(self._clients):
            asked = client.describe_topics(TopicCollection(names), request_timeout=TIMEOUT_S)
            return {name: (counts[name], str(asked[name].result().topic_id)) for name in names}

    def _has_changed(self) -> bool:
        """Whether a topic has more partitions, or was deleted and created again.

        An answer ends the fault.
        """
        try:
            found = self._look()
        except Unreachable:
            self._store.fault = f"Kafka at {self._clients.bootstrap} does not answer"
            return False
        except (access_check.Refused, access_check.NoTopics) as error:
            self._store.fault = self._clients.hidden(str(error))
            return False
        self._store.fault = ""
        return found != self._known
