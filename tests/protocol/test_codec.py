"""Events and records to bytes and back; invalid bytes raise DecodeError.

`fuzz.py` gives the readers damaged and random bytes.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.protocol import wire
from support.suite.examples import examples

from muster.protocol.codec import Encoded, decode, decode_record, encode
from muster.protocol.errors import DecodeError, EncodeError, UnknownRecord
from muster.protocol.events import GroupDeleted, Heartbeat, Tick
from muster.protocol.framing import PREFIX, write
from muster.protocol.heartbeat_columns import heartbeats
from muster.protocol.records import GroupGone, MemberGone, WakeUp
from muster.protocol.topics import TopicKind

quick = settings(max_examples=examples(60), deadline=None)


def again(kind: TopicKind, value: object) -> object:
    """Encode and decode an event."""
    encoded = encode(value)
    return decode(kind, encoded.key, encoded.value, wire.ORIGIN)


@quick
@given(wire.membership)
def test_membership_events_round_trip(event: object) -> None:
    """Every membership event reads back as written, compared whole."""
    assert again(TopicKind.MEMBERSHIP, event) == event


@quick
@given(
    st.one_of(
        wire.configs.map(lambda e: (TopicKind.CONFIG, e)),
        wire.topics_found.map(lambda e: (TopicKind.CONFIG, e)),
        wire.lag_reports.map(lambda e: (TopicKind.LAG, e)),
    )
)
def test_config_and_lag_events_round_trip(case: tuple) -> None:
    """Config and lag events read back as written; settings against the assignor's own defaults."""
    kind, event = case
    assert again(kind, event) == event


@quick
@given(
    st.one_of(
        wire.assignments.map(lambda r: (TopicKind.ASSIGNMENTS, r)),
        wire.wake_ups.map(lambda r: (TopicKind.CLOCK, r)),
        wire.rejected.map(lambda r: (TopicKind.REJECTED, r)),
        wire.claims.map(lambda r: (TopicKind.COORDINATOR, r)),
        wire.signs.map(lambda r: (TopicKind.CLOCK, r)),
    )
)
def test_records_round_trip(case: tuple) -> None:
    """Every small record reads back as written, compared whole."""
    kind, record = case
    encoded = encode(record)
    assert decode_record(kind, encoded.key, encoded.value) == record


@quick
@given(wire.snapshots())
def test_snapshots_round_trip(snapshot: object) -> None:
    """A group's snapshot reads back whole, arrays with their dtypes and shapes included."""
    encoded = encode(snapshot)
    decoded = decode_record(TopicKind.GROUPS, encoded.key, encoded.value)
    assert wire.plain(decoded) == wire.plain(snapshot)


def test_tombstones() -> None:
    """A missing value means what the topic's tombstones mean, and is written for it."""
    cases = [
        (TopicKind.ASSIGNMENTS, MemberGone(group="g", member="m")),
        (TopicKind.GROUPS, GroupGone(group="g")),
        (TopicKind.CLOCK, WakeUp(group="g", at_ms=None)),
    ]
    for kind, record in cases:
        encoded = encode(record)
        assert (encoded.value, decode_record(kind, encoded.key, None)) == (None, record)
    deleted = GroupDeleted(group="g", origin=wire.ORIGIN)
    assert encode(deleted) == Encoded(b"g", None, ())
    assert decode(TopicKind.CONFIG, b"g", None, wire.ORIGIN) == deleted


