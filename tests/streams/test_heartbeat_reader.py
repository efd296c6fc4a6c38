"""What the reader of heartbeats does when Kafka refuses it; no broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    TopicPartition,
)
from structlog.testing import capture_logs

from muster.kafka.client_settings import ClientSettings
from muster.protocol import codec
from muster.protocol.events import Heartbeat
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.tick_covers import Cover, Heard
from muster.streams import heartbeat_reader
from muster.streams.heartbeat_covers import Heartbeats, Sleeper
from muster.streams.heartbeat_reader import Listener

A = Sleeper("muster", GroupId("a"))
TOPIC = "muster.heartbeats"


class Beat:
    """A heartbeat as the consumer returns it, or a refusal."""

    def __init__(
        self, at_ms: int, kind: int = TIMESTAMP_LOG_APPEND_TIME, fault: KafkaError | None = None
    ) -> None:
        self._at_ms, self._kind, self._fault = at_ms, kind, fault
        event = Heartbeat(group=A.group, member=MemberId("W1"), epoch=3, digest=7)
        self._encoded = codec.encode(event)

    def error(self) -> KafkaError | None:
        """The refusal."""
        return self._fault

    def topic(self) -> str:
        """The topic."""
        return TOPIC

    def partition(self) -> int:
        """The partition."""
        return 0

    def offset(self) -> int:
        """The offset."""
        return self._at_ms

    def key(self) -> bytes:
        """The group's key."""
        return self._encoded.key

    def value(self) -> bytes | None:
        """The encoded heartbeat."""
        return self._encoded.value

    def timestamp(self) -> tuple[int, int]:
        """The broker's time."""
        return self._kind, self._at_ms


REFUSAL = Beat(0, fault=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


class Kafka:
    """One heartbeats topic with one partition."""

    def __init__(self) -> None:
        self.waiting: list[Beat] = []
        self.starts: list[int] = []
        self.assigned: set[int] = set()

    def list_topics(self, topic: str, timeout: float) -> Any:
        """Describe the topic."""
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None})})

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        """Nothing was removed."""
        return 0, 10**9

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        """Read partitions."""
        self.starts += [place.offset for place in places]
        self.assigned |= {place.partition for place in places}

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        """Read partitions no more."""
        self.assigned -= {place.partition for place in places}

    def consume(self, count: int, timeout: float) -> list[Beat]:
        """What is waiting."""
        waiting, self.waiting = self.waiting, []
        return waiting if self.assigned else []

    def produce(self, *_: object, **__: object) -> None:
        """Take a marker."""


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """A cluster that is looked at with each `read`."""
    kafka = Kafka()
    monkeypatch.setattr(heartbeat_reader, "Consumer", lambda *_, **__: kafka)
    monkeypatch.setattr(heartbeat_reader, "LOOK_S", 0.0)
    return kafka


def test_a_topic_that_was_refused_is_read_again(kafka: Kafka) -> None:
    """It is followed from its end; no cover vouches for the time that was not read."""
    heard = Heartbeats()
    listener = Listener(ClientSettings(), ["muster"], heard, kafka)  # type: ignore[arg-type]

    def read(*beats: Beat) -> None:
        kafka.waiting += beats
        listener.read({A})

    with capture_logs() as said:
        read(Beat(1_000), Beat(2_000))
        assert heard.cover(A) is not None
        heard.done(A, written=True)
        read(Beat(3_000), REFUSAL, REFUSAL)
        assert (heard.place(A), heard.cover(A), kafka.assigned) == (None, None, set())
        for _ in range(3):
            read(REFUSAL)
        assert heard.place(A) is None, "ticks do not wait for a topic that is still refused"
        read(Beat(60_000))
        read(Beat(70_000))
    assert kafka.starts == [OFFSET_END] * 5
    assert heard.place(A) == 0
    assert heard.cover(A) == Cover(60_000, 69_999, (Heard("W1", 0, 3, 7),))
    assert [line["event"] for line in said] == [
        "heartbeats are not read",
        "heartbeats are read again",
    ]


def test_a_topic_without_the_brokers_time_is_never_read_again(kafka: Kafka) -> None:
    """Its records prove nothing."""
    heard = Heartbeats()
    listener = Listener(ClientSettings(), ["muster"], heard, kafka)  # type: ignore[arg-type]
    with capture_logs() as said:
        for _ in range(3):
            kafka.waiting = [Beat(1_000, TIMESTAMP_CREATE_TIME)]
            listener.read({A})
    assert (heard.place(A), kafka.starts, kafka.assigned) == (None, [OFFSET_END], set())
    assert len(said) == 1
