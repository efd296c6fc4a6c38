"""Events and records to bytes and back; whatever is wrong with bytes is a DecodeError."""

from __future__ import annotations

import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import wire

from muster.protocol.codec import Encoded, decode, decode_record, encode
from muster.protocol.errors import DecodeError, EncodeError, UnknownRecord
from muster.protocol.events import GroupConfig, GroupDeleted, Heartbeat, Tick
from muster.protocol.framing import OWN, PREFIX, Schemas, pack, write
from muster.protocol.heartbeats import heartbeats
from muster.protocol.records import GroupGone, MemberGone, Rejected, WakeUp
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector
from muster.protocol.topics import RECORD_BYTES_MAX, TopicKind

quick = settings(max_examples=60, deadline=None)


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
    found = decode_record(TopicKind.GROUPS, encoded.key, encoded.value)
    assert wire.plain(found) == wire.plain(snapshot)


def test_tombstones() -> None:
    """A missing value means what the topic's tombstones mean, and is written as such."""
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
    """A well-framed value of an unknown schema is told apart from garbage."""
    with pytest.raises(UnknownRecord, match="0102030405060708"):
        decode(TopicKind.LAG, b"g", b"\xc3\x01" + bytes(range(1, 9)), wire.ORIGIN)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"settings": {"session.timeout": "1"}}, "session.timeout: '1' is not accepted"),
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
def test_config_that_cannot_be(row: dict, reason: str) -> None:
    """A config that contradicts itself or the settings table is a DecodeError that says how."""
    with pytest.raises(DecodeError, match=reason):
        decode(TopicKind.CONFIG, b"g", write("GroupConfig", row), wire.ORIGIN)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(OWN)), st.binary(max_size=60), st.sampled_from(TopicKind))
def test_any_bytes_behind_a_frame(name: str, body: bytes, kind: TopicKind) -> None:
    """Random bodies behind every known frame decode or raise DecodeError, nothing else."""
    for read in (
        lambda: decode(kind, b"g", PREFIX[name] + body, wire.ORIGIN),
        lambda: decode_record(kind, b"g|m", PREFIX[name] + body),
    ):
        try:
            read()
        except DecodeError:
            continue


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_records(data: st.DataObject) -> None:
    """A flipped, cut or repeated stretch of a good value decodes or raises DecodeError."""
    event = data.draw(st.one_of(wire.joins, wire.reports, wire.snapshots(), wire.assignments))
    encoded = encode(event)
    value = bytearray(encoded.value or b"")
    at = data.draw(st.integers(10, len(value)))
    value[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    for kind in TopicKind:
        for read in (
            lambda kind=kind: decode(kind, b"g", bytes(value), wire.ORIGIN),
            lambda kind=kind: decode_record(kind, encoded.key, bytes(value)),
        ):
            try:
                read()
            except DecodeError:
                continue


@quick
@given(st.lists(st.one_of(wire.heartbeats, wire.ticks, wire.leaves), max_size=12))
def test_heartbeat_columns_agree_with_the_codec(events: list) -> None:
    """Reading heartbeats into columns gives what decoding each alone gives."""
    values: list[bytes | None] = [encode(event).value for event in events]
    broken = [None, b"", PREFIX["Heartbeat"], encode(Tick(group="g")).value + b"\x00"]
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
    assert sorted([*columns.others, *columns.position.tolist()]) == list(range(len(values) + 4))


def test_heartbeat_stays_small() -> None:
    """A heartbeat of a 22-character member takes at most 48 bytes, at the largest epoch too."""
    event = Heartbeat(group="g", member="m" * 22, epoch=2**31 - 1, digest=2**64 - 1)
    assert len(encode(event).value or b"") <= 48


@pytest.mark.parametrize("group", ["", "a|b", "a\x00", "x" * 250])
def test_ids_that_cannot_be_keys(group: str) -> None:
    """A group id that would break the key grammar is refused when it is written."""
    with pytest.raises(EncodeError, match="group id"):
        encode(Tick(group=group))


@pytest.mark.parametrize(
    ("kind", "key", "value", "reason"),
    [
        (TopicKind.ASSIGNMENTS, b"g", PREFIX["Tick"] + b"\x00", "does not belong"),
        (TopicKind.ASSIGNMENTS, b"g", write("MemberAssignment", {}), "names no member"),
        (TopicKind.ASSIGNMENTS, b"g", None, "tombstone"),
        (TopicKind.REJECTED, b"g", None, "tombstone"),
        (TopicKind.CLOCK, b"g||a1", write("WakeUp", {}), "joined first"),
        (TopicKind.GROUPS, b"g", write("GroupSnapshot", {"state": "Odd"}), "group state 'Odd'"),
        (TopicKind.GROUPS, b"g", write("GroupSnapshot", {}), "another codec"),
        (
            TopicKind.GROUPS,
            b"g",
            write("GroupSnapshot", {"target": b"\x01\x01"}),
            "target: bytes behind the owner vector",
        ),
    ],
)
def test_records_that_cannot_be(
    kind: TopicKind, key: bytes, value: bytes | None, reason: str
) -> None:
    """Records on the wrong topic, under the wrong key, or against themselves are refused."""
    with pytest.raises(DecodeError, match=reason):
        decode_record(kind, key, value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda row: row["members"].update(incarnations=b"123"), "differ in length"),
        (lambda row: row["members"].update(ids=["a|b"]), "member id 'a.b'"),
        (lambda row: row["members"].update(profile=b"\x00" + b"\x09" + bytes(7)), "profile"),
        (lambda row: row["moves"].append({"task": "0_0", "role": 9, "reason": ""}), "role 9"),
        (lambda row: row.update(lag_ms=b"\x00"), "no 0 numbers"),
    ],
)
def test_snapshots_that_contradict_themselves(change: object, reason: str) -> None:
    """Columns of unequal length, a profile or role that is not there: refused."""
    snapshot = wire.settled_group()
    encoded = encode(snapshot)
    _, row = Schemas().read(encoded.value)
    change(row)
    with pytest.raises(DecodeError, match=reason):
        decode_record(TopicKind.GROUPS, b"g", write("GroupSnapshot", row))


