"""How groups are read back from a compacted topic, and where reading of the input begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from hypothesis import given
from hypothesis import strategies as st
from support.kafka.mock_kafka import mock_kafka
from support.state.snapshots import orders
from support.streams.checkpoints import Files, MemoryCheckpoint

from muster.kafka.client_settings import client_settings
from muster.kafka.compacted import newest_values
from muster.kafka.reader import Row
from muster.protocol.codec import encode
from muster.protocol.ids import GroupId
from muster.protocol.keys import partition_of
from muster.protocol.records import GroupGone, Quarantine
from muster.protocol.split_records import parts
from muster.streams import claims, job, read_back
from muster.streams.checkpoint.unverified_groups import unverified_until_ms
from muster.streams.errors import KafkaUnreachable
from muster.streams.read_back import (
    SKEW_MS,
    Recovered,
    first_wanted,
    silent_since_ms,
    without_others,
)

TOPIC = "muster.groups"
KEYS = [f"group-{number}".encode() for number in range(6)]


def entry(
    place: int, offset: int, key: bytes, value: bytes | None, at_ms: int, generation: int = -1
) -> Row:
    """A record as it is read."""
    return Row(key, value, TOPIC, place, offset, at_ms, generation=generation)


def newest_in_order(
    partitions: Sequence[Sequence[Row]], order: Sequence[int]
) -> dict[bytes, bytes]:
    """What is read back when the partitions are read one after the other in this order."""
    return newest_values((row for place in order for row in partitions[place]), len(partitions))


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(sorted),
    writes=st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=30),
    shuffle=st.randoms(use_true_random=False),
)
def test_the_newest_value_of_a_topic_that_has_grown(
    sizes: list[int], writes: list[tuple[bytes, bool]], shuffle: object
) -> None:
    """Each key is written where it belongs at the time, while the topic grows; read in any order.

    What is read back is what was written last, and nothing of what was deleted last.
    """
    partitions: list[list[Row]] = [[] for _ in range(sizes[-1])]
    expected: dict[bytes, bytes | None] = {}
    for at, (key, lives) in enumerate(writes):
        count = sizes[at * len(sizes) // len(writes)]
        home = partitions[partition_of(key, count)]
        value = f"value {at}".encode() if lives else None
        home.append(entry(partition_of(key, count), len(home), key, value, 1_000 + at))
        expected[key] = value
    order = list(range(len(partitions)))
    shuffle.shuffle(order)  # type: ignore[attr-defined]  # `random.Random`
    newest = newest_in_order(partitions, order)
    assert newest == {key: value for key, value in expected.items() if value is not None}


def test_the_home_of_a_key_counts_for_more_than_a_later_time() -> None:
    """The value in the key's own partition wins over a later timestamp in another partition."""
    key = next(key for key in KEYS if partition_of(key, 1) != partition_of(key, 2))
    partitions = [[entry(0, 0, key, b"old", 9_000)], [entry(1, 0, key, b"new", 5_000)]]
    for order in ([0, 1], [1, 0]):
        assert newest_in_order(partitions, order) == {key: b"new"}


def test_records_of_a_superseded_coordinator_do_not_count() -> None:
    """A later record with an older generation does not count, except after a tombstone."""
    written = [(b"newer", 12), (b"older", 11)]
    for more, expected in (
        ([], b"newer"),
        ([(b"next", 13)], b"next"),
        ([(b"again", 12)], b"again"),
        ([(None, -1), (b"first", 1)], b"first"),
    ):
        values = enumerate([*written, *more])
        log = [entry(0, n, KEYS[0], value, 1_000 + n, headers) for n, (value, headers) in values]
        newest = newest_in_order([log], [0])
        assert newest == {KEYS[0]: expected}


