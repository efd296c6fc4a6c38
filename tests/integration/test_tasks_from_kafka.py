"""A group whose tasks are a topic's partitions, on a real Kafka and the real job."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from support.kafka.brokers import Topics
from support.streams.job import Job
from support.suite.waiting import until

from muster import Worker
from muster.cli.main import main

pytestmark = [pytest.mark.broker, pytest.mark.spark]
CONF = ["muster.discovery.interval.ms=500", "muster.discovery.grace.ms=1000"]


@pytest.fixture(scope="module")
def job(kafka: Topics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A coordinator that looks at topics twice a second."""
    with Job(kafka, tmp_path_factory.mktemp("job"), conf=CONF) as job:
        yield job.start()


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints; it must succeed."""
    assert main([*words]) == 0
    return capsys.readouterr().out


def test_a_topic_grows_and_goes(
    kafka: Topics, job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Configured without a file, its new partitions are owned, and the causes say why.

    Then the recorded life is folded again and gives the same, byte for byte.
    """
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(topic, 2)])[topic].result()
    where = ["--bootstrap-server", kafka.address, "--topic-prefix", kafka.prefix]
    group = ["--group", topic]
    printed(capsys, "config", "set", *group, "--assignor", "sticky", "--topic", topic, *where)
    held: dict[str, set[str]] = {"A": set(), "B": set()}

    def worker(name: str) -> Worker:
        return Worker(
            group=topic,
            member_id=name,
            bootstrap_servers=kafka.address,
            topic_prefix=kafka.prefix,
            on_assigned=lambda tasks, _: held[name].update(map(str, tasks)),
            on_revoked=lambda tasks, _: held[name].difference_update(map(str, tasks)),
        )

    def shared(count: int) -> bool:
        every = held["A"] | held["B"]
        return every == {f"{topic}_{n}" for n in range(count)} and bool(held["A"] and held["B"])

    with worker("A"), worker("B"):
        until(lambda: shared(2), "two partitions are owned", story=job.tail)
        admin.create_partitions([NewPartitions(topic, 6)])[topic].result()
        begun = time.monotonic()
        until(lambda: shared(6), "six partitions are owned", story=job.tail)
        print(f"new partitions are owned {time.monotonic() - begun:.1f} s after they were made")
        admin.delete_topics([topic])[topic].result()
        until(lambda: not (held["A"] or held["B"]), "no partition is owned", story=job.tail)
        assert f"{topic} (6) gone" in printed(capsys, "explain", *group, *where)

    document = json.loads(printed(capsys, "config", "show", *group, "--format", "json", *where))
    assert document["tasks"] == [{"topic": topic}]
    story = printed(capsys, "replay", *group, *where)
    assert f"{topic} grew 2 → 6" in story
    assert "equal, byte for byte" in story
