"""Commands on groups whose records come in parts and with a dictionary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from support.kafka.mock_kafka import mock_kafka
from support.state.snapshots import orders

from muster.cli.main import main
from muster.protocol.codec import Encoded, encode
from muster.protocol.keys import partition_of
from muster.protocol.records import Dictionary
from muster.protocol.split_records import parts
from muster.protocol.taskset import UnitRef

Output = pytest.CaptureFixture[str]


def publish(bootstrap: str, topic: str, *records: Encoded) -> None:
    """Write records to the partitions that the coordinator uses."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    for record in records:
        place = partition_of(record.key, 4)
        producer.produce(topic, record.value, record.key, place, headers=list(record.headers))
    assert producer.flush(10) == 0


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A topic with a group and its dictionary in parts, another group, and a snapshot cut off."""
    units = tuple(UnitRef(f"connector-{i}-", 3) for i in range(60))
    old, new = (replace(orders(g, cause=f"cause {g}")) for g in (7, 8))
    half = parts(replace(orders(9), cause="never seen"), 400, turn=1)[:-1]
    other = replace(orders(3), group="other")
    records = [
        *parts(old, 300, turn=0),
        *parts(Dictionary(group="orders", units=units), 400),
        *parts(new, 300, turn=1),
        encode(other),
        *half,
    ]
    assert len(records) > 12
    with mock_kafka() as address:
        publish(address, "muster.groups", *records)
        yield address


def run(bootstrap: str, capsys: Output, *words: str) -> list[dict]:
    """Call a command and return its JSON lines."""
    assert main([*words, "--bootstrap-server", bootstrap]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return [json.loads(line) for line in out.splitlines()]


def test_groups_are_listed(bootstrap: str, capsys: Output) -> None:
    """`groups list` shows the newest whole snapshot; a snapshot that was cut off does not count."""
    listed = run(bootstrap, capsys, "groups", "list", "--format", "json")
    shown = [(each["group"], each["generation"], each["cause"]) for each in listed]
    assert shown == [("orders", 8, "cause 8"), ("other", 3, "W2 joined")]


def test_a_group_is_explained(bootstrap: str, capsys: Output) -> None:
    """`explain --history` shows every whole generation, those in parts included."""
    words = ("explain", "--group", "orders", "--history", "--format", "json")
    assert [each["generation"] for each in run(bootstrap, capsys, *words)] == [7, 8]


def test_a_group_is_decoded(bootstrap: str, capsys: Output) -> None:
    """`muster decode` prints split records as one and skips incomplete ones."""
    decoded = run(bootstrap, capsys, "decode", "--topic", "muster.groups", "--group", "orders")
    shown = [(each["type"], each["value"].get("cause")) for each in decoded]
    wanted = [("GroupSnapshot", "cause 7"), ("Dictionary", None), ("GroupSnapshot", "cause 8")]
    assert shown == wanted