def test_groups_are_read_back_and_the_next_claim_is_later() -> None:
    """The newest snapshot of each group is read, in parts or whole; claims get rising epochs."""
    records = [
        *parts(orders(7), 300),
        encode(replace(orders(3), group=GroupId("other"))),
        encode(replace(orders(2), group=GroupId("gone"))),
        *parts(orders(8), 300, turn=1),
        encode(GroupGone(group=GroupId("gone"))),
    ]
    with mock_kafka() as address:
        clients = client_settings(address)
        producer = Producer(clients.producer())
        for record in records:
            place = partition_of(record.key, 4)
            producer.produce(TOPIC, record.value, record.key, place, headers=list(record.headers))
        assert producer.flush(10) == 0
        recovered = read_back.groups(clients, ["muster"])
        first, second = (
            claims.write(clients, "muster", job, follows=-1, alone=True) for job in ("one", "two")
        )
    assert [(prefix, s.group, s.generation) for prefix, s in recovered.snapshots] == [
        ("muster", "orders", 8),
        ("muster", "other", 3),
    ]
    assert second == first + 1


def test_ticks_that_kafka_did_not_take_are_counted() -> None:
    """A tick that is given up counts as not acknowledged, although none waits any more."""
    clients = client_settings("127.0.0.1:1", kafka={"kafka.message.timeout.ms": "50"})
    groups = tuple(("muster", replace(orders(), group=GroupId(name))) for name in ("a", "b"))
    with pytest.raises(KafkaUnreachable, match=r"2 ticks were not acknowledged: .*timed out"):
        read_back.wake_all(clients, Recovered(groups, {}, {}), {"muster": 1})


def test_offsets_of_another_cluster_do_not_count() -> None:
    """An offset beyond its partition's end is from another cluster and is dropped."""
    through = (("muster.config", 0, 4), ("muster.membership", 0, 99), ("muster.membership", 1, 100))
    snapshot = replace(orders(), through=through)
    ends = {place[:2]: (0, end) for place, end in zip(through, (5, 100, 100), strict=True)}
    assert without_others(snapshot, ends).through == through[:2]
    assert without_others(replace(snapshot, through=through[:2]), ends).through == through[:2]
    assert without_others(snapshot, {}).through == ()
    aside = replace(orders(), quarantine=Quarantine(1, "why", through))  # nor may they keep it so
    assert without_others(aside, ends).quarantine == Quarantine(1, "why", through[:2])


MEMBERSHIP, LAG = "muster.membership", "muster.lag"


def test_reading_begins_behind_what_all_have_taken_in() -> None:
    """The slowest group with members sets each start; config is read from its beginning."""
    slow = replace(orders(), through=(("muster.config", 0, 3), (MEMBERSHIP, 0, 10), (LAG, 0, 7)))
    fast = replace(orders(), through=((MEMBERSHIP, 0, 50),))
    empty = replace(orders(), members=(), through=((MEMBERSHIP, 0, 5), (MEMBERSHIP, 1, 60)))
    snapshots = [("muster", each) for each in (slow, fast, empty)]
    offsets = first_wanted(["muster"], snapshots, {(MEMBERSHIP, 0): (0, 99)}, {})
    assert offsets == {"muster.config": {}, MEMBERSHIP: {0: 11, 1: 61}, LAG: {0: 8}}


def test_a_quarantined_group_does_not_hold_the_start_back() -> None:
    """It is published no more, so each start would read all that Kafka retains."""
    set_aside = replace(orders(), quarantine=Quarantine(1, "why"), through=((MEMBERSHIP, 0, 10),))
    healthy = replace(orders(), through=((MEMBERSHIP, 0, 5_000),))
    snapshots = [("muster", each) for each in (set_aside, healthy)]
    offsets = first_wanted(["muster"], snapshots, {(MEMBERSHIP, 0): (0, 5_009)}, {})
    assert offsets[MEMBERSHIP] == {0: 5_001}


def test_a_partition_that_a_group_reads_no_more_does_not_hold_the_start_back() -> None:
    """Membership got partitions and a lag came last a month ago: reading begins shortly before.

    A group without other partitions begins where it has read to, also if that is longer ago.
    """
    orders_at, clock_ms = partition_of(b"orders", 4), 1_000_000_000
    was_at = (orders_at + 1) % 4
    moved = ((MEMBERSHIP, was_at, 10), (MEMBERSHIP, orders_at, 5_000), (LAG, 2, 3))
    snapshot = replace(orders(), clock_ms=clock_ms, through=moved)
    retained = {(MEMBERSHIP, p): (0, 9_000) for p in range(4)} | {(LAG, 2): (0, 800)}
    since_ms = silent_since_ms([("muster", snapshot)], retained)
    assert since_ms == dict.fromkeys(((MEMBERSHIP, was_at), (LAG, 2)), clock_ms - SKEW_MS)
    newer = {(MEMBERSHIP, was_at): 8_000, (MEMBERSHIP, orders_at): 8_000, (LAG, 2): 700}
    offsets = first_wanted(["muster"], [("muster", snapshot)], retained, newer)
    assert offsets == {
        "muster.config": {},
        MEMBERSHIP: {was_at: 8_000, orders_at: 5_001},
        LAG: {2: 700},
    }


