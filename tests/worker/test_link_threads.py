"""What the thread that reads a worker's records survives; no broker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from muster.kafka.client_settings import ClientSettings
from muster.protocol.events import Leave
from muster.protocol.ids import GroupId, MemberId
from muster.worker import kafka_link
from muster.worker.groups_topic import find_names
from muster.worker.kafka_link import Link
from muster.worker.session_messages import Send


def test_a_consumer_that_cannot_be_made_yet(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate is being replaced: the thread tries again, and logs one line."""
    monkeypatch.setattr(kafka_link, "PAUSE_S", 0.0)
    link = Link(ClientSettings(), "muster", "g", "m", lambda _: None)
    tries: list[object] = []

    def consumer(config: object, logger: object) -> object:
        tries.append(config)
        if len(tries) < 3:
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG))
        link._closing.set()
        return SimpleNamespace(close=lambda: tries.append("closed"))

    monkeypatch.setattr(kafka_link, "Consumer", consumer)
    link._read()
    assert (len(tries), tries[-1]) == (4, "closed")
    assert caplog.text.count("cannot read muster.assignments yet") == 1


def test_a_broker_that_is_away_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in plain words for an outage; another a minute later, if Kafka answered between."""
    caplog.set_level("INFO", "muster.worker.kafka")
    link = Link(ClientSettings({"bootstrap.servers": "k:9092"}), "muster", "g", "m", lambda _: None)
    away = KafkaError(KafkaError._TRANSPORT, "k:9092/bootstrap: Connection refused")
    said = "Kafka at k:9092: no connection (k:9092/bootstrap: Connection refused); goes on trying"
    for _ in range(3):
        link._on_error(away)
    assert [each.getMessage() for each in caplog.records] == [said]
    monkeypatch.setattr(kafka_link, "SAY_AGAIN_S", 0.0)
    link._on_error(away)
    assert len(caplog.records) == 1
    monkeypatch.setattr(
        link._producer, "produce", lambda _topic, _record, done: done(None, SimpleNamespace())
    )
    link.send(Send(Leave(group=GroupId("g"), member=MemberId("m"), incarnation=1), 0, 0))
    link._on_error(away)
    assert len(caplog.records) == 2


def test_names_that_cannot_be_looked_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The record stays unread, and the next one tries again; the reading thread goes on."""
    config = {
        "bootstrap.servers": "127.0.0.1:1",
        "group.id": "muster.worker",
        "security.protocol": "ssl",
        "ssl.ca.location": str(tmp_path / "none"),
    }
    assert find_names(config, "muster.groups", "g", 1) == {}
    assert "the dictionary of g cannot be read" in caplog.text
