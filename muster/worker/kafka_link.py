"""A worker's connection to Kafka: a consumer of the member's own partition, and a producer.

Two threads wait inside librdkafka, one for records and one for acknowledgements, and post them to
the inbox. `reader_progress.py` checks with the events sent that the reader keeps up. The reader is
at the end of the partition *before* `Begin` is posted: the first record of a session is written
after its join, so the reader misses none and reads no history.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from muster.kafka import access_check
from muster.kafka.client_settings import ClientSettings
from muster.kafka.lasting_producer import LastingProducer
from muster.kafka.log_filter import drop_noise
from muster.kafka.passing_errors import SILENCE
from muster.kafka.refused_settings import why
from muster.protocol.codec import decode_record, encode
from muster.protocol.errors import ConfigError, DecodeError, EncodeError, UnknownDictionary
from muster.protocol.events import LagReport, Leave
from muster.protocol.keys import joined_key, key_of, partition_of
from muster.protocol.records import MemberAssignment, MemberGone, Record
from muster.protocol.split_records import Joiner, Whole
from muster.protocol.topics import TopicKind, topic_name
from muster.signing.followed_key_file import KeyFile, signed
from muster.worker.groups_topic import Dictionaries, configured_groups, find_names
from muster.worker.kafka_refusals import Refusals
from muster.worker.reader_progress import Progress, fresh_ms
from muster.worker.session_messages import Acknowledged, Begin, Failed, Input, Read, Send

log = logging.getLogger("muster.worker.kafka")
drop_noise(log)

Post: TypeAlias = Callable[[Input], None]

PATIENCE_S: Final = 5.0
"""How long one request about the topic may take before it is sent again."""
CLOSE_S: Final = 1.0
"""How long `close` waits for each thread."""
SAY_AGAIN_S: Final = 60.0
"""At most this often a worker logs that it has no connection to a broker."""
PAUSE_S: Final = 0.5
"""Between two attempts to reach a cluster or a topic that is missing."""
WAIT_S: Final = 0.25
"""Longest wait inside librdkafka. It returns at once when there is something to return, but not
when the worker closes."""

_QUICK: Final[Mapping[str, str | int | bool]] = {
    # A connection that hangs must be dropped long before the session ends.
    "socket.timeout.ms": 10_000,
    "socket.keepalive.enable": True,
    # Without any broker librdkafka does not back off: it would connect 20 times a second.
    "reconnect.backoff.ms": 250,
    "reconnect.backoff.max.ms": 1_000,
    "log.connection.close": False,
}
_READER: Final[Mapping[str, str | int | bool]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # Used only if the log was truncated below the position; sessions ignore what they have seen.
    "auto.offset.reset": "earliest",
    # Reports the position at the end of the log even where the last offsets have no records.
    "enable.partition.eof": True,
    # An idle member fetches rarely; the broker answers at once when a record is written.
    "fetch.wait.max.ms": 5_000,
}


class Connection(Protocol):
    """What a worker needs of its connection to Kafka; `Link` is the real one."""

    def open(self) -> None:
        """Start reading; `Begin` is posted when the reader is at the end of the partition."""

    def configured_groups(self) -> Sequence[str] | None:
        """The groups that have tasks; None = Kafka did not answer."""

    def send(self, sent: Send) -> None:
        """Write an event; `Acknowledged` or `Failed` is posted later."""

    def take_acknowledgements(self) -> None:
        """Post the acknowledgements that have arrived, without waiting."""

    def close(self, flush_s: float) -> bool:
        """Stop. Return whether every event was written."""


class Link:
    """One member's connection to Kafka. `open` it once, `close` it once."""

    def __init__(
        self,
        clients: ClientSettings,
        prefix: str,
        group: str,
        member: str,
        post: Post,
        keys: KeyFile | None = None,
    ) -> None:
        """Prepare; nothing is connected yet. `post` is called from any thread.

        Raises:
            ConfigError: client settings that librdkafka does not have, or refuses.
        """
        self._post = post
        self._keys = keys
        self._group = group
        self._waits_for = ""
        self._is_apart = False
        self._key = key_of(group, member)
        self._joiner = Joiner()
        self._names: Dictionaries = {}
        self._prefix = prefix
        self._heartbeats = topic_name(TopicKind.HEARTBEATS, prefix)
        self._assignments = topic_name(TopicKind.ASSIGNMENTS, prefix)
        self._groups = topic_name(TopicKind.GROUPS, prefix)
        self._unread = False  # the member's newest record could not be decoded
        self._closing = threading.Event()
        quick = {k: v for k, v in _QUICK.items() if k not in clients.values}
        reader = {k: v for k, v in _READER.items() if k not in clients.values}
        # librdkafka demands a group id; with assign() and no commits it never uses it.
        named = {"group.id": f"{prefix}.worker", "client.id": f"muster-{member}"}
        self._consumer_config: dict[str, Any] = clients.librdkafka({**quick, **reader, **named})
        self._has_grown = threading.Event()
        self._progress = Progress(clients.librdkafka(quick), post, self._has_grown.set)
        self._refusals = Refusals(clients, prefix)
        self._clients = clients
        self._is_cut_off = False  # the log says so, and Kafka has acknowledged nothing since
        self._said_s = -SAY_AGAIN_S
        try:
            writing = {**clients.producer(quick), "error_cb": self._on_error}
            self._producer = LastingProducer(writing, log, self._on_fatal)
        except KafkaException as error:
            # Only the names: the value of a misspelt `sasl.pasword` is a secret, too.
            problem = f"settings librdkafka takes ({why(clients, error)})"
            raise ConfigError("config", sorted(clients.values), problem) from None
        self._threads = [
            threading.Thread(target=self._read, name="muster-reader", daemon=True),
            threading.Thread(target=self._confirm, name="muster-acks", daemon=True),
        ]

    def open(self) -> None:
        """Start reading; `Begin` is posted when the reader is at the end of the partition."""
        for thread in self._threads:
            thread.start()

    def configured_groups(self) -> list[str] | None:
        """Read which groups have tasks; None = Kafka did not answer. Takes seconds."""
        return configured_groups(self._consumer_config, self._groups)

    def send(self, sent: Send) -> None:
        """Write an event; `Acknowledged` or `Failed` is posted later."""
        topic = topic_name(sent.kind, self._prefix)
        try:
            record = signed(self._keys, encode(sent.event), sent.event, topic)
        except EncodeError as error:
            log.error("nothing is sent: %s", error)
            self._post(Failed(sent))
            return

        def done(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self._refusals.hear(error)
            else:
                self._is_cut_off = False
            self._post(Acknowledged(sent) if error is None else Failed(sent))

        try:
            self._producer.produce(topic, record, done)
        except (KafkaException, BufferError) as error:
            if not self._is_refusal(error):
                log.warning("cannot write to %s: %s", topic, error)
            self._post(Failed(sent))
        if not isinstance(sent.event, Leave | LagReport):
            self._progress.ask(sent.sent_ms)

    def take_acknowledgements(self) -> None:
        """Post the acknowledgements that have arrived, without waiting."""
        self._producer.serve(0)

    def close(self, flush_s: float) -> bool:
        """Flush the producer and stop. Return whether every event was written."""
        unwritten = self._producer.flush(flush_s)
        self._closing.set()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(CLOSE_S)  # a thread that waits for a lost broker soon ends by itself
        self._progress.close()
        return unwritten == 0

    # ------------------------------------------------------------------------------------ reading

    def _read(self) -> None:
        consumer = self._new_consumer()
        if consumer is None:
            return
        try:
            while not self._closing.is_set() and not self._stand_at_end(consumer):
                self._closing.wait(PAUSE_S)
            if not self._closing.is_set():
                self._post(Begin(self._is_apart))
            self._follow(consumer)
        finally:
            consumer.close()

    def _new_consumer(self) -> Consumer | None:
        """A new consumer; None = the worker closes. Tries again: a file may be being replaced."""
        config = {**self._consumer_config, "error_cb": self._refusals.hear}
        while not self._closing.is_set():
            try:
                return Consumer(config, logger=log)
            except KafkaException as error:
                self._wait_for(f"cannot read {self._assignments} yet: {error}")
                self._closing.wait(PAUSE_S)
        return None

    def _stand_at_end(self, consumer: Consumer) -> bool:
        try:
            count = self._count_partitions(consumer)
            if not count:
                return False
            mine = TopicPartition(self._assignments, partition_of(self._key, count))
            _, end = consumer.get_watermark_offsets(mine, timeout=PATIENCE_S)
            mine.offset = end
            self._progress.stand(mine.topic, mine.partition, end, count)
            # Asked before the reader fetches: a broker answers a connection's requests in order,
            # and the fetch of an idle member takes it `fetch.wait.max.ms`.
            self._is_apart = self._keys is None and self._can_heartbeat_apart(consumer)
            consumer.assign([mine])
        except KafkaException as error:
            self._is_refusal(error)
            self._wait_for(f"cannot read {self._assignments} yet: {error}")
            return False
        self._waits_for = ""
        return True

    def _can_heartbeat_apart(self, consumer: Consumer) -> bool:
        """Whether there is a topic for heartbeats; clocks check no signatures of it."""
        topic = consumer.list_topics(self._heartbeats, timeout=PATIENCE_S).topics.get(
            self._heartbeats
        )
        return topic is not None and topic.error is None and bool(topic.partitions)

    def _wait_for(self, reason: str) -> None:
        """Log why the reader cannot start, unless it was logged just before."""
        if reason != self._waits_for:
            log.warning("%s", reason, extra={"group": self._group})
        self._waits_for = reason

    def _count_partitions(self, consumer: Consumer) -> int:
        topic = consumer.list_topics(self._assignments, timeout=PATIENCE_S).topics.get(
            self._assignments
        )
        if topic is not None and topic.error is not None and access_check.is_refusal(topic.error):
            self._refusals.hear(topic.error)
            return 0
        if topic is None or topic.error is not None or not topic.partitions:
            create = access_check.create_command(self._assignments.rpartition(".")[0])
            self._wait_for(f"no topic {self._assignments}; create it with: {create}")
            return 0
        return len(topic.partitions)

    def _follow(self, consumer: Consumer) -> None:
        while not self._closing.is_set():
            if self._has_grown.is_set():
                self._follow_layout(consumer)
            message = consumer.poll(WAIT_S)
            if message is None:
                continue
            error, offset = message.error(), message.offset() or 0
            if error is None:
                self._take(message)
                self._note_progress(offset + 1)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._note_progress(offset)
            else:
                self._refusals.hear(error)
                log.info("reading %s: %s", self._assignments, error)

    def _note_progress(self, offset: int) -> None:
        # A record that cannot be decoded may take tasks from this member. Until a newer one is
        # read, the member has not read everything written to it, and the lease must end.
        if not self._unread:
            self._progress.read_to(offset)

    def _follow_layout(self, consumer: Consumer) -> None:
        """The topic has more partitions: move to the one that the key belongs to now."""
        self._has_grown.clear()
        try:
            count = self._count_partitions(consumer)
        except KafkaException as error:
            log.info("cannot look at %s: %s", self._assignments, error)
            return
        if not count:
            return
        log.warning("%s has %d partitions now", self._assignments, count)
        partition = partition_of(self._key, count)
        self._progress.stand(self._assignments, partition, 0, count)
        consumer.assign([TopicPartition(self._assignments, partition, OFFSET_BEGINNING)])
        self._has_grown.clear()  # a count made meanwhile used the old number

    def _take(self, message: Message) -> None:
        key = message.key()
        if key is None or joined_key(key) != self._key:
            return
        try:
            whole = self._joiner.feed(key, message.value())
            record = None if whole is None else self._decode(whole)
        except DecodeError as error:
            place = f"{message.topic()}-{message.partition()}@{message.offset()}"
            log.error("a record at %s cannot be read: %s", place, error)
            self._unread = True
            return
        if isinstance(record, MemberAssignment | MemberGone):
            self._unread = False
            if isinstance(record, MemberAssignment) and record.fault is None:
                self._progress.stay_fresh(fresh_ms(record.session_timeout_ms))
            self._post(Read(record))

    def _decode(self, whole: Whole) -> Record:
        try:
            return decode_record(TopicKind.ASSIGNMENTS, *whole, dictionaries=self._names)
        except UnknownDictionary as unknown:
            where = (self._groups, self._group, unknown.version)
            self._names = find_names(self._consumer_config, *where)
            if unknown.version not in self._names:
                raise
            return decode_record(TopicKind.ASSIGNMENTS, *whole, dictionaries=self._names)

    # ------------------------------------------------------------------------------------ writing

    def _confirm(self) -> None:
        self._producer.serve_until(self._closing)

    def _on_fatal(self, error: KafkaException) -> None:
        if not self._is_refusal(error):
            log.warning("kafka, starting over: %s", error)

    def _is_refusal(self, error: BaseException) -> bool:
        """Whether it is a refusal, which `Refusals` logs."""
        kafka_error = error.args[0] if isinstance(error, KafkaException) else None
        if not isinstance(kafka_error, KafkaError) or not access_check.is_refusal(kafka_error):
            return False
        self._refusals.hear(kafka_error)
        return True

    def _on_error(self, error: KafkaError) -> None:
        self._refusals.hear(error)
        text = self._clients.hidden(str(error.str()))
        if error.code() not in SILENCE:
            log.info("kafka: %s", text)
            return
        now = time.monotonic()
        if self._is_cut_off or now - self._said_s < SAY_AGAIN_S or access_check.is_refusal(error):
            return
        self._is_cut_off, self._said_s = True, now
        log.warning(
            "Kafka at %s: no connection (%s); goes on trying", self._clients.bootstrap, text
        )
