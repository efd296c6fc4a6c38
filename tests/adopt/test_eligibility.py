"""What is refused before anything is changed: one line each, with what can be done."""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest

from muster.adopt import eligibility, rights
from muster.adopt.eligibility import GovernableGroup
from muster.adopt.join_metadata import Kind
from muster.cli.main import main
from muster.errors import BadInput, NotFound
from muster.kafka import groups
from muster.kafka.groups import ConnectWorker, Description, Listed, Member
from muster.protocol.events import GroupConfig
from muster.protocol.ids import GroupId
from muster.protocol.settings import Settings
from muster.protocol.tasks import Connector
from muster.published.config_changes import Known

WORKER = ConnectWorker(2, "http://w1:8083/", 5, {}, {}, {}, "http://w1:8083/", 0)


def consumer(name: str, instance: str | None = None) -> Member:
    return Member(name, instance, name, "host", topics=("orders",))


THERE = {
    "orders": (groups.Kind.CLASSIC, "range", (consumer("A"), consumer("B"))),
    "empty": (groups.Kind.CLASSIC, "", ()),
    "new": (groups.Kind.CONSUMER, "uniform", (consumer("A"),)),
    "app": (groups.Kind.STREAMS, "", ()),
    "old-app": (groups.Kind.CLASSIC, "stream", (consumer("A"),)),
    "shared": (groups.Kind.OTHER, "", ()),
    "governed": (groups.Kind.CLASSIC, "range", (consumer("G", "muster-governor-7"),)),
    "cluster": (
        groups.Kind.CONNECT,
        "sessioned",
        (Member("connect-1", None, "c", "host", connect=WORKER),),
    ),
}


