"""Groups of Kafka's as muster's: who holds what, how even that is, what a rebalance moved."""

from __future__ import annotations

import json
import socket
from threading import Thread

import pytest

from muster.cli import shadow
from muster.cli.main import main
from muster.discovery.measured_traffic import Load, Measure
from muster.discovery.topics import Topic
from muster.errors import BadInput, Unreachable
from muster.kafka.groups import (
    ConnectWorker,
    Description,
    Kind,
    Member,
    Partition,
    StreamsClient,
    StreamsUnit,
)
from muster.shadow.group_conversion import to_snapshot
from muster.shadow.group_reader import ShadowedGroup, connectors, without_governor
from muster.shadow.placement_figures import figures_of, present
from muster.shadow.rebalance_moves import rebalance
from muster.shadow.report import Shadow, as_json, as_text
from muster.whatif import planned


def consumer(name: str, *numbers: int, rack: str | None = None) -> Member:
    """A static consumer of `orders` with these partitions."""
    return Member(
        id=f"{name}-1",
        instance_id=name,
        client_id="app",
        host="10.0.0.1",
        rack=rack,
        topics=("orders",),
        assigned=frozenset(Partition("orders", number) for number in numbers),
    )


def consumers(*members: Member, partitions: int = 6, racks: bool = False) -> ShadowedGroup:
    """A group whose partition n carries n records a second; its replica is in rack r1 or r2."""
    homes = tuple((f"r{1 + number % 2}",) if racks else () for number in range(partitions))
    leaders = tuple(home[0] if home else None for home in homes)
    return ShadowedGroup(
        Description("shop", Kind.CLASSIC, "Stable", "range", None, members),
        {"orders": Topic("orders", "id", homes, leaders)},
        {("orders", n): Load(n, 100.0 * n, n, 1000) for n in range(partitions)},
        at_ms=1_000,
    )


def test_an_uneven_group():
    """W1 has four of six partitions: the figures say so, and muster moves one for balance."""
    shadowed = consumers(consumer("W1", 0, 1, 2, 3), consumer("W2", 4, 5))
    group = to_snapshot(shadowed)
    now = figures_of(shadowed, group, present(group))
    assert now.balance == {"tasks": 1.33, "bytes": 1.2, "records": 1.2, "lag": 1.2}
    assert (now.cross_rack, now.unowned) == (None, 0)
    plan = planned(group)
    assert [(m["from"], m["to"], m["reason"]) for m in plan["moves"]] == [
        ("W1", "W2", "balance 4/2 -> 3/3")
    ]


def test_weighed_by_records():
    """Three partitions each, but W1's carry four times as much: muster moves for the weight."""
    shadowed = consumers(consumer("W1", 3, 4, 5), consumer("W2", 0, 1, 2))
    group = to_snapshot(shadowed, measure=Measure.RECORDS)
    assert group.tasks[0].weights == (0, 1, 2, 3, 4, 5)
    plan = planned(group)
    placement = {name: held["active"] for name, held in plan["members"].items()}
    after = figures_of(shadowed, group, placement)
    now = figures_of(shadowed, group, present(group))
    assert (now.balance["tasks"], now.balance["records"]) == (1.0, 1.6)
    assert after.balance["records"] < 1.3
    with pytest.raises(BadInput, match="--weight lag: unknown for group 'shop'"):
        to_snapshot(ShadowedGroup(shadowed.description, shadowed.topics, {}), measure=Measure.LAG)


def test_one_group_that_cannot_be_weighed_ends_no_look_at_all_groups(monkeypatch, capsys):
    """An old group without members has nothing to weigh; a Streams application is told about."""
    old = ShadowedGroup(Description("old", Kind.CLASSIC, "Empty", "", None, ()))
    streams = ShadowedGroup(Description("app", Kind.STREAMS, "Empty", "", None, ()))
    shop = consumers(consumer("W1", 3, 4, 5), consumer("W2", 0, 1, 2))
    monkeypatch.setattr(shadow, "listed", lambda _: [each.description for each in (old, shop)])
    monkeypatch.setattr(shadow, "read_groups", lambda *_, **__: [old, streams, shop])
    options = ["--weight", "records", "--format", "json", "--bootstrap-server", "127.0.0.1:1"]
    assert main(["shadow", "--all", *options]) == 0
    out, err = capsys.readouterr()
    shown = {each["group"]: each for each in map(json.loads, out.splitlines())}
    assert [*shown] == ["old", "app", "shop"]
    assert shown["shop"]["after"]["balance"]["records"] < 1.3
    assert err == (
        "muster shadow: --weight records: unknown for group 'app': loads are those of partitions, "
        "not of the tasks of a streams group; each of its tasks counts as 1\n"
    )
    assert main(["shadow", "--group", "app", *options]) == 2


def test_racks():
    """Partitions read from afar are counted, and muster brings them home."""
    shadowed = consumers(
        consumer("W1", 0, 1, 2, rack="r1"), consumer("W2", 3, 4, 5, rack="r2"), racks=True
    )
    group = to_snapshot(shadowed)
    assert figures_of(shadowed, group, present(group)).cross_rack == 2
    plan = planned(group)
    assert {name: held["active"] for name, held in plan["members"].items()} == {
        "W1": ["orders_0", "orders_2", "orders_4"],
        "W2": ["orders_1", "orders_3", "orders_5"],
    }


def test_what_if_a_member_goes():
    """The same what-if as muster plan's."""
    shadowed = consumers(consumer("W1", 0, 1, 2), consumer("W2", 3, 4, 5))
    plan = planned(to_snapshot(shadowed), remove=["W2"])
    assert len(plan["members"]["W1"]["active"]) == 6


