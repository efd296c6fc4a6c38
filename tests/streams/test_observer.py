"""The observer: how it starts, what it counts, and whom it asks after an election."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs
from support.kafka.fake_admin import FakeCluster, fake_cluster
from support.state.snapshots import orders
from support.streams.consumed import Consumed

from muster.kafka import lasting_admin
from muster.kafka.client_settings import client_settings
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Origin
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot, GroupState, Quarantine, Rejected
from muster.streams.errors import KafkaUnreachable
from muster.streams.observability.group_stats import GroupStats
from muster.streams.observability.health import Health
from muster.streams.observability.late_records import LateRecords
from muster.streams.observability.metrics import Metrics
from muster.streams.observability.observer import Observer, _since_ms
from muster.streams.observability.spark_reports import Ends


class Hesitant(Observer):
    """An observer whose topics have no leaders at first; it reads nothing."""

    asked = 0

    def _asked(self) -> tuple[Ends, KafkaException | None]:
        self.asked += 1
        if self.asked < 3:
            return {}, KafkaException(KafkaError(KafkaError._NOENT))
        return {("muster.groups", 0): 7}, None

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
        late=LateRecords({}, lambda *_: None),
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


@pytest.mark.parametrize("since", [b"9" * 5_000, b"x", "7", None])
def test_a_header_of_another_writer(since: object) -> None:
    """Python refuses to read a number of 5,000 digits; the observer's thread goes on."""
    headers = [("since", since)]
    message: Any = SimpleNamespace(headers=lambda: headers)
    assert _since_ms(message) is None
    headers[0] = ("since", b"7")
    assert _since_ms(message) == 7


def test_a_partition_without_a_leader_is_waited_for() -> None:
    """The observer's start retries until the partitions have leaders."""
    observer = observer_of(Metrics())
    with observer as running:
        assert running is observer
        assert (observer.asked, observer._ends) == (3, {("muster.groups", 0): 7})
        assert observer.alive
    assert not observer.alive


ENDS = {("muster.membership", 0): 10, ("muster.membership", 1): 20, ("muster.groups", 0): 5}


class Stuck:
    """An observer of a fake cluster, and the health of a query that has read up to `ENDS`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stall_s: float = 60) -> None:
        self.cluster: FakeCluster = fake_cluster(monkeypatch, ENDS)
        self.health = Health(stall_s, lambda: True)
        self.metrics = Metrics()
        self.observer = Observer(
            client_settings("127.0.0.1:1"),
            {"muster.membership": 2, "muster.groups": 1},
            ["muster"],
            metrics=self.metrics,
            fold=GroupStats(self.metrics, {"muster": 1}, 10),
            health=self.health,
            read=lambda: {("muster.membership", 0): 10, ("muster.membership", 1): 20},
            late=LateRecords({}, lambda *_: None),
            same_topics=self._same_topics,
        )
        self.doubts = 0
        self.kafka_away = False
        self.observer._ends = self.observer._all_asked()
        self.health.running(time.monotonic() - 1_000)

    def _same_topics(self) -> bool:
        self.doubts += 1
        if self.kafka_away:
            raise KafkaUnreachable("no answer")
        return True

    @property
    def is_well(self) -> bool:
        """Whether the health has not heard that Kafka is silent, a moment ago."""
        return self.health.well(time.monotonic()).fine


def test_a_client_that_cannot_be_made_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that cannot be read for a moment counts as Kafka's silence; nothing ends."""
    job = Stuck(monkeypatch)

    def unreadable(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "ssl.ca.location failed"))

    job.observer._admin.replace()
    with monkeypatch.context() as patch:
        patch.setattr(lasting_admin, "AdminClient", unreadable)
        job.observer._look()
    assert job.is_well
    job.cluster.ends |= {("muster.membership", 1): 23}
    job.observer._look()
    assert job.observer.rows_behind == 3


