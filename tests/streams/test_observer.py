"""The observer's start: what is written from then on is this job's."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from muster.clients import client_settings
from muster.streams.health import Health
from muster.streams.metrics import Metrics
from muster.streams.observer import Ends, Observer
from muster.streams.published import Fold


class Hesitant(Observer):
    """Its topics have no leaders at first, and it reads nothing."""

    asked = 0

    def _asked(self) -> Ends:
        self.asked += 1
        if self.asked < 3:
            raise KafkaException(KafkaError(KafkaError._NOENT))
        return {("muster.groups", 0): 7}

    def _run(self) -> None:
        self._closing.wait()


def test_a_partition_without_a_leader_is_waited_for() -> None:
    """Kafka does not answer twice: the start is a little later, that is all."""
    metrics = Metrics()
    observer = Hesitant(
        client_settings("127.0.0.1:1"),
        {"muster.groups": 1},
        ["muster"],
        metrics=metrics,
        fold=Fold(metrics, {"muster": 1}, 10),
        health=Health(60, lambda: True),
        read=lambda: None,
        on_late=lambda *_: None,
    )
    with observer as running:
        assert running is observer
        assert (observer.asked, observer._ends) == (3, {("muster.groups", 0): 7})
        assert observer.alive
    assert not observer.alive
