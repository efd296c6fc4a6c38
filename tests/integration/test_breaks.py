"""Each row of the table in `docs/operations.md`: its fault occurs, and its command reports it."""

from __future__ import annotations

import json
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from confluent_kafka import Producer
from support.kafka.brokers import Topics, new_topics
from support.state.snapshots import orders
from support.streams.job import Job
from support.suite.waiting import until

from muster import Worker
from muster.cli.main import main
from muster.doctor import cluster as doctor_cluster
from muster.kafka import cluster
from muster.protocol import codec
from muster.protocol.records import CoordinatorClaim, Record
from muster.protocol.topics import TopicKind

pytestmark = [pytest.mark.broker, pytest.mark.spark]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


class Row(NamedTuple):
    """A row of the page."""

    seen: str
    ask: str
    says: str
    cure: str


def rows() -> list[Row]:
    """The rows of the table."""
    table = PAGE.read_text().partition("<!-- breaks -->\n")[2].partition("<!-- /breaks -->")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return [
        Row(*(cell.strip("`") if n in (1, 2) else cell for n, cell in enumerate(r))) for r in cells
    ]


ROWS = rows()


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """Run a row's command against topics; return what it prints on both streams."""
    (tmp_path / "broken.json").write_text('[{"subtopology": "orders", "partition": 8}]')

    def run(line: str, address: str, prefix: str) -> str:
        capsys.readouterr()
        words = [str(tmp_path / w) if w.endswith(".json") else w for w in shlex.split(line)[1:]]
        main([*words, "--bootstrap-server", address, "--topic-prefix", prefix])
        return "".join(capsys.readouterr())

    return run


def says(row: Row, printed: str) -> bool:
    """Whether a printed line has the row's words; `…` stands for any text."""
    wanted = ".*".join(re.escape(part.strip()) for part in row.says.split("…"))
    return any(re.search(wanted, " ".join(line.split())) for line in printed.splitlines())


def of(word: str) -> Row:
    """The row whose symptom or command has this word."""
    (matching,) = [row for row in ROWS if word in f"{row.seen} {row.ask}"]
    return matching._replace(says=" ".join(matching.says.split()))


def publish(topics: Topics, kind: TopicKind, record: Record, at_ms: int) -> None:
    """Write a record with a given timestamp, as an older coordinator would have."""
    encoded = codec.encode(record)
    producer = Producer(topics.clients.producer())
    producer.produce(topics.name(kind), key=encoded.key, value=encoded.value, timestamp=at_ms)
    assert producer.flush(30) == 0


def test_eleven_rows() -> None:
    """The table has eleven rows, each with a `muster` command and a cure."""
    assert len(ROWS) == 11
    assert all(row.ask.startswith("muster ") and row.cure for row in ROWS)


def test_without_a_coordinator(ask, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands report a misspelt key, a bad file, no or two coordinators, and no broker."""
    topics = new_topics(bootstrap)
    for word in ("sesion", "broken.json", "in any group"):
        printed = ask(of(word).ask, bootstrap, topics.prefix)
        assert says(of(word), printed), printed
    now_ms = int(time.time() * 1000)
    for job, at_ms in (("old", now_ms - 3_000_000), ("new", now_ms - 2_000_000)):
        claim = CoordinatorClaim(job=job, host=f"{job}-host", version="1")
        publish(topics, TopicKind.COORDINATOR, claim, at_ms)
    older = replace(orders(), coordinator_epoch=0, generation_ms=now_ms)
    publish(topics, TopicKind.GROUPS, replace(older, coordinator_epoch=1), now_ms - 1_900_000)
    publish(topics, TopicKind.GROUPS, older, now_ms - 1_000)
    printed = ask(of("two coordinators").ask, bootstrap, topics.prefix)
    assert says(of("two coordinators"), printed), printed
    topics.close()
    monkeypatch.setattr(doctor_cluster, "TIMEOUT_S", 2)
    monkeypatch.setattr(cluster, "TIMEOUT_S", 2)
    printed = ask(of("no broker").ask, "127.0.0.1:1", topics.prefix)
    assert says(of("no broker"), printed), printed


@pytest.fixture
def frozen(job: Job) -> Iterator[Callable[[], None]]:
    """Freezes the job and its processes until the test ends."""
    family: list[psutil.Process] = []

    def freeze() -> None:
        driver = psutil.Process(job.pid)
        family.extend([driver, *driver.children(recursive=True)])
        for each in family:
            with suppress(psutil.NoSuchProcess):  # a Python worker that has ended
                each.send_signal(signal.SIGSTOP)

    yield freeze
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGCONT)


def test_with_a_coordinator(ask, frozen, job: Job, kafka: Topics, tmp_path: Path) -> None:
    """The commands name a wrong, deleted or idle group, a refused config, a hang, a frozen job."""
    address, prefix = kafka.address, kafka.prefix

    def await_message(word: str) -> None:
        row = of(word)
        last = [""]

        def is_told() -> bool:
            last[0] = ask(row.ask, address, prefix)
            return says(row, last[0])

        until(is_told, f"`{row.ask}` says: {row.says}", story=lambda: last[0] + job.tail())

    (tmp_path / "tasks.json").write_text('[{"subtopology": "orders", "partitions": 4}]')
    quick = "--config session.timeout.ms=6000 --config heartbeat.interval.ms=1000"
    ask(f"muster config set --group orders --tasks tasks.json {quick}", address, prefix)
    until(lambda: "Empty" in ask("muster groups list", address, prefix), "the group is there")
    await_message("not found")
    (tmp_path / "huge.json").write_text('[{"subtopology": "orders", "partitions": 300000}]')
    ask("muster config set --group orders --tasks huge.json", address, prefix)
    await_message("changes nothing")
    ask("muster config set --group orders --tasks tasks.json", address, prefix)
    row = of("changes nothing")
    until(lambda: not says(row, ask(row.ask, address, prefix)), "the group follows the next one")
    ask("muster config delete --group orders", address, prefix)
    await_message("deleted")
    ask(f"muster config set --group orders --tasks tasks.json {quick}", address, prefix)
    joined = {"bootstrap_servers": address, "topic_prefix": prefix}
    with Worker(group="order", member_id="W9", **joined):
        await_message("others work")
    go_on = threading.Event()
    with Worker(
        group="orders", member_id="W1", on_revoked=lambda *_: go_on.wait(60), **joined
    ) as first:

        def shown() -> dict:
            printed = ask("muster groups describe --group orders --format json", address, prefix)
            return json.loads(printed)

        until(lambda: first.assignment is not None and len(first.assignment.active) == 4, "all")
        with Worker(group="orders", member_id="W2", **joined):
            await_message("callback")
            assert shown()["owed"][0]["member"] == "W1"
            go_on.set()
            until(lambda: not shown()["owed"], "the group waits for no member")
            frozen()
            await_message("frozen")
