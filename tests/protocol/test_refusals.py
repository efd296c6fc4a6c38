"""Invalid records are refused by readers and writers, without using much memory."""

from __future__ import annotations

import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest
from support.protocol import wire

from muster.protocol.codec import decode, decode_record, encode
from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.events import GroupConfig, Heartbeat
from muster.protocol.framing import PREFIX, Schemas, pack, write
from muster.protocol.records import Rejected
from muster.protocol.setting_values import LONG_MAX
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector
from muster.protocol.topics import RECORD_BYTES_MAX, TopicKind


@pytest.mark.parametrize(
    ("kind", "key", "value", "reason"),
    [
        (TopicKind.ASSIGNMENTS, b"g", PREFIX["Tick"] + b"\x00", "does not belong"),
        (TopicKind.ASSIGNMENTS, b"g", write("MemberAssignment", {}), "names no member"),
        (TopicKind.ASSIGNMENTS, b"g", None, "tombstone"),
        (TopicKind.REJECTED, b"g", None, "tombstone"),
        (TopicKind.CLOCK, b"g||a1", write("WakeUp", {}), "joined first"),
        (
            TopicKind.CLOCK,
            b"g",
            write("WakeUp", {"extras": {"agreement": bytes(23)}}),
            "an agreement of 23 bytes; expected 24",
        ),
        (
            TopicKind.CLOCK,
            b"g",
            write("WakeUp", {"extras": {"agreement": bytes(24)}}),
            "an agreement of 0 members",
        ),
        (TopicKind.GROUPS, b"g", write("GroupSnapshot", {}), "another codec"),
        (
            TopicKind.GROUPS,
            b"g",
            write("GroupSnapshot", {"target": b"\x01\x01"}),
            "target: bytes behind the owner vector",
        ),
    ],
)
def test_invalid_records_are_refused(
    kind: TopicKind, key: bytes, value: bytes | None, reason: str
) -> None:
    """Records on the wrong topic, under the wrong key, or with contradictions are refused."""
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
    """Columns of unequal length and unknown profiles or roles are refused."""
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
def test_invalid_lags_are_refused(lag: dict, reason: str) -> None:
    """A lag of a task outside the record's units, or below 0, is refused."""
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
def test_invalid_units_are_refused(units: list, reason: str) -> None:
    """Unit lists with a negative size, a repeated name or no name are refused."""
    with pytest.raises(DecodeError, match=reason):
        decode(
            TopicKind.LAG, b"g", write("LagReport", {"member": "m", "units": units}), wire.ORIGIN
        )


NINES = "9" * 5000


def test_a_unit_of_thousands_of_digits_is_a_unit() -> None:
    """A name that int() would refuse is read and can be written again."""
    units = [{"label": f"{NINES}_", "size": 2}, {"label": "8_", "size": 2}]
    row = {"member": "m", "units": units[::-1], "active": b"\x02\x80\x80"}
    value = write("Report", {**row, "incarnation": b"\x01" + bytes(7)})
    event = decode(TopicKind.MEMBERSHIP, b"g", value, wire.ORIGIN)
    assert [str(task) for task in event.holding.active] == [
        *("8_0", "8_1", f"{NINES}_0", f"{NINES}_1"),
    ]
    again = decode(TopicKind.MEMBERSHIP, b"g", encode(event).value, wire.ORIGIN)
    assert wire.plain(again) == wire.plain(event)


def test_numbers_that_do_not_fit_are_refused() -> None:
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
    decoded = decode_record(TopicKind.REJECTED, encoded.key, encoded.value)
    assert len(encoded.value or b"") < RECORD_BYTES_MAX
    assert (decoded.key, decoded.value) == (letter.key, letter.value[: len(decoded.value)])


def test_large_configs_are_packed() -> None:
    """Many units with similar names are packed; other configs are not."""
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
def test_invalid_packed_values_are_refused(inner: bytes, size: int | None, reason: str) -> None:
    """A packed value must hold one plain record of the size it announces."""
    row = {"size": len(inner) if size is None else size, "deflated": zlib.compress(inner)}
    with pytest.raises(DecodeError, match=reason):
        decode(TopicKind.CONFIG, b"g", write("Packed", row), wire.ORIGIN)


def test_hostile_values_take_little_memory() -> None:
    """Claimed sizes are never allocated: the peak of every refusal stays small."""
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


def test_infinite_deadlines_are_clipped() -> None:
    """A deadline beyond the range of the wire is written as the largest value."""
    group = wire.settled_group()
    (member,) = group.members
    late = replace(group, next_ms=2**64, members=(replace(member, deadline_ms=2**64),))
    encoded = encode(late)
    decoded = decode_record(TopicKind.GROUPS, encoded.key, encoded.value)
    assert (decoded.next_ms, decoded.members[0].deadline_ms) == (LONG_MAX, LONG_MAX)
