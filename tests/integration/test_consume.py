"""`docs/consume.md` as a stranger follows it: four processes share eight partitions."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers import Topics, create_topics
from support.spark import Job
from support.waiting import until

from muster.broker.kafka import EmbeddedKafka
from muster.cli.main import main

pytestmark = [pytest.mark.broker, pytest.mark.spark]
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "consume.md").read_text(encoding="utf-8")
PARTITIONS = 8
MESSAGES = 10


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    """A Kafka of its own, with the topics under their usual names and the page's topic."""
    with EmbeddedKafka() as broker:
        create_topics(broker.bootstrap_server, "muster")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_server})
        admin.create_topics([NewTopic("orders", PARTITIONS, 1)])["orders"].result(30)
        yield Topics(broker.bootstrap_server, "muster")


@pytest.fixture(scope="module")
def job(topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """The coordinator."""
    with Job(topics, tmp_path_factory.mktemp("job")) as job:
        yield job.start()


def committed(address: str) -> list[int]:
    """The offsets of the group, by partition."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "orders"})
    try:
        asked = [TopicPartition("orders", each) for each in range(PARTITIONS)]
        return [each.offset for each in consumer.committed(asked, timeout=30)]
    finally:
        consumer.close()


def produce(address: str, first: int) -> None:
    """So many messages to each partition, numbered on."""
    producer = Producer({"bootstrap.servers": address})
    for partition in range(PARTITIONS):
        for number in range(first, first + MESSAGES):
            producer.produce("orders", f"{number}", partition=partition)
    assert producer.flush(30) == 0


def test_four_processes_share_eight_partitions(
    job: Job, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each reads two; one is killed, others read on from its offsets, and nothing is missed."""
    address = topics.address
    (tasks,) = re.findall(r"echo '(.*)' > tasks.json", PAGE)
    (tmp_path / "tasks.json").write_text(tasks)
    (line,) = re.findall(r"^muster (config set .*)$", PAGE, re.MULTILINE)
    config = line.replace("tasks.json", str(tmp_path / "tasks.json")).split()
    # A killed process costs a session; the page has the default one.
    quick = ["--config", "session.timeout.ms=6000", "--config", "heartbeat.interval.ms=1000"]
    assert main([*config, *quick, "--bootstrap-server", address]) == 0
    produce(address, 0)
    outputs = [tmp_path / f"out{number}" for number in range(4)]
    with ExitStack() as stack:
        processes = []
        for out in outputs:
            file = stack.enter_context(out.open("w"))
            command = [sys.executable, str(ROOT / "examples" / "consume_topic.py"), "orders"]
            environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
            started = subprocess.Popen([*command, address], stdout=file, env=environment)
            stack.callback(started.wait, 60)
            stack.callback(started.kill)
            processes.append(started)

        def described() -> dict:
            capsys.readouterr()
            options = ["--group", "orders", "--format", "json", "--bootstrap-server", address]
            return json.loads(
                capsys.readouterr().out if main(["groups", "describe", *options]) == 0 else "{}"
            )

        def shares(wanted: list[int]) -> bool:
            group = described()
            found = sorted(len(member["active"]) for member in group.get("members", ()))
            return group.get("state") == "Stable" and found == wanted

        until(lambda: shares([2, 2, 2, 2]), "four have two each", story=job.tail)
        until(lambda: committed(address) == [MESSAGES] * PARTITIONS, "all is committed")
        processes[0].send_signal(signal.SIGKILL)
        produce(address, MESSAGES)
        until(lambda: shares([2, 3, 3]), "the other three have all", story=job.tail)
        until(lambda: committed(address) == [2 * MESSAGES] * PARTITIONS, "all is committed again")
        for process in processes[1:]:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(60) for process in processes[1:]] == [0, 0, 0]
    read: dict[str, list[int]] = {}
    for out in outputs:
        for text in out.read_text().splitlines():
            _, task, offset, _ = text.split()
            read.setdefault(task, []).append(int(offset))
    assert sorted(read) == [f"orders_{n}" for n in range(PARTITIONS)]
    for offsets in read.values():
        assert sorted(set(offsets)) == list(range(2 * MESSAGES))
