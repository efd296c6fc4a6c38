"""What the thread that reads a worker's records survives; no broker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from muster.kafka.client_settings import ClientSettings
from muster.worker import kafka_link
from muster.worker.groups_topic import find_names
from muster.worker.kafka_link import Link


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
