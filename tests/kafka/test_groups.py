"""Real groups of every kind, as `muster.kafka.groups` describes them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.kafka.members import Consumers
from support.suite.waiting import until

from muster.errors import NotFound
from muster.kafka import groups
from muster.kafka.client_settings import client_settings
from muster.kafka.groups import Kind, Partition
from muster.shadow import group_reader

STRATEGY = "partition.assignment.strategy"
ORDERS = {Partition("orders", number) for number in range(6)}


@pytest.mark.broker
@pytest.mark.parametrize(
    ("settings", "kind", "assignor"),
    [
        ({"partition.assignment.strategy": "range"}, Kind.CLASSIC, "range"),
        (
            {"partition.assignment.strategy": "cooperative-sticky"},
            Kind.CLASSIC,
            "cooperative-sticky",
        ),
        ({"group.protocol": "consumer"}, Kind.CONSUMER, "uniform"),
    ],
    ids=["eager", "cooperative", "KIP-848"],
)
def test_real_consumers(bootstrap, settings, kind, assignor):
    """Two consumers of each protocol: kind, assignor, racks, subscriptions, who has what."""
    clients = client_settings(bootstrap)
    with Consumers(bootstrap, {"orders": 6}) as fleet:
        topic = fleet.topic("orders")
        fleet.start({**settings, "client.rack": "r1", "group.instance.id": "W1"})
        fleet.start({**settings, "client.rack": "r2", "group.instance.id": "W2"})
        until(lambda: fleet.shared_by(2), 60)

        [described] = groups.describe(clients, [fleet.group])

        assert (described.kind, described.state, described.assignor) == (kind, "Stable", assignor)
        assert [m.name for m in described.members] == ["W1", "W2"]
        assert [m.rack for m in described.members] == ["r1", "r2"]
        assert {m.topics for m in described.members} == {(topic,)}
        assert [len(m.assigned) for m in described.members] == [3, 3]
        held = {part for m in described.members for part in m.assigned}
        assert held == {Partition(topic, number) for _, number in ORDERS}
        assert described.topics() == [topic]
        listed = {each.group: each.kind for each in groups.listed(clients)}
        assert listed[fleet.group] == kind


@pytest.mark.broker
def test_a_group_that_is_not_there(bootstrap):
    """The error names the group, and says what Kafka lists."""
    with pytest.raises(NotFound, match="Kafka has no group 'nothing-of-this-name'"):
        groups.describe(client_settings(bootstrap), ["nothing-of-this-name"])


def test_connect_worker():
    """A worker's bytes, read: what it runs is what it had, less what was taken, and what it got."""
    messages = pytest.importorskip("muster.kafka.messages")
    jobs = messages.ConnectWorkerAssignment

    def assignment(assigned, revoked=()):
        def rows(pairs):
            return [jobs.ConnectorTasks(connector=c, tasks=t) for c, t in pairs]

        return jobs(
            version=2,
            error=0,
            leader="W1",
            leader_url="http://w1:8083/",
            config_offset=7,
            assigned=rows(assigned),
            revoked=rows(revoked),
            delay_ms=300_000,
        ).encode()

    said = messages.ConnectWorkerMetadata(
        version=2,
        url="http://w2:8083/",
        config_offset=7,
        allocation=assignment([("files", [-1, 0, 1])]),
    ).encode()

    class Answer:
        group_id, group_state, protocol_data = "connect", "Stable", "sessioned"

        class Worker:
            member_id, group_instance_id, client_id = "W2-1", None, "worker"
            client_host = "/10.0.0.2"
            member_metadata = said
            member_assignment = assignment([("clicks", [0])], [("files", [0])])

        members = (Worker,)

    [member] = groups._READ[groups.Kind.CONNECT](Answer).members

    assert member.name == "w2:8083"
    assert member.connect.running == {"files": (-1, 0, 1)}
    assert member.connect.holds() == {("files", -1), ("files", 1), ("clicks", 0)}
    assert (member.connect.leader_url, member.connect.delay_ms) == ("http://w1:8083/", 300_000)


@pytest.mark.parametrize("kind", [groups.Kind.CLASSIC, groups.Kind.CONNECT])
@pytest.mark.parametrize("said", [b"\0", b'{"host": "a"}', b"\0\1strange", b"\xff" * 20])
def test_a_member_that_speaks_another_protocol(kind, said):
    """What it has is unknown; the group and its other members are described all the same."""
    pytest.importorskip("muster.kafka.messages")
    row = SimpleNamespace(
        group_id="orders",
        group_state="Stable",
        protocol_data="own",
        members=[
            SimpleNamespace(
                member_id=name,
                group_instance_id=None,
                client_id=name,
                client_host="/10.0.0.2",
                member_metadata=metadata,
                member_assignment=b"",
            )
            for name, metadata in (("A", said), ("B", b""))
        ],
    )

    described = groups._READ[kind](row)

    assert [(m.name, m.is_unreadable) for m in described.members] == [("A", True), ("B", False)]
    assert described.topics() == []
    assert "what A reads: its bytes are not of Kafka's protocol" in group_reader._hidden(described)
