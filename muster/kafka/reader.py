"""Reads a topic to its present end, once, or again and again as it grows."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from muster.kafka import cluster
from muster.kafka.client_settings import ClientSettings
from muster.kafka.cluster import QUIET, RETRY_PAUSE_S, failures_named, partitions_of
from muster.kafka.passing_errors import passes
from muster.protocol.errors import DecodeError
from muster.protocol.keys import parse_key, whole_key
from muster.protocol.signing import HEADER

T = TypeVar("T")
POLL_S = 0.5
ASSIGN_S = 5
DIGITS_MAX = 20
FOLLOWER_FETCH_MS = 100
"""How long Kafka may wait for records before it answers a `Follower` that there are none."""
FOLLOWER_LOOKS_S = 5.0


class Row(NamedTuple):
    """One record; if it was not read from Kafka, all but key and value may have their defaults.

    Attributes:
        key: None when it has none.
        value: None = a tombstone.
        topic, partition, offset: where it was read.
        at_ms: its timestamp.
        signature: of the header `signing.HEADER`; empty = it has none.
        generation: of the header ``generation``; -1 = it has none.
        by: of the header ``by``, the author; empty = it has none.
    """

    key: bytes | None
    value: bytes | None
    topic: str = ""
    partition: int = -1
    offset: int = -1
    at_ms: int = 0
    signature: bytes = b""
    generation: int = -1
    by: bytes = b""

    def is_of(self, group: str) -> bool:
        """Whether it is about this group, by its key."""
        try:
            return parse_key(self.key).group == group
        except DecodeError:
            return False


def read(
    settings: ClientSettings,
    topic: str,
    *,
    key: bytes | None = None,
    since_ms: int | None = None,
) -> Iterator[Row]:
    """Every record that a topic has now, oldest first within a partition.

    With a key only its records, and the parts of a split record with it; with `since_ms` only those
    from this timestamp on. Reads every partition, also for one key: when partitions are added to a
    topic, a key moves to another partition, and a producer that has not noticed this still writes
    to the old one.

    Raises:
        Unreachable, Refused, NoTopics: as `partitions_of`.
    """
    wanted = range(partitions_of(settings, topic))
    owner = None if key is None else whole_key(key)
    with failures_named(settings, topic, "READ"):
        consumer = consumer_of(settings, topic.rpartition(".")[0], fetch_wait_ms=10)
        try:
            starts = [TopicPartition(topic, p, OFFSET_BEGINNING) for p in wanted]
            if since_ms is not None:
                asked = [TopicPartition(topic, p, max(since_ms, 0)) for p in wanted]
                starts = _patient(
                    lambda: consumer.offsets_for_times(asked, timeout=cluster.TIMEOUT_S)
                )
            for row in until_end(consumer, starts, cluster.TIMEOUT_S):
                if owner is None or (row.key is not None and whole_key(row.key) == owner):
                    yield row
        finally:
            consumer.close()


class Follower:
    """Reads a topic once, from its beginning, and then what is added to it.

    One consumer stays open for all reads. Close it, or use it in a ``with`` block. With a `key`
    only the records of that key are returned, and the parts of a split record with it.
    """

    def __init__(self, settings: ClientSettings, topic: str, key: bytes | None = None) -> None:
        self._settings = settings
        self._topic = topic
        self._owner = None if key is None else whole_key(key)
        self._consumer: Consumer | None = None
        self._partitions = 0
        self._look_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def new(self, wait_s: float = 0.0) -> list[Row]:
        """The records since the last call, oldest first within a partition.

        The first call returns what the topic has now. A later one waits up to `wait_s` for the
        first record, of any key, and returns at most 1,000. If the first call raises, make another
        follower.

        Raises:
            Unreachable, Refused, NoTopics: as `partitions_of`. Whether Kafka answers and the topic
                has more partitions is asked every `FOLLOWER_LOOKS_S`.
        """
        if time.monotonic() < self._look_s:
            starts: list[TopicPartition] = []
        else:
            count = partitions_of(self._settings, self._topic)
            added = range(self._partitions, count)
            starts = [TopicPartition(self._topic, p, OFFSET_BEGINNING) for p in added]
            self._partitions = max(count, self._partitions)
            self._look_s = time.monotonic() + FOLLOWER_LOOKS_S
        with failures_named(self._settings, self._topic, "READ"):
            rows = self._arrived(starts, wait_s) if self._consumer else self._all(starts)
            return [row for row in rows if self._is_wanted(row)]

    def _all(self, starts: Sequence[TopicPartition]) -> Iterator[Row]:
        prefix = self._topic.rpartition(".")[0]
        self._consumer = consumer_of(self._settings, prefix, FOLLOWER_FETCH_MS)
        return until_end(self._consumer, starts, cluster.TIMEOUT_S)

    def _arrived(self, starts: list[TopicPartition], wait_s: float) -> Iterator[Row]:
        assert self._consumer is not None
        if starts:  # partitions that were added to the topic
            self._consumer.incremental_assign(starts)
        for message in arrived(self._consumer, wait_s):
            error = message.error()
            if error is None:
                yield row_of(message)
            elif error.fatal() or error.code() in cluster.NOT_ALLOWED:
                raise KafkaException(error)  # after all others the consumer reads on by itself

    def _is_wanted(self, row: Row) -> bool:
        return self._owner is None or (row.key is not None and whole_key(row.key) == self._owner)


def consumer_of(settings: ClientSettings, prefix: str, fetch_wait_ms: int) -> Consumer:
    """A consumer that commits nothing and reports the end of each partition.

    The ACLs of readers allow consumer groups that begin with the topic prefix.
    """
    more: dict[str, str | int | float | bool] = {
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": fetch_wait_ms,
        "isolation.level": "read_committed",
        **QUIET,
    }
    return Consumer(settings.reader(f"{prefix}.cli-{uuid.uuid4().hex}", more))


def assign_all(consumer: Consumer, topics: Iterable[str]) -> dict[tuple[str, int], tuple[int, int]]:
    """Have a consumer read these topics from their beginning, those that exist.

    Returns their `offsets_of`.

    Raises:
        KafkaException: no answer.
    """
    offsets = offsets_of(consumer, topics)
    consumer.assign([TopicPartition(*place, 0) for place in offsets])
    return offsets


def offsets_of(
    consumer: Consumer, topics: Iterable[str], timeout_s: float = ASSIGN_S
) -> dict[tuple[str, int], tuple[int, int]]:
    """First offset and end of each partition of these topics, of those that exist.

    Raises:
        KafkaException: no answer.
    """
    existing = consumer.list_topics(timeout=timeout_s).topics
    return {
        (topic, p): consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=timeout_s)
        for topic in sorted({*topics} & existing.keys())
        for p in existing[topic].partitions
    }


def arrived(consumer: Consumer, wait_s: float, most: int = 1_000) -> list[Message]:
    """The messages that are there, errors among them; waits for the first one only.

    `Consumer.consume` alone would wait until it has as many as it may return.

    Raises:
        KafkaException: of the client.
    """
    first = consumer.poll(wait_s)
    return [] if first is None else [first, *consumer.consume(most - 1, 0)]


def until_end(
    consumer: Consumer,
    starts: Sequence[TopicPartition],
    patience_s: float,
    *,
    skip_errors: bool = False,
) -> Iterator[Row]:
    """Every record from the given offsets to the end of each partition.

    The consumer, which needs `enable.partition.eof`, is assigned the partitions. Kafka may send
    nothing for `patience_s`, and errors that may pass count as nothing; `skip_errors`: all do.

    Raises:
        KafkaException: an error that does not pass, or no answer in time: the last error that might
            have passed, else _TIMED_OUT.
    """
    for topic in {start.topic for start in starts}:
        # A client that knows the leaders fetches at once; otherwise it waits half a second first.
        with suppress(KafkaException):
            consumer.list_topics(topic, timeout=POLL_S)
    consumer.assign(list(starts))
    unfinished = {(start.topic, start.partition) for start in starts}
    deadline = time.monotonic() + patience_s
    reason = KafkaError(KafkaError._TIMED_OUT)
    while unfinished:
        for message in arrived(consumer, min(POLL_S, patience_s)):
            error = message.error()
            if error is None:
                yield row_of(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard((str(message.topic()), message.partition()))
            elif skip_errors or passes(error):
                reason = error
                continue
            else:
                raise KafkaException(error)
            deadline = time.monotonic() + patience_s
        if unfinished and time.monotonic() > deadline:
            raise KafkaException(reason)


def _patient(call: Callable[[], T]) -> T:
    """Call again while the error may pass (no leader yet, for example)."""
    patience = Retrying(
        retry=retry_if_exception(
            lambda error: isinstance(error, KafkaException) and passes(error.args[0])
        ),
        stop=stop_after_delay(cluster.TIMEOUT_S),
        wait=wait_fixed(RETRY_PAUSE_S),
        reraise=True,
    )
    return patience(call)


def row_of(message: Message) -> Row:
    """The record in a message without an error."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    headers: Any = message.headers() or ()
    number = dict(headers).get("generation") or b""
    return Row(
        key=message.key(),
        value=message.value(),
        topic=topic,
        partition=partition,
        offset=offset,
        at_ms=message.timestamp()[1],
        signature=next((value for name, value in headers if name == HEADER and value), b""),
        generation=int(number) if number.isdigit() and len(number) < DIGITS_MAX else -1,
        by=dict(headers).get("by") or b"",
    )
