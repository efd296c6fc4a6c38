"""Split records: split when written, joined when read, old or new; names are sent once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.protocol import wire
from support.suite.examples import examples

from muster.protocol.codec import decode_record, encode
from muster.protocol.errors import DecodeError, EncodeError, UnknownDictionary
from muster.protocol.framing import PREFIX, write
from muster.protocol.ids import Role
from muster.protocol.keys import partition_of
from muster.protocol.records import Dictionary, GroupSnapshot, MemberAssignment, Move
from muster.protocol.split_records import Joiner, Whole, parts, size_of
from muster.protocol.tasks import Connector, Subtopology, TaskSet, TaskTable
from muster.protocol.taskset import units_of_table
from muster.protocol.topics import RECORD_BYTES_MAX, TopicKind

quick = settings(max_examples=examples(40), deadline=None)


def group_of(tasks: int, members: int) -> GroupSnapshot:
    """A group with its tasks spread at random."""
    owners = np.random.default_rng(1).integers(0, members, tasks).astype(np.int32)
    return wire.settled_group(owners)


@quick
@given(
    st.one_of(wire.snapshots(), wire.assignments, wire.configs),
    st.integers(300, 800),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_parts_join_in_any_order(record: object, limit: int, turn: int, random: object) -> None:
    """In any order of its parts, a record joins with the last one, and not before."""
    cut = parts(record, limit, turn=turn)
    assert all(size_of(part) <= limit for part in cut)
    assert len({partition_of(part.key, 31) for part in cut}) == 1
    random.shuffle(cut)
    joiner = Joiner()
    decoded = [joiner.feed(part.key, part.value) for part in cut]
    whole = encode(record)
    assert decoded == [None] * (len(cut) - 1) + [Whole(whole.key, whole.value)]


def test_a_reader_sees_the_old_record_or_the_new() -> None:
    """A writer that dies between parts leaves the old record whole, also on a compacted topic."""
    old, new = group_of(3000, 90), group_of(3000, 91)
    topic: dict[bytes, bytes | None] = {}
    for part in parts(old, 1000, turn=4):
        topic[part.key] = part.value
    for part in parts(new, 1000, turn=5)[:-1]:
        topic[part.key] = part.value
    joiner = Joiner()
    decoded = [whole for each in topic.items() if (whole := joiner.feed(*each))]
    assert decoded == [Whole(b"g", encode(old).value)]


def test_large_groups_publish() -> None:
    """A group of 1,000,000 tasks stays within the record limit and joins exactly."""
    group = group_of(1_000_000, 10_000)
    cut = parts(group)
    assert 1 < len(cut) <= 3
    assert all(size_of(part) <= RECORD_BYTES_MAX for part in cut)
    joiner = Joiner()
    *_, whole = [joiner.feed(part.key, part.value) for part in cut]
    decoded = decode_record(TopicKind.GROUPS, whole.key, whole.value)
    assert wire.plain(decoded) == wire.plain(group)


def test_very_many_moves_do_not_keep_a_group_from_publishing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Moves are listed up to their limit; all else is written whole."""
    monkeypatch.setattr("muster.protocol.snapshot.MOVES_BYTES_MAX", 1000)
    moves = tuple(
        Move(task=f"0_{i}", role=Role.ACTIVE, from_member="m" * 40, to_member="n", reason="balance")
        for i in range(100)
    )
    group = replace(group_of(100, 3), moves=moves)
    decoded = decode_record(TopicKind.GROUPS, b"g", encode(group).value)
    assert decoded.moves == moves[:16]
    assert wire.plain(replace(decoded, moves=())) == wire.plain(replace(group, moves=()))


@pytest.mark.slow
def test_the_largest_groups_publish() -> None:
    """10,000 members with 1,000 tasks each: every record within the limit, joined exactly."""
    group = group_of(10_000_000, 10_000)
    cut = parts(group)
    assert all(size_of(part) <= RECORD_BYTES_MAX for part in cut)
    joiner = Joiner()
    *_, whole = [joiner.feed(part.key, part.value) for part in cut]
    decoded = decode_record(TopicKind.GROUPS, whole.key, whole.value)
    assert np.array_equal(decoded.holder, group.holder)
    assert np.array_equal(decoded.destination, group.destination)


