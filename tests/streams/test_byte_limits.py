"""The share of one group in a batch, without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.streams.operator import INPUT, LANE, G, Operator, config, join, of_kind
from support.streams.packed_rows import pack

from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.digest import Holding
from muster.protocol.events import Event, GroupConfig, Origin, TopicsFound
from muster.protocol.framing import PREFIX
from muster.protocol.records import GroupSnapshot, Rejected
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import Subtopology, TaskSet
from muster.streams import processor
from muster.streams.batch import byte_limits, letter_limits, work_limits
from muster.streams.batch.inbox import is_found
from muster.streams.source import HEADER

pytestmark = pytest.mark.usefixtures("nothing_in_memory")


def row(offset: int, size: int, kind: str = "membership") -> bytes:
    """A packed row of that many bytes."""
    value = PREFIX["Join"] + b"\xff" * (size - HEADER.size - len(PREFIX["Join"]))
    return pack(Origin(f"muster.{kind}", 0, offset, 1_000 + offset), value, INPUT)


def is_config(entry: bytes) -> bool:
    """Whether a row is from the config topic."""
    return INPUT[entry[8]].endswith("config")


def test_large_rows_beyond_the_share_are_cut() -> None:
    """The oldest large rows are in the share, and every small one."""
    rows = [row(n, 10_000) for n in range(10)] + [row(n, 100) for n in range(20, 30)]
    shared = byte_limits.of(rows, 35_000, is_config)
    assert shared.entries == rows[:3] + rows[10:]
    assert shared.beyond == [each[: byte_limits.BEGINNING_BYTES] for each in rows[3:10]]


def test_the_newest_configs_are_in_the_share() -> None:
    """Each config replaces the one before it, so the newest count, whatever came before."""
    rows = [row(n, 10_000, "config") for n in range(5)]
    shared = byte_limits.of(rows, 0, is_config)
    assert shared.entries == rows[-byte_limits.LARGE_CONFIGS_MAX :]


def test_a_loop_of_small_configs_is_cut() -> None:
    """Each config costs time for every member of the group, however small it is."""
    rows = [row(n, 100, "config") for n in range(100)]
    shared = byte_limits.of(reversed(rows), 1_000, is_config)
    assert shared.entries == rows[-byte_limits.CONFIGS_MAX :]
    assert shared.beyond == rows[: -byte_limits.CONFIGS_MAX]


def test_a_row_larger_than_the_share_is_taken_alone() -> None:
    """A topic may allow larger rows than a share has; a group must still be able to send one."""
    rows = [row(n, 10_000) for n in range(2)]
    assert byte_limits.of(rows, 5_000, is_config).entries == rows[:1]


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_arrival_changes_nothing(seed: int) -> None:
    """A replay that brings the rows in another order takes the same ones."""
    rng = random.Random(seed)
    rows = [
        row(n, rng.choice((100, 5_000, 9_000, 30_000)), rng.choice(("membership", "config")))
        for n in range(60)
    ]
    most = rng.choice((20_000, 60_000, 200_000))
    in_order = byte_limits.of(rows, most, is_config)
    rng.shuffle(rows)
    assert byte_limits.of(rows, most, is_config) == in_order
    assert len(in_order.entries) + len(in_order.beyond) == len(rows)


def test_rows_come_into_memory_in_portions() -> None:
    """At no time more than twice the share is held, however much comes."""
    alive = 0
    most = 0

    class Counted(bytes):
        def __del__(self) -> None:
            nonlocal alive
            alive -= len(self)

    def coming() -> Iterator[bytes]:
        nonlocal alive, most
        for number in reversed(range(200)):
            alive += 100_000
            most = max(most, alive)
            yield Counted(row(number, 100_000))

    byte_limits.of(coming(), 1_000_000, is_config)
    assert most <= 2_300_000


def test_a_group_grows_with_its_snapshot() -> None:
    """A large group may bring more in one batch."""
    assert byte_limits.bytes_max(None) == byte_limits.BYTES_MIN
    assert byte_limits.bytes_max(b"x" * (1 << 20)) == 16 << 20
    assert byte_limits.bytes_max(b"x" * (32 << 20)) == byte_limits.BYTES_MAX


@pytest.mark.parametrize("is_in_memory", [True, False])
def test_limits_are_the_same_in_a_replay(is_in_memory: bool) -> None:
    """What a group may name follows from its tasks, also when a new process has to restore it."""
    operator = Operator()
    operator.feed(1_000, config(), join())
    if not is_in_memory:
        processor._cache.clear()
    many = TaskSet([("0", False, np.arange(100_000, dtype=np.int32))])
    late = replace(join("n"), holding=Holding(active=many))
    (letter,) = of_kind(operator.feed(2_000, late), Rejected)
    assert letter.reason == DeadLetter.UNDECODABLE


def written(*events: Event) -> list[bytes]:
    """Events as packed rows; a large event of rubbish before each."""
    entries: list[bytes] = []
    for event in events:
        for size in (900_000, None):
            kind = "config" if isinstance(event, GroupConfig) else "membership"
            origin = Origin(f"muster.{kind}", 0, len(entries), 1_000 + len(entries))
            value = codec.encode(event).value or b""
            filler = PREFIX["Join"] + b"\xff" * (size or 0)
            entries.append(pack(origin, filler if size else value, INPUT))
    return entries


def test_a_group_is_served_beside_its_flood() -> None:
    """Of forty large rows four are read; the others are letters; the small events count."""
    letter_limits._unreported.clear()
    joins = [join(f"m{number}") for number in range(40)]
    records = Operator().batch(LANE, written(config(), *joins))
    late = [r for r in of_kind(records, Rejected) if r.reason == DeadLetter.TOO_MUCH_AT_ONCE]
    read = [r for r in of_kind(records, Rejected) if r.reason == DeadLetter.UNDECODABLE]
    assert len(read) == 1 + byte_limits.BYTES_MIN // 900_000  # the one on the config topic as well
    assert len(late) == letter_limits.GROUP_LETTERS_MAX
    assert all(len(each.value) <= byte_limits.BEGINNING_BYTES for each in late)
    (summary,) = (r for r in of_kind(records, Rejected) if r.reason == DeadLetter.LEFT_OUT)
    assert f"{41 - len(read) - len(late)} more dead letters" in summary.message
    assert of_kind(records, GroupSnapshot)[-1].members.__len__() == 40


WANTED = Source(topics=("orders",))


def discovered(partitions: int) -> TopicsFound:
    """What discovery has found for the source: one topic of that many partitions."""
    unit = Subtopology("orders", partitions)
    return TopicsFound(group=G, found=(Found(source=WANTED, units=(unit,)),))


def on_config_topic(events: Sequence[Event]) -> list[bytes]:
    """Events of the config topic as packed rows, one a millisecond."""
    origins = [Origin("muster.config", 0, n, 1_000 + n) for n in range(len(events))]
    values = [codec.encode(event).value for event in events]
    return [pack(origin, value, INPUT) for origin, value in zip(origins, values, strict=True)]


def test_what_discovery_finds_does_not_displace_a_config() -> None:
    """Found topics replace no config, however many of them come after it in one batch."""
    letter_limits._unreported.clear()
    declares = replace(config(), sources=(WANTED,), tasks=())
    found = [discovered(partitions) for partitions in range(1, 7)]
    records = Operator().batch(LANE, on_config_topic([declares, *found]))
    assert len(of_kind(records, GroupSnapshot)[-1].holder) == 6
    letters = of_kind(records, Rejected)
    assert [letter.origin.offset for letter in letters] == [1, 2]  # the oldest of what was found


def test_a_large_config_and_what_was_found_for_it_are_in_the_share() -> None:
    """Of each kind the newest large one is."""
    rows = [row(n, 10_000, "config") for n in range(4)]
    shared = byte_limits.of(rows, 0, is_config, is_found=lambda each: each in rows[1::2])
    assert shared.entries == rows[2:]


def test_the_newest_of_each_kind_counts_where_the_credit_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator and discovery each write once what the group is to be; the newest is wanted."""
    monkeypatch.setattr(work_limits, "CREDIT_CONFIGS_US", 1_500)
    old, new = (
        replace(config(settings={"heartbeat.interval.ms": ms}), sources=(WANTED,), tasks=())
        for ms in (3_000, 4_000)
    )
    records = Operator().batch(LANE, on_config_topic([old, new, discovered(3), discovered(4)]))
    snapshot = of_kind(records, GroupSnapshot)[-1]
    assert (snapshot.settings.heartbeat_interval_ms, len(snapshot.holder)) == (4_000, 4)
    assert [letter.origin.offset for letter in of_kind(records, Rejected)] == [0, 2]


@pytest.mark.parametrize("signature", [None, b"", b"signature"])
def test_found_topics_are_known_by_their_beginning(signature: bytes | None) -> None:
    """Whether a row has room for a signature, and whether it has one."""
    for event in (config(), discovered(3)):
        origin = Origin("muster.config", 0, 0, 1_000)
        entry = pack(origin, codec.encode(event).value, INPUT, signature)
        is_what_was_found = isinstance(event, TopicsFound)
        assert is_found(entry, signed=signature is not None) == is_what_was_found
