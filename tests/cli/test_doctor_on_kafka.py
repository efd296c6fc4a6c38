"""What the doctor says about a real Kafka with faults."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from support.kafka.brokers import Topics, create_topics, new_topics
from support.state.snapshots import orders
from support.state.story import config
from support.suite.waiting import until

from muster.cli.main import main
from muster.doctor import cluster as doctor_cluster
from muster.doctor import job as doctor_job
from muster.kafka.writer import append
from muster.protocol import codec
from muster.protocol.events import GroupConfig, Heartbeat, Join, Mark, Origin, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import (
    CoordinatorClaim,
    GroupGone,
    Record,
    Rejected,
    WakeUp,
)
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind

ORDERS = GroupId("orders")
VERSION = version("muster-kafka")


# ---------------------------------------------------------------- on a real Kafka

Examine = Callable[..., tuple[int, dict[tuple[str, str], list[dict]]]]


@pytest.fixture
def examine(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Examine:
    """Run the command; return its exit code and its findings by (check, subject)."""

    def run(prefix: str, *more: str) -> tuple[int, dict[tuple[str, str], list[dict]]]:
        command = ["doctor", "--bootstrap-server", bootstrap, "--topic-prefix", prefix]
        code = main([*command, "--format", "json", *more])
        levels_by_check: dict[tuple[str, str], list[dict]] = {}
        for line in capsys.readouterr().out.splitlines():
            each = json.loads(line)
            levels_by_check.setdefault((each["check"], each["subject"]), []).append(each)
        return code, levels_by_check

    return run


def publish(topics: Topics, kind: TopicKind, record: Record, at_ms: int | None = None) -> None:
    """Write a record as the coordinator would, with a timestamp if the topic allows one."""
    encoded = codec.encode(record)
    producer = Producer(topics.clients.producer())
    stamp = {} if at_ms is None else {"timestamp": at_ms}
    producer.produce(topics.name(kind), key=encoded.key, value=encoded.value, **stamp)
    assert producer.flush(30) == 0


@pytest.mark.broker
def test_a_new_cluster(examine: Examine, bootstrap: str) -> None:
    """Without topics each one is missing; with topics only the coordinator's claim is missing."""
    prefix = f"t{uuid.uuid4().hex[:8]}"
    code, findings = examine(prefix)
    assert code == 1
    action = f"muster topics create --topic-prefix {prefix}"
    assert findings["topic", f"{prefix}.groups"][0]["action"] == action
    assert findings["job", prefix][0]["level"] == "skipped"
    create_topics(bootstrap, prefix)

    def settled() -> bool:
        code, findings = examine(prefix)
        bad = [key for key, each in findings.items() if any(f["level"] == "fail" for f in each)]
        return code == 1 and bad == [("claim", prefix)]

    until(settled, "only the claim is missing")


