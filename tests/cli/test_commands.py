"""Commands against a real Kafka, called as the `muster` script calls them."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from support.kafka.brokers import Topics
from support.state.snapshots import orders

from muster.cli.main import main
from muster.kafka.reader import read
from muster.protocol import codec
from muster.protocol.events import Drain, GroupDeleted, Heartbeat, Origin
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupState
from muster.protocol.topics import TOPICS, TopicKind

pytestmark = pytest.mark.broker
Output = pytest.CaptureFixture[str]


def run(topics: Topics, *words: str) -> int:
    """Call a command on these topics."""
    kafka = ("--bootstrap-server", topics.address, "--topic-prefix", topics.prefix)
    return main([*words, *kafka])


def publish(topics: Topics, *records: object) -> None:
    """Write to the groups topic as the coordinator does."""
    for record in records:
        encoded = codec.encode(record)
        topics.write_raw(TopicKind.GROUPS, encoded.key, encoded.value)


@pytest.fixture
def fresh(bootstrap: str) -> Topics:
    """A prefix without topics."""
    return Topics(bootstrap, f"t{uuid.uuid4().hex[:8]}")


def test_topics_are_created_once(fresh: Topics, capsys: Output) -> None:
    """The first call creates every topic as the protocol requires; the second finds them OK."""
    assert run(fresh, "topics", "create", "--partitions", "2", "--format", "json") == 0
    made = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert made == [
        {
            "topic": topic.name(fresh.prefix),
            "status": "created",
            "partitions": topic.partitions or 2,
            "differences": [],
        }
        for topic in TOPICS
    ]
    assert run(fresh, "topics", "create") == 0
    shown = capsys.readouterr().out.splitlines()
    width = len(f"{fresh.prefix}.assignments")
    assert shown[0] == f"{'TOPIC':<{width}} PARTITIONS STATUS DIFFERENCES"
    assert [line.split() for line in shown[1:]] == [
        [topic.name(fresh.prefix), str(topic.partitions or 2), "ok", "-"] for topic in TOPICS
    ]


def test_topics_that_differ_are_named_and_left_alone(fresh: Topics, capsys: Output) -> None:
    """A topic with other settings is reported setting by setting and not changed."""
    name = f"{fresh.prefix}.config"
    client = AdminClient({"bootstrap.servers": fresh.address})
    client.create_topics([NewTopic(name, 3, 1, config={"cleanup.policy": "delete"})])[name].result(
        30
    )
    assert run(fresh, "topics", "create", "--partitions", "2", "--format", "json") == 1
    rows = {row["topic"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows.pop(name) == {
        "topic": name,
        "status": "differs",
        "partitions": 3,
        "differences": [
            "partitions is 3, expected 2",
            "cleanup.policy is delete, expected compact",
            "message.timestamp.type is CreateTime, expected LogAppendTime",
            "compression.type is producer, expected uncompressed",
            "max.compaction.lag.ms is 9223372036854775807, expected 21600000",
            "segment.bytes is 1073741824, expected 67108864",
        ],
    }
    assert {row["status"] for row in rows.values()} == {"created"}
    assert run(fresh, "topics", "create") == 1
    assert "cleanup.policy is delete" in capsys.readouterr().out
    more = NewPartitions(f"{fresh.prefix}.coordinator", 2)
    client.create_partitions([more])[f"{fresh.prefix}.coordinator"].result(30)
    run(fresh, "topics", "create")
    assert "partitions is 2, expected 1" in capsys.readouterr().out


def test_config_is_merged(kafka: Topics, capsys: Output, tmp_path: Path) -> None:
    """`config set` changes only what it names, and reads what `config show` prints."""
    tasks = [{"subtopology": "0", "partitions": 3, "stateful": True}]
    file = tmp_path / "group.json"
    file.write_text(json.dumps({"assignor": "sticky", "tasks": tasks}))
    group = ("--group", "merge", "--format", "json")
    assert run(kafka, "config", "show", *group) == 1
    assert "group 'merge' is not configured; see:" in capsys.readouterr().err
    assert run(kafka, "config", "set", *group, "--file", str(file)) == 0
    assert run(kafka, "config", "set", *group, "--config", "num.standby.replicas=1") == 0
    assert run(kafka, "config", "set", *group, "--config", "max.warmup.replicas=9") == 0
    ignored = "sticky does not use it (used by: high-availability)"
    printed = capsys.readouterr().err
    assert printed == f"muster config: max.warmup.replicas is ignored: {ignored}\n"
    assert run(kafka, "config", "set", *group, "--config", "max.warmup.replicas=") == 0
    assert run(kafka, "config", "set", *group, "--assignor", "learner") == 0
    capsys.readouterr()
    assert run(kafka, "config", "show", *group) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown) == {
        "assignor": "learner",
        "config": {"num.standby.replicas": 1},
        "tasks": tasks,
    }
    file.write_text(shown)
    assert run(kafka, "config", "set", "--group", "copy", "--file", str(file)) == 0
    assert run(kafka, "config", "show", "--group", "copy", "--format", "json") == 0
    assert capsys.readouterr().out.splitlines()[-1] == shown.strip()
    kafka.write(TopicKind.CONFIG, GroupDeleted(group=GroupId("copy")))
    assert run(kafka, "config", "show", "--group", "copy") == 1


def test_config_faults_write_nothing(kafka: Topics, capsys: Output) -> None:
    """Bad input gives exit code 2, and nothing is written."""
    before = kafka.end(TopicKind.CONFIG)
    group = ("--group", "faulty")
    assert run(kafka, "config", "set", *group, "--config", "no.such=1") == 2
    assert run(kafka, "config", "set", *group, "--assignor", "best") == 2
    assert run(kafka, "config", "show", *group, "--config", "group.max.size=1") == 2
    with pytest.raises(SystemExit) as end:
        run(kafka, "config", "set", "--group", "a|b")
    assert end.value.code == 2
    assert "'|'" in capsys.readouterr().err.splitlines()[-1]
    assert kafka.end(TopicKind.CONFIG) == before


def test_groups_listed_and_described(fresh: Topics, capsys: Output) -> None:
    """Each group's newest record is shown; heartbeats come from the membership topic."""
    assert run(fresh, "topics", "create", "--partitions", "2") == 0
    assert run(fresh, "groups", "list") == 0
    capsys.readouterr()
    stable = replace(orders(), group=GroupId("calm"), state=GroupState.STABLE, cause="W1 joined")
    publish(fresh, orders(6, "W1 joined"), stable, orders(7))
    fresh.write_raw(TopicKind.GROUPS, b"broken", b"not a record")
    beat = Heartbeat(group=GroupId("orders"), member=MemberId("W2"), epoch=6, digest=1)
    fresh.write(TopicKind.MEMBERSHIP, beat, replace(beat, group=GroupId("calm")))
    assert run(fresh, "groups", "list") == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "GROUP  ASSIGNMENT-STRATEGY STATE       GROUP-EPOCH #MEMBERS #TASKS",
        "calm   sticky              Stable      7           2        5",
        "orders sticky              Reconciling 7           2        5",
    ]
    assert f"{fresh.prefix}.groups-" in err
    assert "is skipped: " in err
    assert run(fresh, "groups", "describe", "--group", "orders", "--format", "json") == 0
    (shown,) = map(json.loads, capsys.readouterr().out.splitlines())
    heard = {member["id"]: member["last_heartbeat_ms"] for member in shown["members"]}
    assert heard["W1"] is None
    assert heard["W2"] > 1_700_000_000_000
    assert run(fresh, "groups", "describe", "--group", "orders", "--members") == 0
    (line,) = [row for row in capsys.readouterr().out.splitlines() if " W2 " in row]
    assert line.endswith(" ago") or "silent " in line
    assert run(fresh, "groups", "describe", "--tasks") == 0
    table, _, _ = capsys.readouterr().out.partition("\n\n")
    assert len(table.splitlines()) == 1 + 2 * 8
    assert run(fresh, "groups", "describe", "--group", "none") == 1
    printed = capsys.readouterr().err
    assert f"no group 'none' on {fresh.prefix}.groups; there are: calm, orders." in printed


