"""What kcat shows of muster's topics: keys and headers are readable text."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.kafka.mock_kafka import mock_kafka
from support.state.snapshots import orders

from muster.cli.main import main
from muster.protocol.codec import encode
from muster.protocol.events import GroupDeleted, Heartbeat, Join
from muster.protocol.keys import partition_of
from muster.protocol.records import MemberAssignment
from muster.protocol.tasks import TaskSet
from muster.protocol.topics import TopicKind, topic_name

AVRO = "content-type=application/avro"
KCAT = shutil.which("kcat") or shutil.which("kafkacat")
ASSIGNMENT = MemberAssignment(
    group="orders",
    member="W1",
    incarnation=11,
    coordinator_epoch=3,
    generation=7,
    epoch=7,
    revision=9,
    active=TaskSet.of(["0_0", "c1"]),
    session_timeout_ms=45_000,
    heartbeat_interval_ms=5_000,
)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A record of each kind on its topic."""
    records = {
        TopicKind.MEMBERSHIP: Join(group="orders", member="W1", incarnation=11),
        TopicKind.ASSIGNMENTS: ASSIGNMENT,
        TopicKind.GROUPS: orders(),
        TopicKind.CONFIG: GroupDeleted(group="orders"),
    }
    with mock_kafka() as address:
        producer = Producer({"bootstrap.servers": address, "log_level": 2})
        for kind, each in records.items():
            record = encode(each)
            place, headers = partition_of(record.key, 4), list(record.headers)
            producer.produce(topic_name(kind), record.value, record.key, place, headers=headers)
        beat = encode(Heartbeat(group="orders", member="W1", epoch=7, digest=1))
        producer.produce(topic_name(TopicKind.MEMBERSHIP), beat.value, beat.key, place)
        assert producer.flush(10) == 0
        yield address


def kcat(bootstrap: str, topic: str, form: str) -> bytes:
    """What kcat prints of a topic."""
    if KCAT is None:
        pytest.skip("needs kcat (Debian, Homebrew: kcat)")
    where = ["-b", bootstrap, "-t", topic, "-o", "beginning", "-e", "-q"]
    command = [KCAT, "-C", *where, "-f", form, "-X", "fetch.wait.max.ms=10"]
    return subprocess.run(command, capture_output=True, timeout=60, check=True).stdout


@pytest.mark.parametrize(
    ("topic", "shown"),
    [
        ("muster.membership", f"orders {AVRO},schema=muster.Join\norders \n"),
        ("muster.assignments", f"orders|W1 {AVRO},schema=muster.MemberAssignment,generation=7\n"),
        ("muster.groups", f"orders {AVRO},schema=muster.GroupSnapshot,generation=7\n"),
        ("muster.config", "orders \n"),
    ],
)
def test_keys_and_headers_are_readable(bootstrap: str, topic: str, shown: str) -> None:
    """Keys and headers are as in docs/cli.md; heartbeats and tombstones have only a key."""
    assert kcat(bootstrap, topic, "%k %h\n").decode() == shown


def test_a_value_goes_from_kcat_into_decode(
    bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`muster decode` reads the bytes of a value that kcat writes."""
    file = tmp_path / "value"
    file.write_bytes(kcat(bootstrap, "muster.assignments", "%s"))
    assert main(["decode", "--file", str(file)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["type"], shown["value"]["active"]) == ("MemberAssignment", ["0_0", "c1"])
