"""Reads the heartbeats of members that heartbeat apart, for a clock (`heartbeat_covers`)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Container, Sequence
from contextlib import suppress

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

from muster.kafka import access_check
from muster.kafka.client_settings import ClientSettings
from muster.kafka.lasting_producer import LastingProducer
from muster.logs import KAFKA
from muster.protocol import codec
from muster.protocol.events import Tick
from muster.protocol.topics import TopicKind, topic_name
from muster.streams import canary
from muster.streams.background_thread import Complaints
from muster.streams.heartbeat_covers import Heartbeats, Row, Sleeper

_log = structlog.get_logger("muster.streams")

LOOK_S = 5.0
"""How often the topics are looked at: they may be created later, get more partitions, or come back
after a refusal."""
ROWS_MAX = 20_000
MARK_S = 0.5
"""A marker that has not been read for so long is written again."""
_MARKER = codec.encode(Tick(group=canary.GROUP))
_SETTINGS: dict[str, str | int | bool] = {
    "auto.offset.reset": "earliest",
    # A writer that leaves a transaction open must not keep the heartbeats behind it from the clock.
    "isolation.level": "read_uncommitted",
    # Records that wait to be read take the coordinator's memory; heartbeats are small.
    "queued.max.messages.kbytes": 16 << 10,
    # Heartbeats come one by one: let the broker collect them instead of answering for each.
    "fetch.min.bytes": 64 << 10,
    "fetch.wait.max.ms": 250,
}


class Listener:
    """One consumer of the heartbeats topics; the clock's thread calls it.

    `heartbeats` takes in what is read, `producer` writes the markers.

    Attributes:
        newest_ms: the latest broker time that the last `read` has read; 0 = it read nothing.
    """

    def __init__(
        self,
        clients: ClientSettings,
        prefixes: Sequence[str],
        heartbeats: Heartbeats,
        producer: LastingProducer,
    ) -> None:
        self._topics = {topic_name(TopicKind.HEARTBEATS, prefix): prefix for prefix in prefixes}
        self._heartbeats = heartbeats
        self._producer = producer
        self.newest_ms = 0
        self._counts: dict[str, int] = {}
        self._next: dict[tuple[str, int], int] = {}
        self._marked: dict[tuple[str, int], float] = {}
        self._unread: set[tuple[str, int]] = set()
        self._oldest: dict[tuple[str, int], int] = {}
        """The first offset that Kafka still has, asked once for each `read` that needs it."""
        self._looked_s = float("-inf")
        self._logged: set[str] = set()
        self._useless: set[str] = set()
        """Topics that are never read again."""
        self._refused: set[str] = set()
        """Topics that Kafka has refused, and of which nothing was read since."""
        self._complaints = Complaints()
        reader = clients.reader(f"{next(iter(prefixes), 'muster')}.clock", _SETTINGS)
        self._consumer = Consumer(reader, logger=KAFKA) if prefixes else None

    def read(self, known: Container[Sleeper]) -> None:
        """Take in what has arrived, without waiting; `known` groups have a wake-up."""
        self.newest_ms = 0
        if self._consumer is None:
            return
        self._look(self._consumer)
        if not self._counts:
            return
        self._mark_unread()
        try:
            messages = self._consumer.consume(ROWS_MAX, 0)
        except KafkaException:
            return
        rows: dict[str, list[Row]] = defaultdict(list)
        self._oldest.clear()
        for message in messages:
            row = self._row(message)
            if row is not None:
                rows[str(message.topic())].append(row)
        for topic, some in rows.items():
            if topic in self._counts:
                # Else: what came before the refusal must not begin the covers that come after it.
                self._heartbeats.read(self._topics[topic], some, known)

    def _row(self, message: Message) -> Row | None:
        topic, partition, offset = str(message.topic()), message.partition(), message.offset()
        error = message.error()
        if error is not None:
            if access_check.is_refusal(error) and topic in self._counts:
                self._refused.add(topic)
                self._stop(topic, str(error.str()), f"it is tried again every {LOOK_S:.0f} s")
            return None
        kind, at_ms = message.timestamp()
        if kind != TIMESTAMP_LOG_APPEND_TIME and topic in self._counts:
            self._useless.add(topic)
            why = "its records do not carry the broker's time (LogAppendTime)"
            self._stop(topic, why, "correct the topic, then start this process again")
        if partition is None or offset is None or topic not in self._counts:
            return None
        if topic in self._refused:
            self._refused.discard(topic)
            self._heartbeats.listen(self._topics[topic], self._counts[topic])
            _log.info("heartbeats are read again", topic=topic)
        place = (topic, partition)
        if offset > self._next.get(place, offset) and self._has_lost(place):
            self._heartbeats.skip(self._topics[topic], partition)
        self._next[place] = offset + 1
        self._marked.pop(place, None)
        self.newest_ms = max(self.newest_ms, at_ms)
        return Row(partition, message.key(), message.value(), at_ms)

    def _has_lost(self, place: tuple[str, int]) -> bool:
        """Whether Kafka removed records before they were read; True if Kafka does not answer.

        A gap in the offsets is not enough, because the ends of transactions take offsets too. A
        writer of transactions could otherwise stop the session clocks of a partition's groups.
        """
        assert self._consumer is not None
        if place not in self._oldest:
            try:
                ends = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=1)
            except KafkaException:
                ends = None
            self._oldest[place] = self._next[place] + 1 if ends is None else ends[0]
        return self._oldest[place] > self._next[place]

    def _look(self, consumer: Consumer) -> None:
        """Follow topics that exist, with all of their partitions."""
        now_s = time.monotonic()
        if now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        for topic in self._topics:
            try:
                described = consumer.list_topics(topic, timeout=1).topics.get(topic)
            except KafkaException:
                return
            if described is not None and described.error is None and described.partitions:
                try:
                    self._follow(consumer, topic, len(described.partitions))
                except KafkaException:
                    return
            elif topic not in self._logged | self._refused:
                self._logged.add(topic)
                _log.warning(
                    "heartbeats are not read",
                    topic=topic,
                    why="there is no such topic, or no right to see it; without the topic members "
                    "write their heartbeats to membership",
                    create=access_check.create_command(self._topics[topic]),
                )

    def _follow(self, consumer: Consumer, topic: str, count: int) -> None:
        before = self._counts.get(topic, 0)
        if count <= before or topic in self._useless:
            return
        # What is written to a new partition before it is followed must be read, too.
        start = OFFSET_BEGINNING if before else OFFSET_END
        consumer.incremental_assign([TopicPartition(topic, p, start) for p in range(before, count)])
        self._counts[topic] = count
        if topic not in self._refused:
            self._heartbeats.listen(self._topics[topic], count)
        self._unread |= {(topic, partition) for partition in range(before, count)}

    def _mark_unread(self) -> None:
        """Write markers to partitions of which nothing was read: covers begin with a record."""
        for topic, partition in [*self._unread]:
            if (topic, partition) in self._next or topic not in self._counts:
                self._unread.discard((topic, partition))
            else:
                self.mark(self._topics[topic], partition)

    def _stop(self, topic: str, why: str, then: str) -> None:
        """Read a topic no more; covers begin anew if it is followed again."""
        assert self._consumer is not None
        count = self._counts.pop(topic)
        self._heartbeats.stop(self._topics[topic])
        for partition in range(count):
            self._next.pop((topic, partition), None)
            self._marked.pop((topic, partition), None)
            self._unread.discard((topic, partition))
        with suppress(KafkaException):
            self._consumer.incremental_unassign([TopicPartition(topic, p) for p in range(count)])
        story = f"{why}; silent members of its groups stay: {then}"
        self._complaints.hear("heartbeats are not read", story, topic, topic=topic)

    def mark(self, prefix: str, partition: int) -> None:
        """Write a marker to a partition, unless one is on its way."""
        topic, now_s = topic_name(TopicKind.HEARTBEATS, prefix), time.monotonic()
        if now_s < self._marked.get((topic, partition), float("-inf")) + MARK_S:
            return
        self._marked[topic, partition] = now_s
        try:
            self._producer.produce(topic, _MARKER, partition=partition)
        except (BufferError, KafkaException):
            return  # the tick that waits for it is written without it

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