def test_a_group_is_named_once_not_once_for_each_member() -> None:
    """E-10's group: 1,000 tasks, topics of 30 characters, on 10, 100 and 500 members.

    Streams sends every member the whole placement: 170, 2,000 and 16,800 kB with its dictionary.
    muster writes one record for the group and each member's own, all counted here.
    """
    units = (Subtopology("orders-by-region-and-warehouse", 500), Subtopology("x" * 30, 500))
    table, totals = TaskTable(units), []
    for members in (10, 100, 500):
        owners = np.random.default_rng(1).permutation(np.arange(1_000) % members).astype(np.int32)
        group = replace(group_of(1_000, members), tasks=units, target=owners, holder=owners)
        own = [
            MemberAssignment(
                group="g",
                member=f"worker-{slot:018d}",
                incarnation=2**62 + slot,
                coordinator_epoch=1,
                generation=9,
                epoch=9,
                revision=9,
                active=table.set_of(np.flatnonzero(owners == slot).astype(np.int32)),
                session_timeout_ms=45_000,
                heartbeat_interval_ms=5_000,
            )
            for slot in range(members)
        ]
        whole = replace(group, destination=owners)
        totals.append(sum(size_of(part) for record in (whole, *own) for part in parts(record)))
    assert [total // 1000 for total in totals] == [4, 32, 146]


def test_small_records_are_left_alone() -> None:
    """A small record is one Kafka record and passes a joiner unchanged, tombstones too."""
    group = group_of(10, 2)
    assert parts(group) == [encode(group)]
    joiner = Joiner()
    assert joiner.feed(b"g", encode(group).value) == Whole(b"g", encode(group).value)
    assert joiner.feed(b"g", None) == Whole(b"g", None)
    assert joiner.feed(b"g||a1", None) is None


def test_records_too_large_to_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record larger than readers join is refused when it is written, with its size."""
    monkeypatch.setattr("muster.protocol.split_records.VALUE_BYTES_MAX", 1000)
    with pytest.raises(EncodeError, match="1000 are accepted"):
        parts(group_of(3000, 90), 600)


def test_a_limit_too_small_is_refused() -> None:
    """A limit that leaves no room for a byte is an error, not an endless split."""
    with pytest.raises(EncodeError, match="no room"):
        parts(group_of(1000, 50), 150)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"index": 2}, "part 2 of 2"),
        ({"index": -1}, "part -1 of 2"),
        ({"size": 2**40}, "1099511627776 bytes"),
        ({"count": 2**31 - 1, "size": 5}, "of 5 bytes"),
        ({"slice": b""}, "part 0 of 2"),
    ],
)
def test_hostile_parts(change: dict, reason: str) -> None:
    """Parts that contradict themselves are refused."""
    row = {"id": b"12345678", "index": 0, "count": 2, "size": 10, "slice": b"12345"}
    with pytest.raises(DecodeError, match=reason):
        Joiner().feed(b"g", write("Part", row | change))


def test_parts_of_something_else_are_refused() -> None:
    """Slices that do not join to the bytes of their id are refused."""
    row = {"id": b"12345678", "count": 2, "size": 10}
    joiner = Joiner()
    assert joiner.feed(b"g||a1", write("Part", row | {"index": 1, "slice": b"12345"})) is None
    with pytest.raises(DecodeError, match="other bytes"):
        joiner.feed(b"g", write("Part", row | {"index": 0, "slice": b"12345"}))


def test_a_part_alone_is_no_record() -> None:
    """A part that was not joined raises an error that says so."""
    part = parts(group_of(3000, 90), 1000)[0]
    for key in (part.key, b"g"):
        with pytest.raises(DecodeError, match="joined first"):
            decode_record(TopicKind.GROUPS, key, part.value)


def test_pending_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Incomplete records do not pile up: the oldest are dropped."""
    monkeypatch.setattr("muster.protocol.split_records.VALUE_BYTES_MAX", 1000)
    joiner = Joiner()
    for number in range(50):
        row = {"id": bytes([number] * 8), "index": 1, "count": 2, "size": 900, "slice": b"x" * 100}
        joiner.feed(f"g{number}||a1".encode(), write("Part", row))
    assert (joiner._held, len(joiner._pending)) == (1000, 10)


def connect_group(connectors: int) -> tuple[TaskTable, Dictionary]:
    """Connectors with long names, and their dictionary."""
    table = TaskTable(Connector(f"orders-to-warehouse-{i:05d}", 9) for i in range(connectors))
    return table, Dictionary(group="g", units=units_of_table(table))


def assignment(active: TaskSet, dictionary: Dictionary | None) -> MemberAssignment:
    """A member's assignment."""
    return MemberAssignment(
        group="g",
        member="m",
        incarnation=7,
        coordinator_epoch=1,
        generation=2,
        epoch=2,
        revision=1,
        active=active,
        session_timeout_ms=45_000,
        heartbeat_interval_ms=5_000,
        dictionary=dictionary,
    )


def test_names_are_sent_once() -> None:
    """With a dictionary an assignment has no names; the error names a missing dictionary."""
    table, dictionary = connect_group(1000)
    chosen = np.sort(np.random.default_rng(0).choice(len(table), 100, replace=False))
    active = table.set_of(chosen.astype(np.int32))
    alone = encode(assignment(active, None))
    record = assignment(active, dictionary)
    encoded = encode(record)
    assert len(alone.value or b"") > 2500
    assert len(encoded.value or b"") < 170
    assert b"orders" not in (encoded.value or b"")
    with pytest.raises(UnknownDictionary) as caught:
        decode_record(TopicKind.ASSIGNMENTS, encoded.key, encoded.value)
    known = {caught.value.version: dictionary.units}
    decoded = decode_record(TopicKind.ASSIGNMENTS, encoded.key, encoded.value, dictionaries=known)
    assert decoded == record == replace(record, dictionary=None)


def test_a_group_of_short_names_has_no_dictionary() -> None:
    """A dictionary exists only if a record may need it, and lists all units of the group."""
    table, dictionary = connect_group(300)
    assert Dictionary.of("g", table) == dictionary
    assert Dictionary.of("g", connect_group(3)[0]) is None


def test_short_names_stay_in_the_record() -> None:
    """A record with few names, or names the dictionary lacks, lists them itself."""
    table, dictionary = connect_group(3)
    active = table.set_of(np.arange(len(table), dtype=np.int32))
    stranger = TaskSet.of(f"some-connector-of-before-{i}" for i in range(20))
    for tasks in (active, stranger):
        record = assignment(tasks, dictionary)
        encoded = encode(record)
        assert decode_record(TopicKind.ASSIGNMENTS, encoded.key, encoded.value) == record


def test_dictionaries_round_trip() -> None:
    """A dictionary reads back, split if it is large; without units it is a tombstone."""
    _, dictionary = connect_group(300)
    encoded = encode(dictionary)
    assert encoded.key == b"g||names"
    assert encoded.value is not None
    assert encoded.value.startswith(PREFIX["Packed"])
    assert decode_record(TopicKind.GROUPS, encoded.key, encoded.value) == dictionary
    gone = Dictionary(group="g", units=())
    assert encode(gone).value is None
    assert decode_record(TopicKind.GROUPS, b"g||names", None) == gone
    joiner = Joiner()
    cut = parts(dictionary, 500)
    assert [part.key for part in (*cut[:2], cut[-1])] == [
        b"g||names.a1",
        b"g||names.a2",
        b"g||names",
    ]
    *_, whole = [joiner.feed(part.key, part.value) for part in cut]
    assert whole == Whole(b"g||names", encoded.value)


def test_dictionary_version_must_follow_from_its_units() -> None:
    """A dictionary under another version would misname tasks and is refused."""
    row = {"version": b"12345678", "units": [{"label": "0_", "size": 1}]}
    with pytest.raises(DecodeError, match="version"):
        decode_record(TopicKind.GROUPS, b"g||names", write("Dictionary", row))
