"""The three things commands do with Kafka: look at the cluster, read a topic, append a record.

A failure of the client becomes one of muster's errors, with librdkafka's reason (`failures_named`).
librdkafka's own log is switched off.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from muster.cli.errors import BadInput, Unreachable
from muster.kafka import access
from muster.kafka.settings import ClientSettings, RdKafkaValue
from muster.protocol.codec import encode
from muster.protocol.events import Event
from muster.protocol.keys import whole_key
from muster.protocol.signing import HEADER
from muster.signing.keyring import KeyFile, signed

TIMEOUT_S = 15
RETRY_PAUSE_S = 0.1
T = TypeVar("T")
QUIET = {"log_level": 0}
_UNHEARD = logging.getLogger("muster.cli.unheard")
"""Drops fatal errors, which librdkafka logs at any level; they are raised as exceptions too."""
_UNHEARD.disabled = True
_NOT_ALLOWED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    # The error for a producer that may not write to any topic.
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One record as Kafka has it.

    Attributes:
        partition, offset: where it was read.
        at_ms: its timestamp.
        key: None when it has none.
        value: None = a tombstone.
        signature: of the header `signing.HEADER`; empty = it has none.
    """

    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    signature: bytes = b""


@contextmanager
def failures_named(settings: ClientSettings, topic: str = "", doing: str = "") -> Iterator[None]:
    """Turn the client's exceptions into muster's errors.

    Args:
        settings: how to reach the cluster.
        topic: the topic that the block uses; empty = no single one.
        doing: the operation on it that the principal needs, as in ACLs.

    Raises:
        Unreachable: Kafka did not answer, or refused.
        Refused: the principal may not use the topic like that.
        BadInput: a client setting that librdkafka does not accept.
    """
    try:
        yield
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        said = settings.hidden(str(reason.str()))
        if reason.code() in (KafkaError._INVALID_ARG, KafkaError._CONFLICT):
            raise BadInput(f"a client setting is not accepted: {said}") from None
        if reason.code() in _NOT_ALLOWED and topic:
            raise access.Refused(access.lacking(settings, topic, doing)) from None
        raise Unreachable(f"Kafka at {settings.bootstrap}: {_story(reason, said)}") from None
    except access.Silent as error:
        raise Unreachable(str(error)) from None


def _story(reason: KafkaError, said: str) -> str:
    silent = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
    return f"no answer within {TIMEOUT_S} s ({said})" if reason.code() in silent else said


def admin(settings: ClientSettings) -> AdminClient:
    """An admin client; use it within `failures_named`."""
    return AdminClient(settings.librdkafka(QUIET))


def partitions_of(settings: ClientSettings, topic: str, operation: str = "READ") -> int:
    """The number of partitions of a topic, which this login must be allowed to read or write.

    Raises:
        Unreachable: no answer.
        Refused: the login, a certificate or a missing right; the message says which.
        NoTopics: no such topic; the message says how to create it.
    """
    with failures_named(settings):
        return access.topic(settings, topic, operation, TIMEOUT_S)


def read(
    settings: ClientSettings,
    topic: str,
    *,
    key: bytes | None = None,
    since_ms: int | None = None,
) -> Iterator[Row]:
    """Everything a topic holds now, oldest first within a partition.

    Reads every partition, also for one key: when partitions are added to a topic, a key moves to
    another one, and a producer that has not noticed it still writes to the old one.

    Args:
        settings: how to reach the cluster.
        topic: full name.
        key: only records with this key, and the parts of a split record with it.
        since_ms: only records from this timestamp on.

    Raises:
        Unreachable, Refused, NoTopics: as `partitions_of`.
    """
    wanted = range(partitions_of(settings, topic))
    owner = None if key is None else whole_key(key)
    with failures_named(settings, topic, "READ"):
        consumer = Consumer(
            settings.librdkafka(
                {
                    "group.id": f"{topic.rpartition('.')[0]}.cli-{uuid.uuid4().hex}",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 10,
                    "isolation.level": "read_committed",
                    **QUIET,
                }
            )
        )
        try:
            for row in _until_end(consumer, topic, wanted, since_ms):
                if owner is None or (row.key is not None and whole_key(row.key) == owner):
                    yield row
        finally:
            consumer.close()


def _until_end(
    consumer: Consumer, topic: str, partitions: Sequence[int], since_ms: int | None
) -> Iterator[Row]:
    starts = [TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions]
    if since_ms is not None:
        asked = [TopicPartition(topic, p, max(since_ms, 0)) for p in partitions]
        starts = _patient(lambda: consumer.offsets_for_times(asked, timeout=TIMEOUT_S))
    consumer.assign(starts)
    open_partitions = set(partitions)
    deadline = time.monotonic() + TIMEOUT_S
    while open_partitions:
        message = consumer.poll(0.5)
        if message is None:
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            continue
        deadline = time.monotonic() + TIMEOUT_S
        error = message.error()
        if error is None:
            yield _row(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            open_partitions.discard(message.partition())
        elif not error.retriable():
            raise KafkaException(error)


def _patient(call: Callable[[], T]) -> T:
    """Call again while the error is retriable (no leader yet, for example)."""
    patience = Retrying(
        retry=retry_if_exception(_retriable),
        stop=stop_after_delay(TIMEOUT_S),
        wait=wait_fixed(RETRY_PAUSE_S),
        reraise=True,
    )
    return patience(call)


def _retriable(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and bool(error.args[0].retriable())


def _row(message: Message) -> Row:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    row = (partition, offset, message.timestamp()[1], message.key(), message.value())
    return Row(*row, signature=_signature(message))


def _signature(message: Message) -> bytes:
    headers: Any = message.headers() or ()
    return next((value for name, value in headers if name == HEADER and value), b"")


class Place(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


def append(
    settings: ClientSettings, topic: str, event: Event, keys: KeyFile | None = None
) -> Place:
    """Write one event, wait until Kafka acknowledges it, and return its place.

    Args:
        settings: how to reach the cluster.
        topic: full name.
        event: the event.
        keys: sign it; None = it is not signed.

    Raises:
        EncodeError: no key may sign it now.
        Unreachable: Kafka did not acknowledge it in time.
        Refused, NoTopics: as `partitions_of`.
    """
    partitions_of(settings, topic, "WRITE")
    record = signed(keys, encode(event), event, topic)
    outcome: list[KafkaError | None] = []
    places: list[Place] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        outcome.append(error)
        places.append(Place(topic, message.partition() or 0, message.offset() or 0))

    with failures_named(settings, topic, "WRITE"):
        more: dict[str, RdKafkaValue] = {"message.timeout.ms": TIMEOUT_S * 1000, **QUIET}
        producer = Producer(settings.producer(more), logger=_UNHEARD)
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            on_delivery=delivered,
        )
        with access.fatal_named():
            producer.flush(TIMEOUT_S + 1)
        if not outcome or outcome[0] is not None:
            raise KafkaException(outcome[0] if outcome else KafkaError(KafkaError._TIMED_OUT))
    return places[0]