class Timed:
    """A consumer that knows when records were written."""

    def offsets_for_times(self, asked: list[TopicPartition], timeout: float) -> list[object]:
        """An offset, none that is so new, or no answer."""
        offsets = {0: 40, 1: OFFSET_END, 2: 0}
        assert [each.offset for each in asked] == [5, 6, 7]
        return [
            SimpleNamespace(
                topic=each.topic,
                partition=each.partition,
                offset=offsets[each.partition],
                error=each.partition == 2 or None,
            )
            for each in asked
        ]


def test_the_offset_at_a_time() -> None:
    """Without a newer record it is the end; without an answer it is not known."""
    since_ms = {(LAG, 0): 5, (LAG, 1): 6, (LAG, 2): 7}
    retained = dict.fromkeys(since_ms, (3, 90))
    found = read_back._offsets_at(cast("Consumer", Timed()), since_ms, retained)
    assert found == {(LAG, 0): 40, (LAG, 1): 90}


def test_how_long_a_start_without_a_checkpoint_is_unverified() -> None:
    """A new checkpoint is unverified for a minute, for prefixes that a job claimed before.

    A restart reads the same end times again.
    """
    files: Files = {}
    new, kept = (MemoryCheckpoint(files, is_new=is_new) for is_new in (True, False))
    first = unverified_until_ms(new, {"a": 0, "b": 3}, 1_000)
    assert first == {"b": 61_000}
    assert unverified_until_ms(kept, {"a": 1, "b": 4}, 90_000) == first
    assert unverified_until_ms(new, {"a": 1, "b": 4}, 90_000) == {"a": 150_000, "b": 150_000}
    of_older_version = MemoryCheckpoint({}, is_new=False)
    assert unverified_until_ms(of_older_version, {"a": 9}, 90_000) == {}


def test_a_machine_whose_clock_was_set_back_starts_without_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That minute ends a minute after what the broker has stamped, or later.

    By this machine's clock it was over an hour ago, and a group of which nothing was read back
    gave its tasks to the first that joined, although the one that ran them was not asked.
    """
    with mock_kafka() as address:
        clients = client_settings(address)
        assert read_back.groups(clients, ["muster"]).stamped_ms == 0
        producer = Producer(clients.producer())
        for partition, at_ms in ((0, 8_000), (0, 9_000), (2, 5_000)):
            producer.produce(MEMBERSHIP, b"join", b"g", partition, timestamp=at_ms)
        producer.produce("muster.config", b"config", b"g", 0, timestamp=99_000)
        assert producer.flush(10) == 0
        recovered = read_back.groups(clients, ["muster"])
    monkeypatch.setattr(job, "wall_ms", lambda: 6_000)
    assert job._now_ms(recovered) == 9_000
    assert job._now_ms(None) == 6_000
    monkeypatch.setattr(job, "wall_ms", lambda: 12_000)
    assert job._now_ms(recovered) == 12_000


class Undescribed:
    """A consumer whose broker does not describe the topic."""

    def __init__(self, error: KafkaError | None) -> None:
        self._described = SimpleNamespace(error=error, partitions={})

    def list_topics(self, topic: str, timeout: float) -> object:
        """What the client gets: no partitions, and no exception."""
        return SimpleNamespace(topics={topic: self._described})


@pytest.mark.parametrize(
    "error", [None, *map(KafkaError, (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._TIMED_OUT))]
)
def test_a_topic_that_is_not_described_is_not_empty(error: KafkaError | None) -> None:
    """A broker that has just started may not know the topic: the groups are still there."""
    consumer: Any = Undescribed(error)
    with pytest.raises(KafkaException):
        read_back._newest(consumer, TOPIC, lambda: None)