@pytest.fixture(autouse=True)
def kafka(monkeypatch):
    """Kafka has the groups of `THERE`, and this login has all rights."""

    @contextmanager
    def connected(clients):
        yield None

    def described(client, names):
        return [
            Description(name, kind, "Stable", assignor, None, members)
            for name in names
            for kind, assignor, members in [THERE[name]]
        ]

    rows = [Listed(name, kind, "Stable") for name, (kind, *_) in THERE.items()]
    monkeypatch.setattr(eligibility, "connected", connected)
    monkeypatch.setattr(rights, "check_groups", lambda *given: None)
    monkeypatch.setattr(rights, "check_topics", lambda *given: None)
    monkeypatch.setattr(
        "muster.cli.adopt.known_of_all",
        lambda clients, prefix, names, keys: dict.fromkeys(names, Known(None, {})),
    )
    monkeypatch.setattr(groups, "listed_with", lambda client: rows)
    monkeypatch.setattr(groups, "describe_with", described)


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ("ordres", r"Kafka has no group 'ordres', or .* there are: orders.*--fresh takes the seat"),
        ("empty", "group 'empty' has no members now; .*: try again. --fresh takes the seat"),
        ("new", r"KIP-848.*no member leads. muster shadow works.*group.protocol=classic"),
        ("app", r"KIP-1071.*no member leads"),
        ("old-app", "is of Kafka Streams: only a member with its topology"),
        ("shared", "no member assigns there"),
        ("governed", r"governed by muster-governor-7 already; --stand-by"),
    ],
)
def test_groups_that_are_refused(group, said, capsys):
    """The command says it in one line; its exit code tells bad input from failure."""
    assert main(["adopt", "--group", group]) in (1, 2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.search(said, lines[0]), lines[0]


def test_groups_that_can_be_governed():
    """Their kind, their members as muster calls them, and the protocol they share."""
    examined = eligibility.governable(None, ["orders", "cluster"], own="muster-governor-1")
    assert examined["orders"] == GovernableGroup(Kind.CONSUMER, ("A", "B"), "range", ("orders",))
    assert examined["cluster"] == GovernableGroup(Kind.CONNECT, ("w1:8083",), "sessioned")
    assert eligibility.governable(None, ["ordres"], fresh=Kind.CONSUMER)["ordres"].members == ()
    assert (
        eligibility.governable(None, ["governed"], own="muster-governor-7")["governed"].members
        == ()
    )


def test_a_configured_group_without_members(caplog):
    """One that muster knows may be empty, or gone from Kafka, for a moment; others are refused."""
    known = {"empty": Kind.CONSUMER, "gone": Kind.CONNECT, "orders": Kind.CONSUMER}
    with caplog.at_level(logging.INFO, logger="muster.adopt"):
        names = ["orders", "empty", "gone"]
        examined = eligibility.governable(None, names, configured=known)
    assert [len(each.members) for each in examined.values()] == [2, 0, 0]
    assert [each.kind for each in examined.values()] == [known[name] for name in names]
    assert [record.group for record in caplog.records] == ["empty", "gone"]
    with pytest.raises(NotFound, match="group 'empty' has no members now"):
        eligibility.governable(None, ["orders", "empty"], configured={"orders": Kind.CONSUMER})


def test_the_kind_of_a_configured_group():
    """Its assignor tells it, or the connectors that it declares."""
    config = GroupConfig(group=GroupId("g"), assignor="sticky", settings=Settings(), tasks=())
    assert eligibility.kind_of(config) is Kind.CONSUMER
    assert eligibility.kind_of(replace(config, assignor="static")) is Kind.CONNECT
    plugged = replace(config, assignor="own:Assignor", tasks=(Connector("sink", 2),))
    assert eligibility.kind_of(plugged) is Kind.CONNECT


def test_pins_and_weights_of_connect(capsys):
    """A worker is named by host and port, or by its REST address."""
    cluster = GovernableGroup(Kind.CONNECT, ("w1:8083", "w2:8083"), "sessioned")
    both = [("a", "w1:8083"), ("a-0", "http://w1:8083/"), ("a-0", "w2:8083")]
    pins = eligibility.pins_of(both, cluster, "cluster")
    assert pins == {"w1:8083": ("a", "a-0"), "w2:8083": ("a-0",)}
    with pytest.raises(BadInput, match=r"--pin a=w9: no such worker in 'cluster'.*--expect w9 if"):
        eligibility.pins_of([("a", "w9")], cluster, "cluster")
    assert eligibility.pins_of([("a", "w9")], cluster, "cluster", ["http://w9/"]) == {"w9": ("a",)}
    assert main(["adopt", "--group", "cluster", "--weight", "lag"]) == 2
    assert "--weight lag: Connect's tasks are not measured" in capsys.readouterr().err
    with pytest.raises(BadInput, match="--pin: group 'orders' has consumers"):
        eligibility.pins_of(
            [("a", "w1")], GovernableGroup(Kind.CONSUMER, ("A",), "range"), "orders"
        )
    with pytest.raises(BadInput, match="--expect w9: only pins name workers"):
        eligibility.pins_of([], cluster, "cluster", ["w9"])


def test_two_connect_clusters(monkeypatch, capsys):
    """One config topic cannot be of both: the workers of one would be given the other's jobs."""
    monkeypatch.setitem(THERE, "other", THERE["cluster"])
    rows = [Listed(name, kind, "Stable") for name, (kind, *_) in THERE.items()]
    monkeypatch.setattr(groups, "listed_with", lambda client: rows)
    assert main(["adopt", "--group", "cluster", "--group", "orders", "--group", "other"]) == 2
    line = capsys.readouterr().err
    assert "cluster, other are Connect clusters" in line
    assert "start a muster adopt for each" in line


def test_a_release_of_several_groups(monkeypatch, capsys):
    """A group that has no governor, or is not there, keeps no other from being handed back."""
    removed = []

    class Client:
        def remove_group_members(self, group, members):
            removed.append((group, [each.group_instance_id for each in members]))

    def described(client, names):
        [name] = names
        if name not in THERE:
            raise NotFound(f"Kafka has no group {name!r}")
        kind, assignor, members = THERE[name]
        return [Description(name, kind, "Stable", assignor, None, members)]

    monkeypatch.setattr("muster.cli.adopt.connected", lambda clients: nullcontext(Client()))
    monkeypatch.setattr("muster.cli.adopt.describe_with", described)
    words = [word for name in ("orders", "gone", "governed") for word in ("--group", name)]
    assert main(["adopt", *words, "--release"]) == 1
    assert removed == [("governed", ["muster-governor-7"])]
    written = capsys.readouterr()
    assert written.out == "governed: handed back by muster-governor-7\n"
    assert "no governor is in group 'orders'; Kafka has no group 'gone'" in written.err


def test_a_cluster_that_rebalances(monkeypatch, capsys):
    """Its workers' names are waited for; if they do not come, pins are refused and say why."""
    states = iter(["PreparingRebalance", "CompletingRebalance", "Stable"])

    def described(client, names):
        state = next(states, "PreparingRebalance")
        named = WORKER if state == "Stable" else None
        workers = (Member("connect-1", None, "c", "host", connect=named),)
        return [Description("cluster", groups.Kind.CONNECT, state, "sessioned", None, workers)]

    monkeypatch.setattr(groups, "describe_with", described)
    monkeypatch.setattr(groups, "PAUSE_S", 0.0)
    assert eligibility.governable(None, ["cluster"])["cluster"].members == ("w1:8083",)
    monkeypatch.setattr(groups, "PATIENCE_S", 0.0)
    assert main(["adopt", "--group", "cluster", "--pin", "a=w1:8083"]) == 2
    assert "rebalances, and Kafka does not say who its workers are" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--instance-id", "mine"], "begins with muster-governor"),
        (["--session-timeout-ms", "0"], "expected 1 or more"),
        (["--answer-timeout-ms", "7000"], "less than --session-timeout-ms"),
        (["--weight", "orders=0"], "expected a number above 0"),
        (["--weight", "lag", "--weight", "orders=2"], "one measure, or weights NAME=N"),
        (["--pin", "a"], "expected JOB=WORKER"),
    ],
)
def test_bad_options(words, said, capsys):
    """One line, exit code 2."""
    assert main(["adopt", "--group", "orders", *words]) == 2
    assert said in capsys.readouterr().err
