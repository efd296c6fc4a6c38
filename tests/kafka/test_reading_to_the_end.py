"""Errors of the client while a topic is read to its end: some pass, others end the read."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from muster.kafka.reader import until_end

START = TopicPartition("muster.groups", 0, 0)


class Told:
    """A message of a consumer: an error, or a record."""

    def __init__(self, error: KafkaError | None = None) -> None:
        self.error = lambda: error
        self.topic, self.partition, self.offset = (lambda: START.topic), (lambda: 0), (lambda: 0)
        self.key, self.value, self.headers = (lambda: b"g"), (lambda: b"v"), (lambda: None)
        self.timestamp = lambda: (1, 7)


class Tells:
    """A consumer that has these messages, and then none."""

    def __init__(self, *messages: Told) -> None:
        self._messages = list(messages)

    def poll(self, _wait_s: float) -> Told | None:
        """The next message."""
        return self._messages.pop(0) if self._messages else None

    def consume(self, _most: int, _wait_s: float) -> list[Told]:
        """No more at once."""
        return []

    def list_topics(self, *_: object, **__: object) -> None:
        """The leaders are known."""

    def assign(self, _starts: object) -> None:
        """All messages are of one partition."""


def read(*codes: int | None, skip_errors: bool = False) -> int:
    """How many records are read, where each code is an error and None a record."""
    told = [Told(None if code is None else KafkaError(code)) for code in codes]
    consumer: Any = Tells(*told)
    return len(list(until_end(consumer, [START], 0.05, skip_errors=skip_errors)))


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(KafkaError._TRANSPORT, id="the connection broke"),
        pytest.param(KafkaError._ALL_BROKERS_DOWN, id="no broker is there"),
        pytest.param(KafkaError.NOT_LEADER_FOR_PARTITION, id="another broker leads"),
    ],
)
def test_an_error_that_passes(code: int) -> None:
    """A broker restarts while a command reads: the command goes on, and gives up in the end."""
    assert read(None, code, None, KafkaError._PARTITION_EOF) == 2
    with pytest.raises(KafkaException) as caught:
        read(None, code)
    assert caught.value.args[0].code() == code


def test_an_error_that_does_not_pass() -> None:
    """A missing right ends the read at once; a reader that skips errors waits for its end."""
    code = KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException) as caught:
        read(code, None, KafkaError._PARTITION_EOF)
    assert caught.value.args[0].code() == code
    assert read(code, None, KafkaError._PARTITION_EOF, skip_errors=True) == 1


def test_no_answer() -> None:
    """Kafka says nothing at all."""
    with pytest.raises(KafkaException) as caught:
        read(None)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
