"""muster's topics as a governor uses them, while Kafka refuses its login."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError
from support.adopt.governed import GROUP

from muster.adopt import muster_topics
from muster.adopt.muster_topics import MusterTopics
from muster.kafka.acls import Role
from muster.kafka.client_settings import client_settings
from muster.protocol.events import Leave
from muster.worker.session_messages import Failed, Send

REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The errors that are told to what logs refusals; Kafka refuses every record, in and out."""
    heard: list[object] = []

    class Refusals:
        def __init__(self, clients: object, prefix: str, role: Role) -> None:
            heard.append(role)

        def hear(self, error: KafkaError) -> None:
            heard.append(error)

    class Producer:
        def __init__(self, *given: object) -> None:
            """It needs no settings."""

        def serve_until(self, closing: object) -> None:
            """It has nothing to serve."""

        def produce(self, topic: str, record: object, done) -> None:
            done(REFUSED, None)

    monkeypatch.setattr(muster_topics, "Refusals", Refusals)
    monkeypatch.setattr(muster_topics, "LastingProducer", Producer)
    return heard


def test_events_are_refused(heard: list[object]) -> None:
    """The log says which right is missing; the session writes the event again."""
    topics, posted = MusterTopics(client_settings("k:9092"), "muster", None), []
    topics.follow(GROUP, posted.append)
    sent = Send(Leave(group=GROUP, member="A", incarnation=1), 0, 0)
    topics.send(GROUP, [sent])
    assert posted == [Failed(sent)]
    assert heard == [Role.GOVERNOR, REFUSED]


def test_records_are_refused(heard: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A governor that cannot read decides alone; the log says which right is missing."""
    topics = MusterTopics(client_settings("k:9092"), "muster", None)

    class Consumer:
        def __init__(self, *given: object, **more: object) -> None:
            """It needs no settings."""

        def list_topics(self, topic: str, timeout: float) -> object:
            return SimpleNamespace(topics={topic: SimpleNamespace(partitions=[0])})

        def incremental_assign(self, parts: list[object]) -> None:
            """It takes what it is given."""

        def poll(self, wait_s: float) -> object:
            topics._closing.set()
            return SimpleNamespace(error=lambda: REFUSED)

        def close(self) -> None:
            """Nothing to close."""

    monkeypatch.setattr(muster_topics, "Consumer", Consumer)
    topics._read()
    assert heard == [Role.GOVERNOR, REFUSED]