@pytest.mark.broker
def test_a_topic_that_is_not_what_it_must_be(
    examine: Examine, bootstrap: str, kafka: Topics
) -> None:
    """A wrong cleanup.policy is a failure with its fix, and the exit code is 1."""
    topics = new_topics(bootstrap)
    name = topics.name(TopicKind.ASSIGNMENTS)
    change = ConfigResource(
        ResourceType.TOPIC,
        name,
        incremental_configs=[
            ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([change]).values():
        future.result(30)
    code, findings = examine(topics.prefix)
    topics.close()
    assert code == 1
    (finding,) = findings["topic", name]
    assert (finding["level"], finding["what"]) == (
        "fail",
        "cleanup.policy is delete, must be compact",
    )
    assert finding["action"].endswith(f"--entity-name {name} --add-config cleanup.policy=compact")


@pytest.mark.broker
def test_a_dead_job_then_a_dead_clock(examine: Examine, bootstrap: str) -> None:
    """An overdue wake-up is the clock's failure while no events follow, then the job's."""
    topics = new_topics(bootstrap)
    record = CoordinatorClaim(job="gone", host="somewhere", version=VERSION)
    publish(topics, TopicKind.COORDINATOR, record)
    publish(topics, TopicKind.GROUPS, replace(orders(), coordinator_epoch=0))
    late_ms = int(time.time() * 1000) - 100_000
    publish(topics, TopicKind.CLOCK, WakeUp(group=ORDERS, at_ms=late_ms, published=Mark(0, 0)))
    code, findings = examine(topics.prefix, "--stuck-s", "9999999999")
    assert code == 1
    assert [f["level"] for f in findings["clock", topics.prefix]] == ["fail"]
    assert [f["level"] for f in findings["job", topics.prefix]] == ["ok"]
    topics.write(TopicKind.MEMBERSHIP, Tick(group=ORDERS))
    beat = Heartbeat(group=ORDERS, member=MemberId("W1"), epoch=7, digest=1)
    topics.write(TopicKind.MEMBERSHIP, beat)
    _, findings = examine(topics.prefix, "--stuck-s", "9999999999")
    topics.close()
    assert ("clock", topics.prefix) not in findings
    (finding,) = findings["job", topics.prefix]
    assert (finding["level"], "job gone on somewhere" in finding["action"]) == ("fail", True)


@pytest.mark.broker
def test_a_job_that_ignores_joins(
    examine: Examine, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joins after the last published record mean that the job does not answer."""
    monkeypatch.setattr(doctor_job, "GRACE_MS", -60_000)  # events of this moment count as late
    topics = new_topics(bootstrap)
    record = CoordinatorClaim(job="deaf", host="somewhere", version=VERSION)
    publish(topics, TopicKind.COORDINATOR, record)
    for _ in range(2):
        join = Join(group=GroupId("new"), member=MemberId("W1"), incarnation=1)
        topics.write(TopicKind.MEMBERSHIP, join)
    code, findings = examine(topics.prefix)
    (finding,) = findings["job", topics.prefix]
    assert (code, finding["level"]) == (1, "fail")
    assert finding["what"].startswith("does not answer: joins of group new have waited for")
    gone = GroupGone(group=GroupId("new"))
    publish(topics, TopicKind.GROUPS, gone)
    code, findings = examine(topics.prefix)
    topics.close()
    assert [f["level"] for f in findings["job", topics.prefix]] == ["skipped"]


@pytest.mark.broker
def test_two_claims_and_a_stuck_group(examine: Examine, bootstrap: str) -> None:
    """The doctor names an older job that still writes, and what a stuck group waits for."""
    topics = new_topics(bootstrap)
    now_ms = int(time.time() * 1000)
    for job, at_ms in (("old", now_ms - 3_000_000), ("new", now_ms - 2_000_000)):
        record = CoordinatorClaim(job=job, host=f"{job}-host", version=VERSION)
        publish(topics, TopicKind.COORDINATOR, record, at_ms)
    snapshot = replace(orders(), coordinator_epoch=0, generation_ms=now_ms - 3_000_000)
    newer = replace(snapshot, coordinator_epoch=1)
    publish(topics, TopicKind.GROUPS, newer, now_ms - 1_900_000)
    publish(topics, TopicKind.GROUPS, snapshot, now_ms - 1_000)
    code, findings = examine(topics.prefix)
    topics.close()
    assert code == 1
    (two,) = findings["claim", topics.prefix]
    assert "job old on old-host still writes" in two["what"]
    said = [each["what"] for each in findings["group", "orders"]]
    assert any("waits for W1 to release tasks" in what for what in said), said


@pytest.mark.broker
def test_configurations_that_are_not_followed(examine: Examine, bootstrap: str) -> None:
    """The doctor reads the refusals of a group that runs and of one that does not exist yet."""
    topics = new_topics(bootstrap)
    followed = append(topics.clients, topics.name(TopicKind.CONFIG), of_tasks(ORDERS, 5))
    publish(topics, TopicKind.GROUPS, replace(orders(), through=(tuple(followed),)))
    fine = GroupId("fine")
    newest = append(topics.clients, topics.name(TopicKind.CONFIG), of_tasks(fine, 5))
    publish(topics, TopicKind.GROUPS, replace(orders(), group=fine, through=(tuple(newest),)))
    for group in (ORDERS, GroupId("new")):
        place = append(topics.clients, topics.name(TopicKind.CONFIG), of_tasks(group, 9))
        letter = Rejected(origin=Origin(*place, 0), reason="UNDECODABLE", message=f"{group}: no")
        publish(topics, TopicKind.REJECTED, letter)
    _, findings = examine(topics.prefix, "--stuck-s", "9999999999")
    topics.close()
    refused = {
        subject: each["what"]
        for (check, subject), all_of_it in findings.items()
        for each in all_of_it
        if check == "group" and "configuration" in each["what"]
    }
    assert refused.keys() == {"orders", "new"}
    assert "was refused: orders: no; it follows the one before" in refused["orders"]
    assert "was refused: new: no; there is no group yet" in refused["new"]


def of_tasks(group: GroupId, number: int) -> GroupConfig:
    """A configuration with so many tasks."""
    return replace(config(Subtopology("0", number)), group=group)


@pytest.mark.broker
def test_a_broker_that_is_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no broker answers, the command says so and ends with exit code 1."""
    monkeypatch.setattr(doctor_cluster, "TIMEOUT_S", 2)
    code = main(["doctor", "--bootstrap-server", "127.0.0.1:1"])
    assert code == 1
    assert "what to do:\n- check --bootstrap-server" in capsys.readouterr().out
