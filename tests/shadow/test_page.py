"""`docs/shadow.md`: its commands, run against a real group, and the output that it shows."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from support.kafka.members import Consumers
from support.suite.waiting import until

from muster.cli.main import main

pytestmark = pytest.mark.broker
PAGE = (Path(__file__).parents[2] / "docs" / "shadow.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("muster ")]
SHOWN = re.search(r"^<!-- output: .*?-->\n```\n(.*?)^```$", PAGE, re.M | re.S)
PARTITIONS = {"orders": 5, "refunds": 5}
RANGE = {"partition.assignment.strategy": "range"}
BRIEF = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000}


@pytest.fixture(scope="module")
def fleet(bootstrap: str) -> Iterator[Consumers]:
    """The page's group: Kafka's range assignor gives W1 the larger half of both topics."""
    with Consumers(bootstrap, PARTITIONS) as fleet:
        producer = Producer({"bootstrap.servers": bootstrap})
        for topic in PARTITIONS:
            for number in range(900):
                place = min(number // 150, 4)  # partition 4 gets twice as many
                producer.produce(fleet.topic(topic), b"x" * 50, partition=place)
        producer.flush(30)
        first = fleet.start({**RANGE, "group.instance.id": "W1"})
        fleet.start({**RANGE, "group.instance.id": "W2"})
        until(lambda: fleet.shared_by(2), "two consumers share the topics")
        mine = [TopicPartition(part.topic, part.partition, 100) for part in first.assignment()]
        first.commit(offsets=mine, asynchronous=False)
        yield fleet


def words(command: str, fleet: Consumers) -> list[str]:
    """A command of the page for the real group."""
    given = shlex.split(command)[1:]
    changed = {"kafka:9092": fleet.address, "orders": fleet.group}
    return [changed.get(word, word) for word in given]


@pytest.mark.parametrize("command", [c for c in COMMANDS if "--watch" not in c])
def test_commands(command: str, fleet: Consumers, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command of the page ends well and speaks of the group."""
    assert main(words(command, fleet)) == 0
    assert fleet.group in capsys.readouterr().out


def test_the_output_of_the_page(fleet: Consumers, capsys: pytest.CaptureFixture[str]) -> None:
    """The page shows what the command prints; only bytes a second may differ."""
    assert SHOWN is not None
    assert main(words(COMMANDS[0], fleet)) == 0
    real = capsys.readouterr().out.replace(fleet.group, "orders")
    real = real.replace(f"-{fleet.group.removeprefix('group-')}", "")
    assert _rows(real) == _rows(SHOWN[1])


def _rows(text: str) -> list[list[str]]:
    """The words of each line, without figures of bytes."""
    rows, column = [], None
    for line in text.splitlines():
        cells = line.split()
        if "BYTES/S" in cells:
            column = cells.index("BYTES/S")
        elif not cells:
            column = None
        elif column is not None:
            cells[column] = "…"
        rows.append(["…" if "bytes" in line else cell for cell in cells])
    return rows


def test_json_has_the_keys_of_the_page(
    fleet: Consumers, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page names every key of a group, and of a member."""
    assert main(words(f"{COMMANDS[0]} --format json", fleet)) == 0
    document = json.loads(capsys.readouterr().out)
    table = PAGE.partition("| key of a group |")[2].partition("\n\n")[0]
    rows = [row.split(" | ") for row in table.splitlines()[2:]]
    keys = [key for row in rows for key in re.findall(r"`(\w+)`", row[0])]
    assert sorted(keys) == sorted(document)
    members = next(row[1] for row in rows if "`members`" in row[0])
    assert set(document["members"][0]) <= set(re.findall(r"`(\w+)`", members))


def test_a_watch(fleet: Consumers) -> None:
    """A third consumer joins and leaves: a line for each rebalance, with muster's moves beside."""
    [command] = [c for c in COMMANDS if "--watch" in c]
    given = [*words(command, fleet), "--format", "json"]
    with subprocess.Popen(
        [sys.executable, "-m", "muster.cli.main", *given], stdout=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout is not None
        try:
            assert json.loads(watch.stdout.readline())["group"] == fleet.group
            third = fleet.start({**RANGE, **BRIEF, "group.instance.id": "W3"})
            until(lambda: fleet.shared_by(3), "three consumers share the topics")
            event = json.loads(watch.stdout.readline())
            assert (event["joined"], event["left"]) == (["W3"], [])
            assert len(event["moved"]) > event["muster_moves"] == 3
        finally:
            watch.send_signal(signal.SIGINT)
            assert watch.wait(30) == 130
    fleet.stop(third)
    until(lambda: fleet.shared_by(2), "Kafka forgets the static member that left")


def test_bad_input(fleet: Consumers, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says what is wrong; nothing else."""
    where = ["--bootstrap-server", fleet.address]
    for given, code, said in (
        (["--group", "nothing-of-this-name"], 1, "Kafka has no group 'nothing-of-this-name'"),
        (["--group", fleet.group, "--remove-member", "W9"], 1, "no member 'W9' in the group"),
        (["--group", fleet.group, "--assignor", "best"], 2, "assignor 'best': expected"),
        (["--group", fleet.group, "--config", "no.such=1"], 2, "no.such"),
        (["--group", fleet.group, "--type", "connect"], 2, "--type needs --all"),
    ):
        assert main(["shadow", *given, *where]) == code
        out, error = capsys.readouterr()
        assert (out, len(error.splitlines())) == ("", 1)
        assert said in error
