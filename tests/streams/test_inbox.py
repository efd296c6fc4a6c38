"""Packed rows become events and dead letters; without Spark."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.streams.packed_rows import pack

from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Drain, Event, GroupDeleted, Heartbeat, Leave, Origin, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import Rejected
from muster.streams.batch.inbox import open_lane, unpack
from muster.streams.source import TOPIC_AT, input_topics, lane_of, split_lane

TOPICS = input_topics(["muster", "other"])
G, M = GroupId("g"), MemberId("m")


def at(offset: int, kind: str = "membership", at_ms: int = 1_000, partition: int = 0) -> Origin:
    """An origin on an input topic."""
    return Origin(f"muster.{kind}", partition, offset, at_ms)


def packed(event: Event) -> bytes:
    """An event as the source packs it."""
    return pack(event.origin, codec.encode(event).value, TOPICS)


def test_lanes_read_back() -> None:
    """A lane gives back its prefix and key; no key, an empty key and zero bytes stay distinct."""
    lanes = [("muster", None), ("muster", b""), ("muster", b"g\0x"), ("other", b"g")]
    assert [split_lane(lane_of(*lane)) for lane in lanes] == lanes
    assert len({lane_of(*lane) for lane in lanes}) == 4


origins = st.builds(
    Origin,
    st.sampled_from(TOPICS),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
)


@given(st.lists(st.tuples(origins, st.none() | st.binary(max_size=20)), max_size=8))
def test_sorting_bytes_sorts_rows(rows: list[tuple[Origin, bytes | None]]) -> None:
    """Packed rows read back whole, and sorted as bytes they are in `Origin.sort_key` order."""
    entries = sorted(pack(origin, value, TOPICS) for origin, value in rows)
    unpacked = [unpack(entry, TOPICS) for entry in entries]
    assert [o.sort_key for o, _ in unpacked] == sorted(o.sort_key for o, _ in rows)
    assert sorted(unpacked, key=repr) == sorted(rows, key=repr)


def test_every_topic_of_many_prefixes_reads_back() -> None:
    """The topics of 60 prefixes, more than a signed byte counts, read back from what SQL packs."""
    topics = input_topics([f"p{number}" for number in range(60)])
    origins = [Origin(topic, 3, 5, 1_000) for topic in topics]
    entries = [pack(origin, b"x", topics) for origin in origins]
    assert [unpack(entry, topics) for entry in entries] == [(o, b"x") for o in origins]
    assert entries == sorted(entries)
    # The query writes the number as a hexadecimal literal of one byte.
    assert [entry[TOPIC_AT : TOPIC_AT + 1].hex() for entry in entries] == [
        f"{number:02x}" for number in range(len(topics))
    ]


def test_events_in_order_among_rubbish() -> None:
    """All events keep their order, and an undecodable row becomes a dead letter."""
    events = [
        Drain(group=G, member=M, origin=at(1)),
        Heartbeat(group=G, member=M, epoch=7, digest=2**64 - 1, origin=at(2)),
        Tick(group=G, origin=at(4)),
        Heartbeat(group=G, member=MemberId("ü" * 60), epoch=0, digest=0, origin=at(5)),
        GroupDeleted(group=G, origin=at(0, "config", 2_000)),
    ]
    rubbish = pack(at(3), b"rubbish", TOPICS)
    inbox = open_lane(lane_of("muster", b"g"), sorted([*map(packed, events), rubbish]), TOPICS)
    assert (inbox.prefix, inbox.group, inbox.events) == ("muster", G, events)
    (dead,) = inbox.rejected
    assert (dead.origin, dead.reason, dead.key, dead.value) == (
        at(3),
        DeadLetter.UNDECODABLE,
        b"g",
        b"rubbish",
    )


@pytest.mark.parametrize("key", [None, b"", b"\xff\xfe", b"g|m", b"g||a1", b"x" * 300])
def test_a_bad_key_condemns_every_row(key: bytes | None) -> None:
    """If the key names no group, every row becomes a dead letter with its bytes and origin."""
    event = Tick(group=G, origin=at(1))
    entries = [packed(event), pack(at(2), None, TOPICS)]
    inbox = open_lane(lane_of("muster", key), entries, TOPICS)
    assert (inbox.group, inbox.events) == (None, [])
    value = codec.encode(event).value or b""
    assert [(r.origin, r.reason, r.key, r.value) for r in inbox.rejected] == [
        (at(1), DeadLetter.UNDECODABLE, key or b"", value),
        (at(2), DeadLetter.UNDECODABLE, key or b"", b""),
    ]


@pytest.mark.parametrize(
    "row",
    [
        lambda value: pack(at(1, "lag"), value, TOPICS),
        lambda value: pack(at(1, "config"), value, TOPICS),
        lambda value: pack(at(1), value + b"\0", TOPICS),
        lambda value: pack(at(1), value[:-1], TOPICS),
        lambda value: pack(at(1), None, TOPICS),
    ],
)
def test_a_heartbeat_in_the_wrong_place_or_shape(row: Callable[[bytes], bytes]) -> None:
    """A heartbeat on a wrong topic, with bytes cut or added, or without a value is rejected."""
    value = codec.encode(Heartbeat(group=G, member=M, epoch=1, digest=5)).value
    assert value is not None
    inbox = open_lane(lane_of("muster", b"g"), [row(value)], TOPICS)
    assert inbox.events == []
    assert [type(r) for r in inbox.rejected] == [Rejected]


@given(st.binary(max_size=60), st.sampled_from(["membership", "config", "lag"]))
def test_no_bytes_raise(value: bytes, kind: str) -> None:
    """Any bytes are an event or a dead letter, never an exception."""
    framed = codec.encode(Leave(group=G, member=M, incarnation=1)).value or b""
    for body in (value, framed[:10] + value):
        inbox = open_lane(lane_of("muster", b"g"), [pack(at(1, kind), body, TOPICS)], TOPICS)
        assert len(inbox.events) + len(inbox.rejected) == 1
