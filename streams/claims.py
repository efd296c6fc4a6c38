"""Claims: the job that wrote the latest claim is the coordinator.

At its start a job writes a claim to the one-partition topic ``<prefix>.coordinator``. The offset of
the claim is the job's coordinator epoch. It goes into every assignment, and members ignore records
of an older epoch. So an older job does no harm from that moment on, even before it notices. `Watch`
makes it notice: a job that reads a later claim than its own stops.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import NamedTuple

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from muster.kafka import access_check
from muster.kafka.client_settings import ClientSettings
from muster.kafka.writer import deliver
from muster.logs import KAFKA
from muster.protocol import codec
from muster.protocol.errors import DecodeError
from muster.protocol.records import CoordinatorClaim
from muster.protocol.topics import TopicKind, topic_name
from muster.streams.background_thread import Loop
from muster.streams.errors import KafkaUnreachable

POLL_S = 0.5
READ_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 60.0


class Claims(NamedTuple):
    """Claims of one prefix.

    Attributes:
        newest: epoch of the newest one; -1 = there is none.
        read: epoch → claim, ascending; what cannot be decoded is left out.
        at_ms: epoch → broker timestamp of the claim, epoch milliseconds.
    """

    newest: int
    read: Mapping[int, CoordinatorClaim]
    at_ms: Mapping[int, int]


def write(
    clients: ClientSettings, prefix: str, job: str, *, follows: int, alone: bool, above: int = -1
) -> int:
    """Write a claim, with `follows` and `alone` as in `CoordinatorClaim`; return its epoch.

    It is written again until the epoch is `above` that number.

    Raises:
        KafkaUnreachable: Kafka did not acknowledge the claim.
    """
    record = CoordinatorClaim(
        job=job,
        host=platform.node(),
        version=version("muster-kafka"),
        follows=follows,
        alone=alone,
    )
    topic = topic_name(TopicKind.COORDINATOR, prefix)
    settings = clients.producer({"message.timeout.ms": int(WRITE_TIMEOUT_S * 1000)})
    try:
        with access_check.fatal_named():
            producer = Producer(settings, logger=KAFKA)
            epoch = -1
            while epoch <= above:
                epoch = deliver(producer, topic, codec.encode(record), WRITE_TIMEOUT_S).offset
            return epoch
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        is_late = reason.code() == KafkaError._TIMED_OUT
        why = f"no answer within {WRITE_TIMEOUT_S:.0f} s" if is_late else reason.str()
        story = f"Kafka did not acknowledge this coordinator's claim: {why}"
        raise KafkaUnreachable(story) from None


def read(clients: ClientSettings, prefix: str, after: int | None = None) -> Claims:
    """Read the newest claim of a prefix, and all behind the epoch `after`, if there is one.

    Raises:
        KafkaUnreachable: the claims could not be read in time.
    """
    consumer = Consumer(clients.reader(f"{prefix}.job"), logger=KAFKA)
    place = TopicPartition(topic_name(TopicKind.COORDINATOR, prefix), 0)
    found: dict[int, CoordinatorClaim] = {}
    at_ms: dict[int, int] = {}
    try:
        low, high = consumer.get_watermark_offsets(place, timeout=READ_TIMEOUT_S)
        if high <= low:
            return Claims(-1, found, at_ms)
        newest = high - 1
        first = newest if after is None else max(low, min(after + 1, newest))
        consumer.assign([TopicPartition(place.topic, 0, first)])
        at = -1
        while at < newest:
            message = consumer.poll(READ_TIMEOUT_S)
            if message is None or message.error() is not None:
                why = "no answer" if message is None else message.error()
                raise KafkaUnreachable(f"the claims on {place.topic} cannot be read: {why}")
            at = message.offset() or 0
            with suppress(DecodeError):  # not a record of muster
                record = codec.decode_record(TopicKind.COORDINATOR, message.key(), message.value())
                if isinstance(record, CoordinatorClaim):
                    found[at], at_ms[at] = record, message.timestamp()[1]
    except KafkaException as error:
        raise KafkaUnreachable(f"{place.topic} cannot be read: {error}") from error
    finally:
        consumer.close()
    return Claims(newest, found, at_ms)


class Watch(Loop):
    """Reads claims in a thread until it meets a later one than this job's (`epochs`, by prefix).

    Then it sets `stop`, and `story` names the other job.
    """

    def __init__(
        self, clients: ClientSettings, epochs: Mapping[str, int], job: str, stop: threading.Event
    ) -> None:
        super().__init__("muster-claims")
        self.story: str | None = None
        self._clients = clients
        self._epochs = dict(epochs)
        self._job = job
        self._stop = stop

    def _run(self) -> None:
        reader = self._clients.reader(f"{next(iter(self._epochs))}.job")
        consumer = Consumer(reader, logger=KAFKA)
        try:
            consumer.assign(
                [
                    TopicPartition(topic_name(TopicKind.COORDINATOR, prefix), 0, epoch + 1)
                    for prefix, epoch in self._epochs.items()
                ]
            )
            while not self._closing.is_set():
                if any(map(self._is_later, self._arrived(consumer, POLL_S))):
                    self._stop.set()
                    return
        finally:
            consumer.close()

    def _is_later(self, message: Message) -> bool:
        try:
            record = codec.decode_record(TopicKind.COORDINATOR, message.key(), message.value())
        except DecodeError:
            return False
        if not isinstance(record, CoordinatorClaim) or record.job == self._job:
            return False
        self.story = (
            f"job {record.job} on {record.host} (muster {record.version}) claimed "
            f"{message.topic()} at offset {message.offset()}, after this job"
        )
        return True
