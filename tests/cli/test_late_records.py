"""Records of a superseded coordinator, and clocks that go back: what commands say about a group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from support.kafka.mock_kafka import mock_kafka
from support.state.snapshots import orders

from muster.cli.main import main
from muster.doctor.fact_reader import read_facts
from muster.kafka.client_settings import client_settings
from muster.protocol.codec import encode

AT_MS = 1_790_000_000_000


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Two groups of generations 7 and 8.

    After generation 8 of `late` the coordinator of epoch 3, which was frozen, writes generation 7
    again. Generation 8 of `back` has an earlier timestamp: the broker's clock was behind.
    """
    with mock_kafka() as address:
        producer = Producer({"bootstrap.servers": address, "log_level": 2})
        for group, generation, epoch, at_ms in (
            ("late", 7, 3, 1_000),
            ("late", 8, 9, 2_000),
            ("late", 7, 3, 3_000),
            ("back", 7, 3, 10_000),
            ("back", 8, 9, 9_500),
        ):
            record = replace(orders(generation), group=group, coordinator_epoch=epoch)
            row = encode(replace(record, clock_ms=AT_MS + at_ms))
            where = {"timestamp": AT_MS + at_ms, "headers": [*row.headers]}
            producer.produce("muster.groups", row.value, row.key, **where)
        assert producer.flush(10) == 0
        yield address


@pytest.mark.parametrize("group", ["late", "back"])
@pytest.mark.parametrize(
    "words", [("groups", "list"), ("groups", "describe"), ("explain",)], ids=" ".join
)
def test_every_command_shows_the_newest_generation(
    words: tuple[str, ...], group: str, bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the console and `muster drain` do; what the superseded one wrote does not count."""
    given = [*words, "--group", group, "--format", "json", "--bootstrap-server", bootstrap]
    assert main(given) == 0
    (shown,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert shown["generation"] == 8


def test_all_groups_at_once(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The list of all groups has the newest generations too."""
    assert main(["groups", "list", "--format", "json", "--bootstrap-server", bootstrap]) == 0
    rows = map(json.loads, capsys.readouterr().out.splitlines())
    assert {row["group"]: row["generation"] for row in rows} == {"late": 8, "back": 8}


def test_the_doctor_sees_who_wrote_late(bootstrap: str) -> None:
    """The late record says nothing about the group; it shows that its coordinator still writes."""
    facts = read_facts(client_settings(bootstrap), "muster")
    assert {group: each.generation for group, (each, _) in facts.groups.items()} == {
        "late": 8,
        "back": 8,
    }
    assert (AT_MS + 3_000, 3) in facts.writes