def test_a_partition_that_does_not_answer_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other partitions count, and the time counts as a stall: Kafka is not silent."""
    job = Stuck(monkeypatch)
    job.cluster.leaderless.add(("muster.membership", 0))
    job.cluster.ends |= {("muster.membership", 1): 23, ("muster.groups", 0): 7}
    job.observer._look()
    assert job.observer.rows_behind == 3
    labels = {"prefix": "muster", "kind": "groups"}
    (family,) = job.metrics.records.collect()
    [written] = [
        each.value
        for each in family.samples
        if each.labels.items() >= labels.items() and each.name.endswith("_total")
    ]
    assert written == 2
    assert not job.is_well
    job.cluster.ends["muster.membership", 0] = 14
    job.cluster.leaderless.clear()
    job.observer._look()
    assert job.observer.rows_behind == 7


def test_a_new_leader_is_asked_by_a_new_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an election of every partition one look finds Kafka silent, and the next one does not.

    librdkafka's admin client would send the old epoch, and be refused, for 15 minutes.
    """
    job = Stuck(monkeypatch)
    job.cluster.elect(*ENDS)
    job.cluster.ends["muster.membership", 0] = 14
    job.observer._look()
    assert job.observer.rows_behind == 0
    assert job.is_well
    job.health.running(time.monotonic() - 1_000)
    job.observer._look()
    assert job.observer.rows_behind == 4
    assert not job.is_well
    assert job.cluster.clients == 2
    job.observer._look()
    assert job.cluster.clients == 2


def test_every_partition_answers_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start does not go on without the end of a partition: its records would count twice."""
    job = Stuck(monkeypatch)
    job.cluster.leaderless.add(("muster.membership", 0))
    with pytest.raises(KafkaException):
        job.observer._all_asked()


def test_an_input_topic_that_ends_too_early_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked until Kafka answers whether the topics were made anew, and then no more."""
    job = Stuck(monkeypatch)
    job.observer._look()
    job.cluster.ends["muster.groups", 0] = 1  # no input
    job.observer._look()
    assert job.doubts == 0
    job.cluster.ends["muster.membership", 1] = 19
    job.kafka_away = True
    with capture_logs() as said:
        for _ in range(2):
            job.observer._look()
    assert (job.doubts, said) == (2, [])
    job.kafka_away = False
    with capture_logs() as said:
        for _ in range(3):
            job.observer._look()
    assert job.doubts == 3
    assert [each["topics"] for each in said] == [["muster.membership"]]
    job.cluster.ends["muster.membership", 0] = 0
    job.observer._look()
    assert job.doubts == 4


def test_what_was_there_before_the_start_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only new records are logged, and the groups that are quarantined when all old ones are read.

    A group that was quarantined, and is not any more, is not told.
    """
    aside = replace(orders(), quarantine=Quarantine(5, "SIGABRT"))
    free = replace(aside, group=GroupId("free"))
    gone = replace(orders(), state=GroupState.DEAD)
    monkeypatch.setattr(Observer, "_run", lambda self: self._closing.wait())
    job = Stuck(monkeypatch)
    with job.observer as observer:

        def logged(*records: GroupSnapshot, at: int) -> list[tuple[str, str]]:
            with capture_logs() as said:
                for record in records:
                    observer._take(Consumed("muster.groups", record, offset=at))  # type: ignore[arg-type]
            return [(each["event"], each["group"]) for each in said]

        def told_at_the_end() -> list[tuple[str, str]]:
            with capture_logs() as said:
                observer._reach(("muster.groups", 0))
            return [(each["event"], each["group"]) for each in said]

        assert logged(gone, aside, orders(), aside, at=3) == []
        assert logged(free, replace(free, quarantine=None), at=4) == []
        assert told_at_the_end() == [("group quarantined", "orders")]
        assert logged(aside, at=5) == [("group quarantined", "orders")]
        assert logged(gone, at=6) == [("group deleted", "orders")]
        assert told_at_the_end() == []
