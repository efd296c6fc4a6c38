"""A start without a checkpoint reads rows again that have counted once: configs and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.streams.operator import INPUT, LANE, G, Operator, config, join, key_file, of_kind
from support.streams.packed_rows import pack

from muster.protocol import codec
from muster.protocol.events import Event, Tick
from muster.protocol.keyring import Keyring, SigningKey, caller_of
from muster.protocol.records import GroupSnapshot, MemberAssignment, Record, Rejected
from muster.protocol.signing import Subject, sign
from muster.streams import processor

pytestmark = pytest.mark.usefixtures("nothing_in_memory")

OLD, NEW = (SigningKey(id=name, secret=name.encode() * 16) for name in ("old", "new"))
Packed = Callable[[Event], bytes]


def packed(event: Event) -> bytes:
    """A row without room for a signature."""
    return pack(event.origin, codec.encode(event).value, INPUT)


def signed_with(key: SigningKey) -> Packed:
    """A function that packs an event with its signature of when it was written."""

    def pack_signed(event: Event) -> bytes:
        encoded = codec.encode(event)
        subject = Subject(event.origin.topic, encoded.key, encoded.value)
        caller = caller_of(event)
        signature = sign(Keyring(keys=(key,)), G, caller, subject, event.origin.at_ms)
        return pack(event.origin, encoded.value, INPUT, signature)

    return pack_signed


def snapshot_of(operator: Operator) -> bytes:
    """The group as the topic of groups has it; nothing of it stays in memory."""
    _, snapshot = operator.stored(LANE)
    assert snapshot is not None
    processor._cache.clear()
    return snapshot


def read_again(
    operator: Operator, configs: Sequence[Event], pack_config: Packed, pack_tick: Packed
) -> list[Record]:
    """What the first batch publishes: the topic from its beginning, and the tick of the start."""
    old = [pack_config(operator.at(event, 1_000)) for event in configs]
    operator._offsets["muster.membership"] = 99
    return operator.batch(LANE, [*old, pack_tick(operator.at(Tick(group=G), 9_000))])


def test_many_configs_are_no_dead_letters() -> None:
    """A group that was configured seven times is read back, and its member is asked."""
    before = Operator()
    for number in range(7):
        before.feed(1_000, config(4 + number))
    before.feed(1_000, join())
    after = Operator(epoch=8, initial=[(LANE, snapshot_of(before))])
    records = read_again(after, [config(4 + number) for number in range(7)], packed, packed)
    assert of_kind(records, Rejected) == []
    assert of_kind(records, GroupSnapshot)[-1].tasks == config(10).tasks
    assert [record.report for record in of_kind(records, MemberAssignment)] == [True]


def test_a_config_alone_waits_for_the_tick() -> None:
    """A batch that has nothing but what counted before publishes nothing; the tick asks."""
    before = Operator()
    before.feed(1_000, config(), join())
    after = Operator(epoch=8, initial=[(LANE, snapshot_of(before))])
    assert after.batch(LANE, [packed(after.at(config(), 1_000))]) == []
    after._offsets["muster.membership"] = 99
    records = after.feed(9_000, Tick(group=G))
    assert [record.report for record in of_kind(records, MemberAssignment)] == [True]


def test_a_config_whose_key_is_gone(tmp_path: Path) -> None:
    """The key that signed a config a month ago is in the keyring no more: the config stays."""
    before = Operator(signing_keys=key_file(tmp_path / "before.json", OLD))
    before.batch(LANE, [signed_with(OLD)(before.at(config(), 1_000))])
    keys = key_file(tmp_path / "after.json", NEW)
    after = Operator(epoch=8, initial=[(LANE, snapshot_of(before))], signing_keys=keys)
    records = read_again(after, [config()], signed_with(OLD), signed_with(NEW))
    assert of_kind(records, Rejected) == []
    assert processor._cache[LANE].group.table.units == config().tasks


def test_a_newer_config_counts() -> None:
    """A config that was written while no coordinator ran counts at the start."""
    before = Operator()
    before.feed(1_000, config(), join())
    after = Operator(epoch=8, initial=[(LANE, snapshot_of(before))])
    records = read_again(after, [config(), config(6)], packed, packed)
    assert of_kind(records, GroupSnapshot)[-1].tasks == config(6).tasks


def test_old_events_use_up_no_credit() -> None:
    """More events than one batch takes are read again: what is new among them counts."""
    before = Operator()
    before.feed(1_000, config())
    old: list[bytes] = []
    for second in range(3):
        at_ms = 10_000 * (1 + second)
        rows = [packed(before.at(Tick(group=G), at_ms)) for _ in range(400)]
        assert of_kind(before.batch(LANE, rows), Rejected) == []
        old += rows
    old.append(packed(before.at(join(), 40_000)))
    before.batch(LANE, old[-1:])
    after = Operator(epoch=8, initial=[(LANE, snapshot_of(before))])
    after._offsets = before._offsets
    records = after.batch(LANE, [*old, packed(after.at(join("n"), 41_000))])
    assert of_kind(records, Rejected) == []
    assert {record.member for record in of_kind(records, MemberAssignment)} == {"m", "n"}


def test_an_old_join_whose_key_is_gone(tmp_path: Path) -> None:
    """A join that counted under a key that has left the keyring since is no dead letter."""
    before = Operator(signing_keys=key_file(tmp_path / "before.json", OLD))
    events = [before.at(config(), 1_000), before.at(join(), 1_000)]
    before.batch(LANE, [signed_with(OLD)(event) for event in events])
    keys = key_file(tmp_path / "after.json", NEW)
    after = Operator(epoch=8, initial=[(LANE, snapshot_of(before))], signing_keys=keys)
    after._offsets = before._offsets
    tick = signed_with(NEW)(after.at(Tick(group=G), 9_000))
    records = after.batch(LANE, [signed_with(OLD)(events[1]), tick])
    assert of_kind(records, Rejected) == []
    assert [record.report for record in of_kind(records, MemberAssignment)] == [True]


def test_old_events_alone_make_the_group_ask() -> None:
    """In a backlog the group asks its members with its first rows, and is in memory from then."""
    before = Operator()
    before.feed(1_000, config(), join())
    old = packed(Operator().at(join(), 1_000))
    after = Operator(epoch=8, initial=[(LANE, snapshot_of(before))])
    records = after.batch(LANE, [old])
    assert [record.report for record in of_kind(records, MemberAssignment)] == [True]
    assert LANE in processor._cache
    assert after.batch(LANE, [old]) == []
