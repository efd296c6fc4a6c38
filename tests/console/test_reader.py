"""The reader's faults, with a consumer and looks at the topics that a test makes up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from muster.console import reader
from muster.console.reader import Reader
from muster.console.store import Store
from muster.errors import Unreachable
from muster.kafka.access_check import NoTopics
from muster.kafka.client_settings import client_settings

POLLS = 20
KNOWN = {"muster.groups": (1, "id")}


class Failure:
    """A message that says that no broker answers."""

    def error(self) -> KafkaError:
        """Which error it is."""
        return KafkaError(KafkaError._ALL_BROKERS_DOWN)


class QuietConsumer:
    """No broker answers its first poll; there are no records afterwards.

    Args:
        end: called at its last poll.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._polls = 0

    def poll(self, _: float) -> Failure | None:
        """The next message."""
        self._polls += 1
        if self._polls == POLLS:
            self._end()
        return Failure() if self._polls == 1 else None

    def consume(self, *_: object) -> list[Any]:
        """What else is there: nothing."""
        return []


@pytest.mark.parametrize("unread", [set(), {("muster.groups", 0)}])
def test_a_fault_ends_when_kafka_answers_a_look(
    monkeypatch: pytest.MonkeyPatch, unread: set[tuple[str, int]]
) -> None:
    """In a fleet that writes no records too, and long before the next look of a healthy reader."""
    monkeypatch.setattr(reader, "AGAIN_S", 0.0)
    store = Store(["muster"])
    follower = Reader(client_settings("localhost:9092"), store)
    follower._known = KNOWN
    faults: list[str] = []

    def look() -> dict[str, tuple[int, str]]:
        faults.append(store.fault)
        if len(faults) < 3:
            raise Unreachable("no answer")
        return KNOWN

    monkeypatch.setattr(follower, "_look", look)
    consumer: Any = QuietConsumer(follower._closing.set)
    follower._poll(consumer, unread)
    assert faults == ["Kafka at localhost:9092 does not answer"] * 3
    assert store.fault == ""


def test_a_topic_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka answers: what is missing, or what this login may not read, is the fault."""
    store = Store(["muster"])
    follower = Reader(client_settings("localhost:9092"), store)

    def look() -> dict[str, tuple[int, str]]:
        raise NoTopics("no topic muster.groups: muster topics create")

    monkeypatch.setattr(follower, "_look", look)
    assert not follower._has_changed()
    assert store.fault == "no topic muster.groups: muster topics create"


def test_a_fault_that_goes_on_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged again after a minute, not with every try; the pages show it all the time."""
    monkeypatch.setattr(reader, "AGAIN_S", 0.0)
    store = Store(["muster"])
    follower = Reader(client_settings("localhost:9092"), store)
    tries: list[str] = []

    def follow() -> None:
        tries.append(store.fault)
        store.fault = ""  # Kafka has described the topics
        if len(tries) == 5:
            follower._closing.set()
        raise NoTopics("no right to read muster.groups")

    monkeypatch.setattr(follower, "_follow", follow)
    with capture_logs() as logged:
        follower._run()
    assert tries == ["", *["no right to read muster.groups"] * 4]
    assert [line["why"] for line in logged] == ["no right to read muster.groups"]
