"""Commands on all groups decode what they show; records that others replaced cost next to nothing.

The coordinator publishes a group's whole record with each of its changes, and Kafka compacts the
topic late, so most records on it were replaced.
"""

from __future__ import annotations

import json
from collections import Counter
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
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupGone, GroupSnapshot, GroupState, MemberState
from muster.published import snapshots
from muster.published.existing_group import missing
from muster.published.snapshots import configured, history, newest, newest_snapshots

AT_MS = 1_790_000_000_000
Output = pytest.CaptureFixture[str]


def settled(group: str, generation: int) -> GroupSnapshot:
    """A group in which no member owes a release."""
    members = tuple(replace(each, state=MemberState.STABLE) for each in orders().members)
    return replace(orders(generation), group=GroupId(group), members=members)


def records() -> Iterator[tuple[int, bytes, bytes | None, list[tuple[str, bytes]]]]:
    """(ms after `AT_MS`, key, value, headers) of what the topic has, by group.

    Of `calm` and `owes` five generations, with a member of `owes` that owes a release since the
    third; `gone` and `dead` were deleted; the newest record of `newer` is of another version.
    """
    bare = replace(settled("bare", 1), tasks=(), state=GroupState.NOT_READY)
    nothing = {"target": bare.target[:0], "holder": bare.holder[:0], "revoking": bare.revoking[:0]}
    pairs = ("target_standby", "standby", "standby_revoking", "target_learner", "learner", "lags")
    nothing |= {name: getattr(bare, name)[:0] for name in pairs}
    bare = replace(bare, destination=bare.destination[:0], lag_ms=bare.lag_ms[:0], **nothing)
    dead = replace(settled("dead", 3), state=GroupState.DEAD, members=())
    owes = (replace(orders(g), group=GroupId("owes")) for g in (3, 4, 5))
    for at_ms, record in enumerate(
        (
            *(settled("calm", g) for g in range(1, 6)),
            *(settled("owes", g) for g in (1, 2)),
            *owes,
            *(settled("gone", 1), GroupGone(group=GroupId("gone"))),
            *(settled("dead", 2), dead),
            *(settled("newer", 1), settled("newer", 2)),
            bare,
        )
    ):
        row = encode(record)
        yield 1_000 * at_ms, row.key, row.value, [*row.headers]
    yield 90_000, b"newer", b"\xc3\x01unknown!..", [("generation", b"3")]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A cluster with `records`."""
    with mock_kafka() as address:
        producer = Producer({"bootstrap.servers": address, "log_level": 2})
        for after_ms, key, value, headers in records():
            where = {"timestamp": AT_MS + after_ms, "headers": headers}
            producer.produce("muster.groups", value, key, **where)
        assert producer.flush(10) == 0
        yield address


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many whole records were decoded, by group."""
    counted: Counter[str] = Counter()
    real = snapshots.decode_record

    def counting(kind: object, key: bytes, value: bytes | None) -> object:
        counted[key.decode()] += 1
        return real(kind, key, value)

    monkeypatch.setattr(snapshots, "decode_record", counting)
    return counted


def test_a_list_decodes_no_whole_record(
    bootstrap: str, decoded: Counter[str], capsys: Output
) -> None:
    """The list needs an outline of each group; of an unreadable record the one before counts."""
    assert main(["groups", "list", "--bootstrap-server", bootstrap]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[:4] for line in out.splitlines()] == [
        ["GROUP", "ASSIGNMENT-STRATEGY", "STATE", "GROUP-EPOCH"],
        ["bare", "sticky", "Not", "Ready"],
        ["calm", "sticky", "Reconciling", "5"],
        ["newer", "sticky", "Reconciling", "2"],
        ["owes", "sticky", "Reconciling", "5"],
    ]
    assert "unknown schema" in err
    assert decoded == {"newer": 3}


def test_older_records_are_decoded_where_a_member_owes_a_release(
    bootstrap: str, decoded: Counter[str], capsys: Output
) -> None:
    """They show since when it does; of all other groups the newest record is enough."""
    assert main(["groups", "list", "--format", "json", "--bootstrap-server", bootstrap]) == 0
    shown = {row["group"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    (owed,) = shown["owes"]["owed"]
    assert (owed["member"], owed["asked_ms"]) == ("W1", AT_MS + 7_000)
    assert shown["calm"]["owed"] == []
    assert decoded == {"bare": 1, "calm": 1, "dead": 1, "newer": 4, "owes": 6}


def test_names_of_groups_need_no_whole_record(bootstrap: str, decoded: Counter[str]) -> None:
    """So does a hint that names the groups there are."""
    settings = client_settings(bootstrap)
    assert configured(settings, "muster") == ["calm", "newer", "owes"]
    assert "there are: calm, bare, newer, owes" in str(missing(settings, "muster", "calmm"))
    assert set(decoded) == {"newer"}


def test_the_doctor_decodes_outlines(bootstrap: str, decoded: Counter[str]) -> None:
    """It needs to know who wrote each record, and the newest one of each group."""
    facts = read_facts(client_settings(bootstrap), "muster")
    assert {group: each.generation for group, (each, _) in facts.groups.items()} == (
        {"bare": 1, "calm": 5, "dead": 3, "newer": 2, "owes": 5}
    )
    assert [holdup.asked_ms for holdup in facts.holdups["owes"]] == [AT_MS + 7_000]
    assert len(facts.writes) == 4 + 4 + 1 + 1  # each generation but a group's first
    assert decoded == {"bare": 1, "calm": 1, "dead": 1, "newer": 1, "owes": 6}


def test_the_newest_records_are_those_of_the_whole_history(bootstrap: str) -> None:
    """Both ways to read all groups give the same."""
    settings = client_settings(bootstrap)
    found = newest_snapshots(settings, "muster")
    whole = newest(history(settings, "muster", None))
    assert {g: encode(each) for g, each in found.items()} == (
        {g: encode(each) for g, each in whole.items()}
    )