def test_explain_tells_the_history(kafka: Topics, capsys: Output) -> None:
    """Generations print in order with their moves; --task and --member filter them."""
    calm = replace(orders(8, "W1 drained"), moves=())
    publish(kafka, orders(6, "W1 joined"), orders(7), orders(7), calm)
    group = ("explain", "--group", "orders", "--format", "json")
    assert run(kafka, *group, "--history", "--member", "W1") == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(g["generation"], g["cause"], [m["task"] for m in g["moves"]]) for g in shown] == [
        (6, "W1 joined", ["0_1"]),
        (7, "W2 joined", ["0_1"]),
        (8, "W1 drained", []),
    ]
    assert run(kafka, *group, "--history", "--task", "0_0") == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [[m["role"] for m in g["moves"]] for g in shown] == [["standby"], ["standby"]]
    assert run(kafka, "explain", "--group", "orders") == 0
    assert capsys.readouterr().out.splitlines()[1] == "no task moves"
    assert run(kafka, "explain", "--group", "none") == 1


def test_drain_writes_the_order(fresh: Topics, capsys: Output) -> None:
    """`drain` writes its event on the membership topic; --wait returns when the member is empty.

    The snapshot in Kafka is one whose coordinator has read the events.
    """
    assert run(fresh, "topics", "create", "--partitions", "1") == 0
    empty = replace(orders(), holder=np.array([2, 2, 2, 2, 2]), standby_revoking=orders().ready)
    read_by_then = ((fresh.name(TopicKind.MEMBERSHIP), 0, 1_000),)
    drained = tuple(replace(member, draining=True) for member in empty.members)
    empty = replace(empty, standby=orders().ready, members=drained, through=read_by_then)
    publish(fresh, empty)
    group = ("drain", "--group", "orders", "--member")
    assert run(fresh, *group, "W9") == 1
    said = "muster drain: no member 'W9' in group 'orders'; there are: W1, W2\n"
    assert capsys.readouterr().err == said
    assert run(fresh, *group, "W1", "--wait") == 0
    assert capsys.readouterr().out == "W1: draining, until it is undone with --cancel\nW1: empty\n"
    assert run(fresh, *group, "W2", "--wait", "--timeout-ms", "0") == 1
    assert capsys.readouterr().err == "muster drain: W2 still holds 6 tasks after 0 ms\n"
    assert run(fresh, *group, "W2", "--cancel", "--wait") == 2
    assert "--cancel undoes the drain: give one" in capsys.readouterr().err
    assert run(fresh, *group, "W2", "--cancel") == 0
    where = Origin("", 0, 0, 0)
    rows = read(fresh.clients, fresh.name(TopicKind.MEMBERSHIP))
    assert [codec.decode(TopicKind.MEMBERSHIP, row.key, row.value, where) for row in rows] == [
        Drain(group=GroupId("orders"), member=MemberId(member), on=on, origin=where)
        for member, on in [("W1", True), ("W2", True), ("W2", False)]
    ]


def test_what_cannot_be_reached_is_said(
    bootstrap: str, capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No broker, no topics, a setting that librdkafka refuses: the error names each."""
    monkeypatch.setattr("muster.kafka.cluster.TIMEOUT_S", 0.5)
    assert main(["groups", "list", "--bootstrap-server", "127.0.0.1:1"]) == 1
    assert "muster groups: Kafka at 127.0.0.1:1: no answer within 0.5 s" in capsys.readouterr().err
    nowhere = ("--bootstrap-server", bootstrap, "--topic-prefix", "nowhere")
    monkeypatch.setattr("muster.kafka.cluster.TIMEOUT_S", 15)
    assert main(["groups", "list", *nowhere]) == 1
    said = capsys.readouterr().err
    assert "no topic 'nowhere.groups'" in said
    assert said.endswith("make it with: muster topics create --topic-prefix nowhere\n")
    file = tmp_path / "client.properties"
    file.write_text("no.such.setting=1\n")
    assert main(["groups", "list", *nowhere, "--command-config", str(file)]) == 2
    assert "no.such.setting" in capsys.readouterr().err
