"""Measured weights of governed groups while one look at Kafka's metadata lacks a topic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.adopt import partitions
from muster.adopt.partitions import Partitions
from muster.discovery.measured_traffic import Measure
from muster.discovery.topics import Topic
from muster.kafka.client_settings import ClientSettings
from muster.protocol.tasks import Subtopology

ORDERS, AUDIT = Subtopology("orders", 2), Subtopology("audit", 2)
LOADS = {("orders", 0): 90.0, ("orders", 1): 30.0, ("audit", 0): 10.0, ("audit", 1): 10.0}
NAMES = ("audit", "orders")


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """Seconds of the monotonic clock; every partition's load is known."""
    now = [1_000.0]

    def measured(clients, admin, measure, places, group, now_ms):
        return {place: LOADS[place] for place in places}

    monkeypatch.setattr(partitions.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(partitions.measured_traffic, "by_measure", measured)
    return now


def test_weights_stay_while_a_topic_is_missing(clock):
    """They are relative to all partitions: without a topic all others would weigh more."""
    looking = Partitions(ClientSettings())
    looking.want("group", NAMES, lambda jobs: None, Measure.RECORDS)
    audit, orders = looking._weigh("group", NAMES, [AUDIT, ORDERS])
    assert audit.weights != orders.weights
    for _ in range(20):
        clock[0] += 2
        assert looking._weigh("group", NAMES, [AUDIT]) == [audit]
    assert looking._weigh("group", NAMES, [AUDIT, ORDERS]) == [audit, orders]
    clock[0] += 100
    assert looking._weigh("group", NAMES, [AUDIT]) == [audit], "another loss, another grace time"
    clock[0] += 61
    [alone] = looking._weigh("group", NAMES, [AUDIT])
    assert alone.weights == (1.0, 1.0)


def test_racks_stay_while_a_broker_is_away():
    """A rolling restart of Kafka changes no group's tasks."""
    looking = Partitions(ClientSettings())
    whole = Topic("orders", "id", (("r1", "r2"),), ("r1",))
    looking._keep({"orders"}, {"orders": whole})
    before = looking._units["orders"]
    assert before.source_racks == ((("r1", "r2"),),)
    restarts = replace(whole, replica_racks=(("r2",),), away=frozenset({0}))
    looking._keep({"orders"}, {"orders": restarts})
    assert looking._units["orders"] == before
    looking._keep({"orders"}, {})
    looking._keep({"orders"}, {"orders": restarts})
    assert looking._units["orders"] == before, "one look at Kafka's metadata may lack a topic"
    looking._keep({"orders"}, {"orders": replace(restarts, away=frozenset())})
    assert looking._units["orders"].source_racks == ((("r2",),),)
    looking._keep(set(), {})
    assert looking._units == {}


def test_a_topic_that_no_member_reads_any_more(clock):
    """It has not vanished: the others are measured at once."""
    looking = Partitions(ClientSettings())
    looking.want("group", NAMES, lambda jobs: None, Measure.RECORDS)
    looking._weigh("group", NAMES, [AUDIT, ORDERS])
    [alone] = looking._weigh("group", ("audit",), [AUDIT])
    assert alone.weights == (1.0, 1.0)
