"""What members say at JoinGroup and are answered at SyncGroup, as bytes of real clients."""

from __future__ import annotations

import pytest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from muster.adopt import join_metadata, sync_answers
from muster.adopt.join_metadata import KafkaMember, Kind
from muster.adopt.owned_and_free_tasks import Answer
from muster.kafka.messages import ConnectWorkerAssignment, ConnectWorkerMetadata
from muster.protocol.ids import Task
from muster.protocol.tasks import EMPTY, TaskSet

# Subscriptions as librdkafka 2.16 and older Go clients write them.
LIBRDKAFKA = bytes.fromhex(
    "0003" "00000001" "0006" "6f7264657273" "ffffffff"
    "00000001" "0006" "6f7264657273" "00000002" "00000000" "00000004" "00000007" "0002" "7231"
)  # fmt: skip
SHORT = bytes.fromhex("00010000000100066f726465727300000000")


def test_a_cooperative_consumer():
    """Its topics, what it owns since which generation, and its rack."""
    metadata_read = join_metadata.read(Kind.CONSUMER, "member-1", None, LIBRDKAFKA)
    assert metadata_read == KafkaMember(
        "member-1",
        "member-1",
        topics=("orders",),
        owned=TaskSet.of(["orders_0", "orders_4"]),
        generation=7,
        rack="r1",
    )


def test_version_1_without_the_fields_of_version_1():
    """Some clients call their bytes version 1 and end before the owned partitions."""
    metadata_read = join_metadata.read(Kind.CONSUMER, "member-1", "W1", SHORT)
    assert (metadata_read.name, metadata_read.topics, metadata_read.owned) == (
        "W1",
        ("orders",),
        EMPTY,
    )


def test_a_worker_of_connect():
    """Its name is its host and port; what it runs is in its metadata."""
    row = ConnectWorkerAssignment.ConnectorTasks
    running = ConnectWorkerAssignment(
        version=2,
        error=0,
        leader="w",
        leader_url="http://w1:8083/",
        config_offset=4,
        assigned=[row(connector="a", tasks=[-1, 0])],
        revoked=[],
        delay_ms=0,
    ).encode()
    metadata = ConnectWorkerMetadata(
        version=2, url="http://w1:8083/", config_offset=5, allocation=running
    ).encode()
    metadata_read = join_metadata.read(Kind.CONNECT, "connect-1", None, metadata)
    assert (metadata_read.name, metadata_read.url, metadata_read.config_offset) == (
        "w1:8083",
        "http://w1:8083/",
        5,
    )
    assert metadata_read.owned == TaskSet.of(["a", "a-0"])
    assert metadata_read.topics is None


def test_bytes_of_another_protocol():
    """The error names the member."""
    with pytest.raises(ValueError, match="member-9: not metadata of Kafka's consumer protocol"):
        join_metadata.read(Kind.CONSUMER, "member-9", None, b"\x00")


def test_names_that_muster_cannot_have():
    """Separators and control characters are replaced, long names cut."""
    assert join_metadata.printable("a|b\n") == "a_b_"
    assert len(join_metadata.printable("x" * 500)) == 128
    assert join_metadata.printable("") == "_"


def test_what_a_governor_offers():
    """Every protocol of ordinary clients; no topic, so that it is given nothing by others."""
    offers = dict(join_metadata.offers(Kind.CONSUMER, ("mine",)))
    assert list(offers) == [*join_metadata.CONSUMER_PROTOCOLS, "mine"]
    metadata_read = join_metadata.read(Kind.CONSUMER, "m", None, offers["range"])
    assert (metadata_read.topics, metadata_read.owned) == ((), EMPTY)
    assert list(dict(join_metadata.offers(Kind.CONNECT))) == ["sessioned", "compatible", "default"]


def test_an_answer_to_consumers():
    """Version 0, which every client reads; the governor gets nothing."""
    given = TaskSet.of(["orders_1", "orders_3", "bills_0"])
    there = [KafkaMember("id-1", "A", topics=("orders", "bills"))]
    written = sync_answers.consumers(there, {"A": Answer(given, given, EMPTY)}, "me")
    answer = ConsumerProtocolAssignment.decode(written["id-1"])
    rows = {row.topic: row.partitions for row in answer.assigned_partitions}
    assert rows == {"bills": [0], "orders": [1, 3]}
    assert ConsumerProtocolAssignment.decode(written["me"]).assigned_partitions == []


def test_an_answer_to_workers():
    """A real worker is named as the leader; what moves is stopped first."""
    there = [
        KafkaMember("id-1", "w1:1", url="http://w1:1/", config_offset=3),
        KafkaMember("id-2", "w2:1", url="http://w2:1/", config_offset=5),
    ]
    leader = sync_answers.leader_of(there, None, 4)
    assert leader == sync_answers.ConnectLeader("id-1", "http://w1:1/", 5)
    before = sync_answers.ConnectLeader("old", "http://w2:1/", 1)
    assert sync_answers.leader_of(there, before, 4) == sync_answers.ConnectLeader(
        "id-2", "http://w2:1/", 5
    )
    c, c0 = Task("c", -1, connector=True), Task("c", 0, connector=True)
    given = {
        "w1:1": Answer(TaskSet.of([c]), TaskSet.of([c]), EMPTY),
        "w2:1": Answer(EMPTY, EMPTY, TaskSet.of([c0])),
    }
    written = sync_answers.workers(there, given, "me", "sessioned", leader)
    one = ConnectWorkerAssignment.decode(written["id-1"])
    two = ConnectWorkerAssignment.decode(written["id-2"])
    assert [(r.connector, r.tasks) for r in one.assigned] == [("c", [-1])]
    assert [(r.connector, r.tasks) for r in two.revoked] == [("c", [0])]
    assert {(a.leader, a.leader_url, a.config_offset, a.error) for a in (one, two)} == {
        ("id-1", "http://w1:1/", 5, 0)
    }
    assert set(written) == {"id-1", "id-2", "me"}
    eager = ConnectWorkerAssignment.decode(sync_answers.worker("default", leader, [c], []))
    assert eager.version == 0
