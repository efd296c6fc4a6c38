"""Topics that got more partitions: commands find a group's newest record in any partition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from support.kafka.mock_kafka import mock_kafka
from support.state.snapshots import orders

from muster.cli.main import main
from muster.kafka.client_settings import ClientSettings
from muster.kafka.reader import read
from muster.protocol.codec import Encoded, encode
from muster.protocol.events import Heartbeat
from muster.protocol.keys import partition_of
from muster.protocol.records import GroupGone

MINUTE_MS = 60_000
AT_MS = 1_790_000_000_000


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Each group has records in two partitions: the one its key had before, and the one it has now.

    The newest record of `moved` is in the new partition, that of `stale` in the old one. `deleted`
    ends with a tombstone, and `only` has all its records in an old partition.
    """
    with mock_kafka() as address:
        producer = Producer({"bootstrap.servers": address, "log_level": 2})

        def write(topic: str, record: Encoded, minute: int, *, old: bool) -> None:
            place = (partition_of(record.key, 4) + old) % 4
            at_ms = AT_MS + minute * MINUTE_MS
            producer.produce(topic, record.value, record.key, place, timestamp=at_ms)

        def snapshot(group: str, generation: int) -> Encoded:
            clock_ms = AT_MS + generation * MINUTE_MS
            return encode(replace(orders(generation), group=group, clock_ms=clock_ms))

        for group, old_last in (("moved", False), ("stale", True)):
            write("muster.groups", snapshot(group, 1), 1, old=not old_last)
            write("muster.groups", snapshot(group, 2), 2, old=old_last)
        write("muster.groups", snapshot("deleted", 1), 1, old=True)
        write("muster.groups", encode(GroupGone(group="deleted")), 2, old=False)
        write("muster.groups", snapshot("only", 3), 3, old=True)
        beat = Heartbeat(group="only", member="W1", epoch=7, digest=0)
        write("muster.membership", encode(beat), 3, old=True)
        assert producer.flush(10) == 0
        yield address


def run(bootstrap: str, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    """Call a command and return its JSON lines."""
    assert main([*words, "--format", "json", "--bootstrap-server", bootstrap]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_newest_record_of_each_group_counts(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`groups list` shows the newest record of each group, whichever partition holds it."""
    listed = run(bootstrap, capsys, "groups", "list")
    assert [(each["group"], each["generation"]) for each in listed] == [
        ("moved", 2),
        ("only", 3),
        ("stale", 2),
    ]


@pytest.mark.parametrize("group", ["moved", "stale"])
def test_one_group_is_looked_up(
    group: str, bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`explain --history` gives the generations in the order in which they were written."""
    words = ("explain", "--group", group, "--history")
    assert [each["generation"] for each in run(bootstrap, capsys, *words)] == [1, 2]


def test_what_a_member_writes_to_an_old_partition_is_found(bootstrap: str) -> None:
    """Reading one key finds its rows in every partition and leaves out other keys."""
    settings = ClientSettings({"bootstrap.servers": bootstrap})
    (row,) = read(settings, "muster.membership", key=b"only")
    assert (row.key, row.at_ms) == (b"only", AT_MS + 3 * MINUTE_MS)
    assert list(read(settings, "muster.membership", key=b"moved")) == []
