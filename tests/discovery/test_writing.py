"""Discovery while Kafka takes no records: what it goes on with, what it logs, when it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from muster.kafka.client_settings import client_settings
from muster.protocol.events import GroupConfig, TopicsFound
from muster.protocol.ids import GroupId
from muster.protocol.settings import parse_settings
from muster.protocol.sources import Source
from muster.streams import discovery_thread as module
from muster.streams.discovery_thread import Discovery, _Group

FOUND = TopicsFound(group=GroupId("g"), found=())


class Scripted:
    """librdkafka's producer: the first one has failed for good."""

    made: list[Scripted]

    def __init__(self, config: object, logger: object) -> None:
        self._is_broken = not self.made
        self.made.append(self)

    def list_topics(self, topic: str, timeout: float) -> object:
        """The topic has one partition."""
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: 0})})

    def produce(self, topic: str, **given: object) -> None:
        """Refuse, or write at once."""
        if self._is_broken:
            raise KafkaException(KafkaError(KafkaError._FATAL))
        message = SimpleNamespace(partition=lambda: 0, offset=lambda: 7)
        given["on_delivery"](None, message)  # type: ignore[operator]

    def flush(self, wait_s: float) -> int:
        """All is written."""
        return 0

    def purge(self) -> None:
        """As the client does after a fatal error."""
        if self._is_broken:
            raise KafkaException(KafkaError(KafkaError._FATAL))


def test_a_fatal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next look writes what this one could not."""
    Scripted.made = []
    monkeypatch.setattr(module, "Producer", Scripted)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    discovery, group = Discovery(client_settings("k:9092"), ["muster"]), _Group()
    discovery._producer = discovery._new_producer()
    discovery._write("muster", group, FOUND)
    assert (discovery.written, group.found) == (0, None)
    discovery._write("muster", group, FOUND)
    assert (discovery.written, group.found) == (1, FOUND)
    assert len(Scripted.made) == 2


def test_it_ends_between_two_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group may wait for a Kafka that does not answer, and there may be thousands."""
    discovery = Discovery(client_settings("k:9092"), ["muster"])
    for number in range(3):
        name = GroupId(f"g{number}")
        config = GroupConfig(
            group=name,
            assignor="sticky",
            settings=parse_settings({}, "sticky"),
            tasks=(),
            sources=(Source(topics=("orders",)),),
        )
        discovery._groups["muster", name] = _Group(config=config)
    looked_at: list[GroupId] = []

    def one(_: str, name: GroupId, *rest: object) -> None:
        looked_at.append(name)
        discovery._closing.set()

    monkeypatch.setattr(discovery, "_topics", lambda *_: {})
    monkeypatch.setattr(discovery, "_one", one)
    admin: Any = None
    discovery._look(admin)
    assert looked_at == ["g0"]


def test_a_fault_that_goes_on_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged again after a minute, not with every try."""
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    discovery = Discovery(client_settings("k:9092"), ["muster"])
    with capture_logs() as logged:
        for _ in range(3):
            discovery._complain("no right to write")
    assert [(line["event"], line["why"]) for line in logged] == [("discovery", "no right to write")]