def test_a_streams_application():
    """Subtopologies are units; standbys and warm-ups are copies."""
    client = StreamsClient(
        "p1", {"zone": "a"}, frozenset({("0", 0)}), frozenset({("0", 1)}), frozenset(), {}, {}
    )
    other = StreamsClient(
        "p2", {}, frozenset({("0", 1)}), frozenset(), frozenset({("0", 0)}), {}, {}
    )
    members = tuple(
        Member(id=name, instance_id=None, client_id=name, host="h", streams=each)
        for name, each in (("A", client), ("B", other))
    )
    units = (StreamsUnit("0", ("orders",), ("store",)),)
    shadowed = ShadowedGroup(
        Description("app", Kind.STREAMS, "Stable", "", 4, members, units),
        {"orders": Topic("orders", "id", ((), ()), (None, None))},
    )
    group = to_snapshot(shadowed)
    assert [(u.name, u.partitions, u.stateful) for u in group.tasks] == [("0", 2, True)]
    assert present(group) == {"A": ["0_0"], "B": ["0_1"]}
    assert group.standby.tolist() == [[1, 0]]
    assert group.learner.tolist() == [[0, 1]]
    assert group.assignor == "high-availability"
    with pytest.raises(BadInput, match="--weight lag: unknown for group 'app': loads are those"):
        to_snapshot(shadowed, measure=Measure.LAG)


def worker(url: str, jobs: dict[str, tuple[int, ...]]) -> Member:
    """A Connect worker that runs these tasks; -1 is the connector itself."""
    connect = ConnectWorker(2, url, 7, jobs, {}, {}, "http://a:8083/", 0)
    return Member(id=f"m-{url}", instance_id=None, client_id="c", host="h", connect=connect)


def test_a_connect_cluster():
    """Connectors and tasks are those that run, or those that REST names."""
    members = (
        worker("http://a:8083/", {"files": (-1, 0, 1)}),
        worker("http://b:8083/", {"files": (2,)}),
    )
    shadowed = ShadowedGroup(
        Description("connect", Kind.CONNECT, "Stable", "sessioned", None, members)
    )
    group = to_snapshot(shadowed)
    assert [(unit.name, unit.tasks) for unit in group.tasks] == [("files", 3)]
    assert present(group) == {
        "a:8083": ["files", "files-0", "files-1"],
        "b:8083": ["files-2"],
    }
    more = to_snapshot(ShadowedGroup(shadowed.description, connectors={"files": 4, "clicks": 1}))
    assert [(unit.name, unit.tasks) for unit in more.tasks] == [("clicks", 1), ("files", 4)]


def test_an_address_that_is_not_connects():
    """A password is not shown; a port that is no number, or speaks no HTTP, gives one line."""
    with pytest.raises(BadInput, match="without a name and password") as refused:
        connectors("http://ann:secret@worker:8083")
    assert "secret" not in str(refused.value)
    with pytest.raises(Unreachable, match="nonnumeric port"):
        connectors("http://127.0.0.1:x")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as peer:
                peer.recv(1_000)
                peer.sendall(b"SSH-2.0-other\r\n")

        thread = Thread(target=answer)
        thread.start()
        with pytest.raises(Unreachable, match="SSH-2"):
            connectors(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def test_a_governed_group():
    """The governor is no member; the assignor says that muster decides."""
    governor = Member(id="g", instance_id="muster-governor-1", client_id="g", host="h")
    members = (consumer("W1", 0, 1), governor)
    given = Description("orders", Kind.CLASSIC, "Stable", "range", None, members)
    shown = without_governor(given)
    assert ([each.name for each in shown.members], shown.assignor) == (
        ["W1"],
        "muster adopt (range)",
    )
    assert without_governor(shown) is shown


def test_a_watched_rebalance():
    """The same state is no event; then owners that changed, and who came and went."""
    before, again = (to_snapshot(consumers(consumer("W1", *range(6)))) for _ in range(2))
    assert rebalance(before, again) is None
    after = to_snapshot(consumers(consumer("W1", 0, 1, 2), consumer("W2", 3, 4)))
    event = rebalance(before, after)
    assert event is not None
    assert (event["joined"], event["left"], event["unowned"]) == (["W2"], [], 1)
    assert event["moved"] == [
        {"task": "orders_3", "from": "W1", "to": "W2"},
        {"task": "orders_4", "from": "W1", "to": "W2"},
    ]


def test_what_is_printed():
    """The table has figures before and after; the object has the same."""
    shadowed = consumers(consumer("W1", 0, 1, 2, 3), consumer("W2", 4, 5))
    group = to_snapshot(shadowed)
    plan = planned(group)
    placement = {name: held["active"] for name, held in plan["members"].items()}
    now, after = figures_of(shadowed, group, present(group)), figures_of(shadowed, group, placement)
    shadow = Shadow(shadowed, group, now, plan, after)
    text = as_text(shadow)
    assert "shop  classic Stable range    2        6           0" in text
    assert ["most", "partitions", "of", "a", "member", "/", "fair", "share", "1.33", "1.0"] in [
        line.split() for line in text.splitlines()
    ]
    assert "muster (sticky) would move 1:" in text
    document = as_json(shadow)
    assert document["balance"]["tasks"] == 1.33
    assert document["after"]["balance"]["tasks"] == 1.0
    assert [m["id"] for m in document["members"]] == ["W1", "W2"]
    assert document["plan"]["assignor"] == "sticky"