@pytest.mark.parametrize(
    ("lag", "reason"),
    [
        ({"unit": 1, "position": 0}, "lag in unit 1"),
        ({"unit": 0, "position": 5}, "lag at position 5"),
        ({"unit": 0, "position": 0, "offsets": -1}, "offsets is -1"),
    ],
)
def test_lags_that_cannot_be(lag: dict, reason: str) -> None:
    """A lag of a task outside the record's units, or below nothing, is refused."""
    row = {"member": "m", "units": [{"label": "0_", "size": 5}], "lags": [lag]}
    with pytest.raises(DecodeError, match=reason):
        decode(TopicKind.LAG, b"g", write("LagReport", row), wire.ORIGIN)


@pytest.mark.parametrize(
    ("units", "reason"),
    [
        ([{"label": "0_", "size": -1}], "size -1"),
        ([{"label": "0_", "size": 1}] * 2, "named twice"),
        ([{"label": "_", "size": 1}], "label '_'"),
    ],
)
def test_units_that_cannot_be(units: list, reason: str) -> None:
    """Unit lists with a negative size, a name twice or no name are refused."""
    with pytest.raises(DecodeError, match=reason):
        decode(
            TopicKind.LAG, b"g", write("LagReport", {"member": "m", "units": units}), wire.ORIGIN
        )


def test_what_cannot_be_written() -> None:
    """Numbers that do not fit the wire are refused when they are written."""
    with pytest.raises(EncodeError, match="unsigned 64-bit"):
        encode(Heartbeat(group="g", member="m", epoch=1, digest=-1))
    with pytest.raises(EncodeError, match="cannot write a Heartbeat"):
        encode(Heartbeat(group="g", member="m", epoch=None, digest=1))


def test_dead_letters_are_clipped() -> None:
    """A dead letter of an enormous value can itself be published."""
    letter = Rejected(
        origin=wire.ORIGIN, reason="UNDECODABLE", message="m", key=b"k" * 10, value=b"v" * 1_100_000
    )
    encoded = encode(letter)
    found = decode_record(TopicKind.REJECTED, encoded.key, encoded.value)
    assert len(encoded.value or b"") < RECORD_BYTES_MAX
    assert (found.key, found.value) == (letter.key, letter.value[: len(found.value)])


def test_large_configs_are_packed() -> None:
    """Many units with like names shrink; what does not shrink is left as it is."""
    config = GroupConfig(
        group="g",
        assignor="static",
        settings=parse_settings({}, "static"),
        tasks=tuple(Connector(f"orders-to-warehouse-{i:05d}", 3) for i in range(5000)),
        origin=wire.ORIGIN,
    )
    encoded = encode(config)
    assert len(encoded.value or b"") < 60_000
    assert decode(TopicKind.CONFIG, encoded.key, encoded.value, wire.ORIGIN) == config
    noise = np.random.default_rng(0).bytes(200_000)
    assert (pack(noise), pack(b"short")) == (noise, b"short")


@pytest.mark.parametrize(
    ("inner", "size", "reason"),
    [
        (write("Packed", {}), None, "within a Packed"),
        (write("Tick", {}), 12, "12 were announced"),
    ],
)
def test_packed_values_that_cannot_be(inner: bytes, size: int | None, reason: str) -> None:
    """A packed value must hold one plain record of the size it announces."""
    row = {"size": len(inner) if size is None else size, "deflated": zlib.compress(inner)}
    with pytest.raises(DecodeError, match=reason):
        decode(TopicKind.CONFIG, b"g", write("Packed", row), wire.ORIGIN)


def test_hostile_values_take_little_memory() -> None:
    """What a few bytes claim is never allocated: the peak of every refusal stays small."""
    row = {"member": "m", "units": [{"label": "0_", "size": 2**31 - 1}]}
    hostile = [
        write("Report", row | {"active": data})
        for data in (
            b"\x01\x80",
            b"\x01\x04\xff",
            b"\x01\x03\xff",
            b"\x01\x02\xff\xff\xff\xff\x07\x00\x00\x20",
            b"\x01\x01\xff\xff\xff\xff\x07\x20\x20",
            b"\x01\x01\x01\x1f\x1f" + b"\xff" * 8,
        )
    ]
    body = write("Join", {"member": "m"})[:10]
    hostile += [body + b"\xfe" * 8 + b"\x7f", body + b"\x02m" + bytes(8) + b"\x00" * 3]
    tracemalloc.start()
    try:
        for value in hostile:
            with pytest.raises(DecodeError):
                decode(TopicKind.MEMBERSHIP, b"g", value, wire.ORIGIN)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
