"""The observer: how it starts, and how it counts dead letters."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException
from support.streams.consumed import Consumed

from muster.kafka.settings import client_settings
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Origin
from muster.protocol.records import Rejected
from muster.streams.observability.group_stats import GroupStats
from muster.streams.observability.health import Health
from muster.streams.observability.metrics import Metrics
from muster.streams.observability.observer import Ends, Observer


class Hesitant(Observer):
    """An observer whose topics have no leaders at first; it reads nothing."""

    asked = 0

    def _asked(self) -> Ends:
        self.asked += 1
        if self.asked < 3:
            raise KafkaException(KafkaError(KafkaError._NOENT))
        return {("muster.groups", 0): 7}

    def _run(self) -> None:
        self._closing.wait()


def observer_of(metrics: Metrics) -> Hesitant:
    """An observer of one prefix."""
    return Hesitant(
        client_settings("127.0.0.1:1"),
        {"muster.groups": 1},
        ["muster"],
        metrics=metrics,
        fold=GroupStats(metrics, {"muster": 1}, 10),
        health=Health(60, lambda: True),
        read=lambda: None,
        on_late=lambda *_: None,
    )


def test_every_dead_letter_is_counted_under_its_reason() -> None:
    """Each known reason has a counter from the start; an unknown reason counts as `other`."""
    metrics = Metrics()
    observer = observer_of(metrics)

    def counts() -> dict[str, float]:
        (family,) = metrics.rejected.collect()
        return {s.labels["reason"]: s.value for s in family.samples}

    assert counts() == dict.fromkeys(map(str, DeadLetter), 0)
    for reason in (*DeadLetter, "OF_TOMORROW"):
        origin = Origin("muster.membership", 0, 1, 2)
        letter = Rejected(origin=origin, reason=reason, message="m")
        observer._take(Consumed("muster.rejected", letter))  # type: ignore[arg-type]  # as a Message would be
    assert counts() == dict.fromkeys([*map(str, DeadLetter), "other"], 1)


def test_a_partition_without_a_leader_is_waited_for() -> None:
    """The observer's start retries until the partitions have leaders."""
    observer = observer_of(Metrics())
    with observer as running:
        assert running is observer
        assert (observer.asked, observer._ends) == (3, {("muster.groups", 0): 7})
        assert observer.alive
    assert not observer.alive
