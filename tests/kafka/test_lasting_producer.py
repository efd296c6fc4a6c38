"""A producer that failed for good is replaced, and what is written later arrives."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaError, KafkaException

from muster.kafka import lasting_producer
from muster.kafka.lasting_producer import LastingProducer
from muster.protocol.codec import Encoded

RECORD = Encoded(b"k", b"v", ())
FATAL = KafkaException(KafkaError(KafkaError._FATAL))


class Scripted:
    """librdkafka's producer: the first one fails for good with its first record."""

    made: list[Scripted]

    def __init__(self, config: object, logger: object) -> None:
        self.records: list[str] = []
        self.purged = False
        self.made.append(self)

    @property
    def failed(self) -> bool:
        """Whether it has failed for good."""
        return self is self.made[0] and bool(self.records)

    def produce(self, topic: str, **_: object) -> None:
        """Take a record."""
        self.records.append(topic)

    def poll(self, wait_s: float) -> None:
        """Raise the fatal error until it is purged."""
        if self.failed and not self.purged:
            raise FATAL

    def purge(self) -> None:
        """Drop what is not written."""
        self.purged = True

    def flush(self, wait_s: float) -> int:
        """Say how many records are not written."""
        if self.failed:
            raise FATAL
        return 0


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Scripted]:
    """The producers that were made."""
    Scripted.made = []
    monkeypatch.setattr(lasting_producer, "Producer", Scripted)
    return Scripted.made


def test_a_fatal_error(made: list[Scripted]) -> None:
    """The failure is logged once; the next record goes to another producer."""
    failures: list[KafkaException] = []
    producer = LastingProducer({}, logging.getLogger("test"), failures.append)
    assert producer.serve(0)
    producer.produce("orders", RECORD, lambda error, message: None)
    assert producer.flush(0) == 1
    assert not producer.serve(0)
    assert failures == [FATAL]
    producer.produce("parcels", RECORD, lambda error, message: None)
    assert producer.serve(0)
    assert [each.records for each in made] == [["orders"], ["parcels"]]
    assert [each.purged for each in made] == [True, False]
    assert producer.flush(0) == 0


def test_another_producer_cannot_be_made_at_once(
    made: list[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate is being replaced: the next serving of callbacks tries again."""
    producer = LastingProducer({}, logging.getLogger("test"), lambda error: None)
    producer.produce("a", RECORD)
    with monkeypatch.context() as context:
        context.setattr(producer, "_new", refuse)
        assert not producer.serve(0)
    made[0].purged = False
    assert not producer.serve(0)
    assert len(made) == 2
    producer.produce("b", RECORD)
    assert (producer.serve(0), made[1].records) == (True, ["b"])


def refuse() -> Scripted:
    """As librdkafka with a certificate that it cannot read."""
    raise KafkaException(KafkaError(KafkaError._INVALID_ARG))