@pytest.mark.parametrize("kind", [TopicKind.MEMBERSHIP, TopicKind.LAG])
def test_tombstone_without_meaning(kind: TopicKind) -> None:
    """A tombstone on a topic of history is refused."""
    with pytest.raises(DecodeError, match="tombstone"):
        decode(kind, b"g", None, wire.ORIGIN)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (None, b"", "without a key"),
        (b"a|b", PREFIX["Tick"] + b"\x00", "group id alone"),
        (b"\xff", PREFIX["Tick"] + b"\x00", "not UTF-8"),
        (b"a\nb", PREFIX["Tick"] + b"\x00", "does not print"),
        (b"g" * 250, PREFIX["Tick"] + b"\x00", "250 characters"),
        (b"g", b"", "ends within its frame"),
        (b"g", b"\xc3", "ends within its frame"),
        (b"g", b"{}", "starts with 7b7d"),
        (b"g", PREFIX["Tick"], "ends too early"),
        (b"g", PREFIX["Tick"] + b"\x00\x00", "1 bytes behind the Tick"),
        (b"g", PREFIX["WakeUp"] + b"\x00\x00", "does not belong on membership"),
        (b"g", PREFIX["Drain"] + b"\x04\xff\xfe\x01\x00", "not a Drain"),
        (b"g", PREFIX["Drain"] + b"\xfe\xff\xff\xff\x0fab", "not a Drain"),
        (b"g", PREFIX["Drain"] + b"\x01ab", "not a Drain"),
        (b"g", write("Drain", {"member": ""}), "member id of 0 characters"),
        (b"g", write("Join", {"member": "m", "capacity": 0}), "capacity 0"),
        (b"g", write("Join", {"member": "m", "capacity": 2**31}), "capacity is 2147483648"),
        (b"g", write("Join", {"member": "m", "rebalance_timeout_ms": -1}), "timeout_ms is -1"),
        (b"g", write("Join", {"member": "m", "rebalance_timeout_ms": 2**40}), "timeout_ms is 1"),
        (b"g", write("Heartbeat", {"member": "m", "epoch": 2**31}), "epoch is 2147483648"),
        (
            b"g",
            write("Join", {"member": "m", "active": b"\x09", "units": []}),
            "active: task-set codec 9",
        ),
        (
            b"g",
            write(
                "Report",
                {
                    "member": "m",
                    "units": [{"label": "0_", "size": 2**31 - 1}],
                    "active": b"\x01\x80",
                },
            ),
            "complement",
        ),
        (
            b"g",
            write(
                "Report",
                {
                    "member": "m",
                    "units": [{"label": "0_", "size": 2**31 - 1}],
                    "active": b"\x01\x02\xff\xff\xff\xff\x07\x00\x00\x00",
                },
            ),
            "2147483647 gaps",
        ),
        (b"g", write("Join", {"member": "m", "units": [{"label": "0", "size": 1}]}), "label"),
    ],
)
def test_hostile_bytes(key: bytes | None, value: bytes, reason: str) -> None:
    """Each kind of broken membership record is refused with a reason that names the fault."""
    with pytest.raises(DecodeError, match=reason):
        decode(TopicKind.MEMBERSHIP, key, value, wire.ORIGIN)


def test_unknown_fingerprint() -> None:
    """A value with a valid frame and an unknown schema raises its own error."""
    with pytest.raises(UnknownRecord, match="0102030405060708"):
        decode(TopicKind.LAG, b"g", b"\xc3\x01" + bytes(range(1, 9)), wire.ORIGIN)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            {"settings": {"session.timeout": "1"}},
            "no setting 'session.timeout': did you mean session.timeout.ms?",
        ),
        ({"settings": {"session.timeout.ms": "soon"}}, "session.timeout.ms: 'soon'"),
        ({"tasks": [{"name": "0", "count": -1}]}, "-1 tasks"),
        ({"tasks": [{"name": "0", "count": 2**30}]}, "more than 16777216 tasks"),
        ({"tasks": [{"name": "0", "count": 1}] * 2}, "named once"),
        ({"tasks": [{"name": "", "count": 1}]}, "without a name"),
        ({"tasks": [{"name": "0", "count": 1, "weight": float("nan")}]}, "weight nan"),
        ({"tasks": [{"name": "0", "count": 2, "source_racks": [0]}]}, "1 source_racks for 2"),
        ({"tasks": [{"name": "0", "count": 1, "source_racks": [0]}]}, "racks that are not there"),
    ],
)
def test_invalid_configs_are_refused(row: dict, reason: str) -> None:
    """A config that contradicts itself or the settings table raises DecodeError with a reason."""
    with pytest.raises(DecodeError, match=reason):
        decode(TopicKind.CONFIG, b"g", write("GroupConfig", row), wire.ORIGIN)


@quick
@given(st.lists(st.one_of(wire.heartbeats, wire.ticks, wire.leaves), max_size=12))
def test_heartbeat_columns_agree_with_the_codec(events: list) -> None:
    """Columns of heartbeats equal the heartbeats decoded one by one."""
    values: list[bytes | None] = [encode(event).value for event in events]
    broken = [None, b"", PREFIX["Heartbeat"], encode(Tick(group="g")).value + b"\x00"]
    broken.append(write("Heartbeat", {"member": "m", "epoch": -(2**31) - 1}))
    columns = heartbeats(values + broken)
    rows = zip(
        columns.position.tolist(),
        columns.members,
        columns.epoch.tolist(),
        columns.digest.tolist(),
        strict=True,
    )
    expected = [
        (i, e.member, e.epoch, e.digest) for i, e in enumerate(events) if isinstance(e, Heartbeat)
    ]
    assert list(rows) == expected


def test_heartbeat_stays_small() -> None:
    """A heartbeat of a 22-character member takes at most 48 bytes, even at the largest epoch."""
    event = Heartbeat(group="g", member="m" * 22, epoch=2**31 - 1, digest=2**64 - 1)
    assert len(encode(event).value or b"") <= 48


@pytest.mark.parametrize("group", ["", "a|b", "a\x00", "x" * 250])
def test_ids_that_cannot_be_keys(group: str) -> None:
    """A group id that breaks the key grammar is refused when it is written."""
    with pytest.raises(EncodeError, match="group id"):
        encode(Tick(group=group))
