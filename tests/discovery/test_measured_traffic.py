"""Measured loads when a partition does not answer."""

from __future__ import annotations

import logging
import time

import pytest
from confluent_kafka import TopicPartition
from support.kafka.fake_admin import FakeAdmin, FakeCluster, fake_cluster

from muster.discovery import measured_traffic
from muster.discovery.measured_traffic import Measure
from muster.discovery.topics import Topic
from muster.errors import Unreachable
from muster.kafka.client_settings import client_settings
from muster.kafka.lasting_admin import LastingAdmin
from muster.protocol.events import GroupConfig
from muster.protocol.ids import GroupId
from muster.protocol.settings import parse_settings
from muster.protocol.sources import Source
from muster.streams.discovery_thread import Discovery, _Group

CLIENTS = client_settings("127.0.0.1:1")
ENDS = {("orders", 0): 6_000, ("orders", 1): 1_200}
RATES = {("orders", 0): 10.0, ("orders", 1): 2.0}
ORDERS = Topic("orders", "id", ((), ()), (None, None))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A topic that two clients write to."""
    return fake_cluster(monkeypatch, ENDS)


def rates(cluster: FakeCluster) -> dict[tuple[str, int], float]:
    """Records a second, of all partitions."""
    return measured_traffic.by_measure(
        CLIENTS, cluster.connect(), Measure.RECORDS, ENDS, "g", 600_000
    )


def test_a_partition_that_does_not_answer(cluster: FakeCluster) -> None:
    """Without one partition nothing is measured: its task would weigh as little as an idle one."""
    assert rates(cluster) == RATES
    cluster.leaderless.add(("orders", 1))
    with pytest.raises(Unreachable, match="1 of 2 partitions do not answer, as orders-1"):
        rates(cluster)


def test_a_partition_that_answers_one_question_only(cluster: FakeCluster) -> None:
    """A partition whose leader goes between two questions is left out: its rate is not 0."""

    class Losing(FakeAdmin):
        """Its cluster loses a leader after the first question."""

        def list_offsets(self, asked: dict[TopicPartition, object], **kw: object) -> dict:
            answers = super().list_offsets(asked, **kw)
            cluster.leaderless.add(("orders", 1))
            return answers

    loads = measured_traffic.measured(Losing(cluster, dict.fromkeys(ENDS, 0)), ENDS, 600_000)
    assert [*loads] == [("orders", 0)]


def test_discovery_measures_again_after_an_election(cluster: FakeCluster) -> None:
    """A refused measurement counts as none, and the next one asks with a new client."""
    discovery = Discovery(CLIENTS, ["muster"])
    admin = LastingAdmin({}, logging.getLogger("test"))
    source = Source(topics=("orders",), measure="records")

    def measured() -> tuple[dict[tuple[str, int], float] | None, list[str]]:
        faults: list[str] = []
        own = {"orders": ORDERS}
        loads = discovery._loads(admin, GroupId("g"), _Group(), source, own, faults)
        return loads, faults

    assert measured() == (RATES, [])
    cluster.elect(("orders", 1))
    loads, faults = measured()
    assert loads is None
    assert faults == ["records not measured: 1 of 2 partitions do not answer, as orders-1"]
    assert measured() == (RATES, [])


def test_a_clock_that_is_set_ends_neither_a_pause_nor_the_measuring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loads are measured again on time, and a topic's grace does not end at once.

    With the time of day, nothing was measured for the hour that a clock was set back, and a topic
    that Kafka did not describe for a moment was gone when the clock was set an hour ahead.
    """
    looks: list[tuple[int, bool]] = []
    clocks = {"monotonic_ns": 5_000_000_000, "time_ns": 10**18}
    for name in clocks:
        monkeypatch.setattr(time, name, lambda name=name: clocks[name])
    discovery = Discovery(CLIENTS, ["muster"])
    monkeypatch.setattr(discovery, "_topics", lambda *_: {"orders": ORDERS})
    monkeypatch.setattr(discovery, "_one", lambda *given: looks.append(given[-2:]))
    source = Source(topics=("orders",), measure="records")
    config = GroupConfig(
        group=GroupId("g"),
        assignor="sticky",
        settings=parse_settings({}, "sticky"),
        tasks=(),
        sources=(source,),
    )
    discovery._groups["muster", GroupId("g")] = _Group(config=config)
    for passed_ms, set_by_ms in ((0, 0), (29_000, -3_600_000), (1_000, 0), (1_000, 7_200_000)):
        clocks["monotonic_ns"] += passed_ms * 1_000_000
        clocks["time_ns"] += (passed_ms + set_by_ms) * 1_000_000
        discovery._look(LastingAdmin({}, logging.getLogger("test")))
    assert looks == [(5_000, True), (34_000, False), (35_000, True), (36_000, False)]


def test_the_lags_of_two_sources_of_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is smoothed over its own looks: a lag that jumps changes by 30 % of it at a look."""
    jumps = iter([100.0, 7.0, 0.0, 7.0])
    monkeypatch.setattr(measured_traffic, "by_measure", lambda *given: {given[3][0]: next(jumps)})
    discovery, group = Discovery(CLIENTS, ["muster"]), _Group()
    admin = LastingAdmin({}, logging.getLogger())
    monkeypatch.setattr(LastingAdmin, "client", None)
    topics = [Topic(name, "id", ((),), (None,)) for name in ("orders", "audit")]
    lags = [
        discovery._loads(
            admin,
            GroupId("g"),
            group,
            Source(topics=(topic.name,), measure="lag"),
            {topic.name: topic},
            [],
        )
        for topic in topics * 2
    ]
    assert lags[2:] == [{("orders", 0): 70.0}, {("audit", 0): 7.0}]
