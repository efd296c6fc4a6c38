"""Appends one event to a topic, signed if there are keys, and waits for Kafka's acknowledgement."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from muster.kafka import access_check, cluster
from muster.kafka.client_settings import ClientSettings, RdKafkaValue
from muster.kafka.cluster import QUIET, failures_named, partitions_of
from muster.kafka.lasting_producer import produce
from muster.protocol.codec import Encoded, encode
from muster.protocol.events import Event
from muster.signing.followed_key_file import KeyFile, signed

BY = "by"
"""Header of a record that names its author."""
_UNHEARD = logging.getLogger("muster.cli.unheard")
"""Drops fatal errors, which librdkafka logs at any level; they are raised as exceptions too."""
_UNHEARD.disabled = True


class Place(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


def append(
    settings: ClientSettings,
    topic: str,
    event: Event,
    keys: KeyFile | None = None,
    by: str = "",
) -> Place:
    """Write one event, wait until Kafka acknowledges it, and return its place.

    `by` is the author, for people who read the topic later: the record's header ``by``, which is
    not signed. Empty = no header.

    Raises:
        EncodeError: no key may sign it now.
        Unreachable: Kafka did not acknowledge it in time.
        Refused, NoTopics: as `partitions_of`.
    """
    return append_all(settings, topic, [event], keys, by)[0]


def append_all(
    settings: ClientSettings,
    topic: str,
    events: Sequence[Event],
    keys: KeyFile | None = None,
    by: str = "",
) -> list[Place]:
    """Do the same as `append` for several events, one after the other."""
    partitions_of(settings, topic, "WRITE")
    records = [signed(keys, encode(event), event, topic) for event in events]
    if by:
        records = [r._replace(headers=(*r.headers, (BY, by.encode()))) for r in records]
    with failures_named(settings, topic, "WRITE"), access_check.fatal_named():
        more: dict[str, RdKafkaValue] = {"message.timeout.ms": cluster.TIMEOUT_S * 1000, **QUIET}
        producer = Producer(settings.producer(more), logger=_UNHEARD)
        return [deliver(producer, topic, record, cluster.TIMEOUT_S) for record in records]


def deliver(
    producer: Producer,
    topic: str,
    record: Encoded,
    timeout_s: float,
    partition: int | None = None,
) -> Place:
    """Write one record, wait until Kafka acknowledges it, and return its place.

    The producer's `message.timeout.ms` is at most `timeout_s` too.

    Raises:
        KafkaException: Kafka refused it, or did not acknowledge it in time (_TIMED_OUT).
    """
    outcome: list[tuple[KafkaError | None, Place]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        place = Place(topic, message.partition() or 0, message.offset() or 0)
        outcome.append((error, place))

    produce(producer, topic, record, delivered, partition)
    producer.flush(timeout_s + 1)
    error, place = outcome[0] if outcome else (KafkaError(KafkaError._TIMED_OUT), None)
    if error is not None or place is None:
        raise KafkaException(error)
    return place
