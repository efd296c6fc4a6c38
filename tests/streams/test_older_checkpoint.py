"""A checkpoint that lacks batches which its own job has published is found out."""

from __future__ import annotations

import tarfile
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from support.kafka.mock_kafka import mock_kafka
from support.repository.sources import ROOT
from support.state.snapshots import orders
from support.streams.checkpoints import MemoryCheckpoint

from muster.kafka.client_settings import client_settings
from muster.protocol.codec import Encoded, encode
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupGone
from muster.protocol.split_records import parts
from muster.streams.checkpoint import older_than_published
from muster.streams.checkpoint.files import batch_ends
from muster.streams.checkpoint.older_than_published import (
    FILE,
    ReadBack,
    first_ahead,
    note_read_back,
)

P = "muster"
M, L = "muster.membership", "muster.lag"
ENDS = {M: {0: 10, 1: 0}, L: {0: 5}}


@pytest.mark.parametrize(
    ("through", "is_ahead"),
    [
        ((), False),
        (((M, 0, 9), (L, 0, 4)), False),
        (((M, 0, 9), (L, 0, 5)), True),
        (((M, 0, 10),), True),
        (((M, 1, 0),), True),
        (((M, 2, 0),), True),  # a partition that was added since
        ((("other.membership", 0, 99),), False),  # a prefix that the checkpoint does not know
    ],
)
def test_what_a_group_has_taken_in_and_the_checkpoint_has_not(
    through: tuple[tuple[str, int, int], ...], is_ahead: bool
) -> None:
    """The newest batch of the checkpoint ends at an offset behind its last event."""
    published = [(P, orders()), (P, replace(orders(), through=through))]
    ahead = first_ahead(published, ENDS, ReadBack({}, {}))
    assert (ahead is not None) is is_ahead


def test_groups_that_were_read_back_may_be_ahead_of_a_backlog() -> None:
    """Their events up to there were taken in before; the first batches work through others'.

    Records of earlier coordinators do not count: they may have the offsets of another cluster.
    """
    before = replace(orders(), through=((M, 0, 700), (L, 0, 3)))
    checkpoint = MemoryCheckpoint({}, is_new=True)
    note_read_back(checkpoint, {P: 4}, [(P, orders()), (P, before)])
    kept = older_than_published._read_back(checkpoint.read(FILE))
    assert kept == ({P: 4}, {M: {0: 700}, L: {0: 3}})
    asks = replace(before, coordinator_epoch=4)
    assert first_ahead([(P, asks)], ENDS, kept) is None
    later = replace(asks, through=((M, 0, 701), (L, 0, 3)))
    assert first_ahead([(P, asks), (P, later)], ENDS, kept) == (later, M, 0, 701)
    foreign = replace(later, coordinator_epoch=3)
    assert first_ahead([(P, foreign)], ENDS, kept) is None


def test_the_end_of_a_batch_as_spark_writes_it() -> None:
    """Of a checkpoint that Spark wrote; of a form that is not known nothing is concluded."""
    with tarfile.open(ROOT / "tests" / "golden" / "checkpoint" / "1.tar.gz") as kept:
        content = kept.extractfile("checkpoint/offsets/3")
        assert content is not None
        ends = batch_ends(content.read())
    assert ends == {
        "kept.config": {0: 0, 1: 1},
        "kept.lag": {0: 0, 1: 0},
        "kept.membership": {0: 0, 1: 6},
    }
    for other in (b"", b"v1", b"v1\n{}\n-", b"v1\n{}\n[]", b"v1\n{}\n{}\n{}", b"\xff\n\n{}"):
        assert batch_ends(other) is None


def test_the_newest_records_of_each_partition() -> None:
    """Split records are joined; of a long partition only the end is read."""
    old = [(0, encode(replace(orders(n), group=GroupId("old")))) for n in range(40)]
    split = [(1, each) for each in parts(orders(8), 300)]
    gone = [(1, encode(GroupGone(group=GroupId("gone")))), (2, Encoded(b"x", b"rubbish", ()))]
    with mock_kafka() as address:
        clients = client_settings(address)
        assert older_than_published.newest_published(clients, "muster") == []
        producer = Producer(clients.producer())
        for partition, record in (*old, *split, *gone):
            producer.produce("muster.groups", record.value, record.key, partition)
        assert producer.flush(10) == 0
        read = older_than_published.newest_published(clients, "muster")
    by_group = sorted((snapshot.group, snapshot.generation) for snapshot in read)
    newest = older_than_published.NEWEST_RECORDS
    assert by_group == [*(("old", n) for n in range(40 - newest, 40)), ("orders", 8)]
