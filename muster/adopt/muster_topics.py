"""Reads and writes muster's topics for all groups that one process governs.

One reader follows the topics of assignments and groups, and posts each record to the governor of
its group. It reads `groups` from the beginning, because a governor needs its group's newest
snapshot, and `assignments` from the end. One producer writes events and posts their
acknowledgements.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from muster.adopt.model import Configured, News
from muster.kafka.acls import Role
from muster.kafka.client_settings import ClientSettings
from muster.kafka.lasting_producer import LastingProducer
from muster.kafka.log_filter import drop_noise
from muster.kafka.writer import Place
from muster.protocol.codec import decode_record, encode
from muster.protocol.errors import DecodeError, EncodeError, UnknownDictionary
from muster.protocol.events import GroupConfig
from muster.protocol.records import Dictionary, GroupSnapshot, MemberAssignment, MemberGone
from muster.protocol.split_records import Joiner
from muster.protocol.taskset import UnitRef
from muster.protocol.topics import TopicKind, topic_name
from muster.signing.followed_key_file import KeyFile, signed
from muster.worker.kafka_refusals import Refusals
from muster.worker.session_messages import Acknowledged, Failed, Send

log = logging.getLogger("muster.adopt.kafka")
drop_noise(log)

Post: TypeAlias = Callable[[News], None]

WAIT_S: Final = 0.25
CLOSE_S: Final = 5.0
PATIENCE_S: Final = 15.0
LAYOUT_S: Final = 10.0
"""How often the reader checks whether the topics have more partitions."""


class MusterTopics:
    """The topics under one prefix. `open` it once, `close` it once."""

    def __init__(self, clients: ClientSettings, prefix: str, keys: KeyFile | None) -> None:
        self._keys = keys
        self._refusals = Refusals(clients, prefix, Role.GOVERNOR)
        self._membership = topic_name(TopicKind.MEMBERSHIP, prefix)
        self._config = topic_name(TopicKind.CONFIG, prefix)
        self._kinds = {
            topic_name(TopicKind.ASSIGNMENTS, prefix): TopicKind.ASSIGNMENTS,
            topic_name(TopicKind.GROUPS, prefix): TopicKind.GROUPS,
        }
        self._posts: dict[str, Post] = {}
        self._names: defaultdict[str, dict[int, tuple[UnitRef, ...]]] = defaultdict(dict)
        self._closing = threading.Event()
        writing = clients.producer({"message.timeout.ms": 10_000})
        self._producer = LastingProducer(
            writing, log, lambda error: log.warning("kafka, starting over: %s", error)
        )
        self._reader_settings = clients.reader(
            f"{prefix}.governor",
            {
                "client.id": "muster-governor",
                "fetch.wait.max.ms": 100,
                "isolation.level": "read_committed",
            },
        )
        self._threads = [
            threading.Thread(target=self._read, name="muster-governor-reader", daemon=True),
            threading.Thread(
                target=self._producer.serve_until,
                args=(self._closing,),
                name="muster-governor-acks",
                daemon=True,
            ),
        ]

    def follow(self, group: str, post: Post) -> None:
        """Post a group's records to `post`, from any thread. Call it before `open`."""
        self._posts[group] = post

    def open(self) -> None:
        """Start to read."""
        for thread in self._threads:
            thread.start()

    def send(self, group: str, sends: Sequence[Send]) -> None:
        """Write events of a group's members; `Acknowledged` or `Failed` is posted later."""
        post = self._posts[group]
        for sent in sends:
            try:
                record = signed(self._keys, encode(sent.event), sent.event, self._membership)
                self._producer.produce(self._membership, record, self._answer(post, sent))
            except (EncodeError, KafkaException, BufferError) as error:
                log.error("%s: an event is not written: %s", group, error)
                post(Failed(sent))

    def configure(self, config: GroupConfig) -> None:
        """Write a group's configuration; `Configured` is posted later."""
        post = self._posts[config.group]

        def done(error: KafkaError | None, message: Message) -> None:
            place = Place(self._config, message.partition() or 0, message.offset() or 0)
            post(Configured(place) if error is None else Configured(None, error.str()))

        try:
            record = signed(self._keys, encode(config), config, self._config)
            self._producer.produce(self._config, record, done)
        except (EncodeError, KafkaException, BufferError) as error:
            post(Configured(None, str(error)))

    def _answer(
        self, post: Post, sent: Send
    ) -> Callable[[KafkaError | None, Message | None], None]:
        """What Kafka's answer to an event is given to."""

        def answered(error: KafkaError | None, _: Message | None) -> None:
            if error is not None:
                self._refusals.hear(error)
            post(Acknowledged(sent) if error is None else Failed(sent))

        return answered

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Write queued events, and stop, within this time; the threads end with the process."""
        until_s = time.monotonic() + wait_s
        self._producer.flush(wait_s)
        self._closing.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(until_s - time.monotonic(), 0))

    # ------------------------------------------------------------------------------------ threads

    def _read(self) -> None:
        consumer = Consumer(self._reader_settings, logger=log)
        joiners: defaultdict[tuple[str, int], Joiner] = defaultdict(Joiner)
        try:
            assigned: set[tuple[str, int]] = set()
            self._grow(consumer, assigned)
            quiet_s = 0.0
            while not self._closing.is_set():
                message = consumer.poll(WAIT_S)
                if message is not None and (error := message.error()) is not None:
                    self._refusals.hear(error)
                elif message is not None:
                    self._take(message, joiners)
                    continue
                quiet_s += WAIT_S
                if quiet_s >= LAYOUT_S:
                    quiet_s = 0.0
                    self._grow(consumer, assigned)
        finally:
            consumer.close()

    def _grow(self, consumer: Consumer, assigned: set[tuple[str, int]]) -> None:
        """Assign every partition to the reader; partitions added later from their beginning."""
        first = not assigned
        while not self._closing.is_set():
            try:
                for topic, kind in self._kinds.items():
                    from_end = first and kind is TopicKind.ASSIGNMENTS
                    start = OFFSET_END if from_end else OFFSET_BEGINNING
                    listed = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic]
                    for number in listed.partitions:
                        if (topic, number) not in assigned:
                            assigned.add((topic, number))
                            consumer.incremental_assign([TopicPartition(topic, number, start)])
            except KafkaException as error:
                log.warning("muster's topics cannot be read yet: %s", error)
                self._closing.wait(WAIT_S)
                continue
            return

    def _take(self, message: Message, joiners: dict[tuple[str, int], Joiner]) -> None:
        key, topic = message.key(), message.topic()
        if key is None or topic is None:
            return
        group = key.partition(b"|")[0].decode(errors="replace")
        if group not in self._posts:
            return
        place = (topic, message.partition() or 0)
        try:
            whole = joiners[place].feed(key, message.value())
            if whole is None:
                return
            record = decode_record(self._kinds[topic], *whole, dictionaries=self._names[group])
        except UnknownDictionary:
            return  # the coordinator writes it first; the member is sent its record again
        except DecodeError as error:
            log.error("a record at %s@%s cannot be read: %s", place, message.offset(), error)
            return
        if isinstance(record, Dictionary):
            self._names[group][record.version] = record.units
        elif isinstance(record, MemberAssignment | MemberGone | GroupSnapshot):
            self._posts[group](record)
