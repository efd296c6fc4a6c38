"""One job for two prefixes; under one a group's records are too large and come in parts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from hashlib import sha512
from pathlib import Path

import pytest
from support.kafka.brokers import Topics, new_topics
from support.state.story import config, join, report
from support.streams.job import COMMAND, Job
from support.suite.waiting import until

from muster.kafka.cluster import partitions_of
from muster.kafka.reader import read
from muster.protocol import codec
from muster.protocol.keys import partition_of
from muster.protocol.records import Dictionary, GroupSnapshot, Record
from muster.protocol.split_records import Joiner
from muster.protocol.tasks import Subtopology, TaskTable
from muster.protocol.topics import TopicKind

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SMALL = (Subtopology("0", 4),)
LARGE = tuple(Subtopology(sha512(b"%d" % number).hexdigest(), 1) for number in range(7_000))
"""More names than fit into a record of 1 MB."""


@pytest.fixture
def prefixes(bootstrap: str) -> Iterator[tuple[Topics, Topics]]:
    """Two sets of topics with different numbers of partitions."""
    two_topics = new_topics(bootstrap), new_topics(bootstrap, partitions=3)
    yield two_topics
    for topics in two_topics:
        topics.close()


def published(topics: Topics) -> tuple[list[Record], set[bytes]]:
    """The records on the groups topic, with parts joined, and all keys."""
    joiner, records, keys = Joiner(), [], set()
    topic = topics.name(TopicKind.GROUPS)
    count = partitions_of(topics.clients, topic)
    for row in read(topics.clients, topic):
        assert row.key is not None
        keys.add(row.key)
        assert row.partition == partition_of(row.key, count)
        whole = joiner.feed(row.key, row.value)
        if whole is not None:
            records.append(codec.decode_record(TopicKind.GROUPS, *whole))
    return records, keys


def newest(topics: Topics) -> GroupSnapshot | None:
    """The group's newest snapshot."""
    states = [record for record in published(topics)[0] if isinstance(record, GroupSnapshot)]
    return states[-1] if states else None


def has(topics: Topics, members: int) -> bool:
    """Whether the group has this many members, all placed, and none that still has to report."""
    state = newest(topics)
    if state is None or state.generation != state.target_generation or state.recovering:
        return False
    return len(state.members) == members


def held(topics: Topics, member: str) -> list[str]:
    """The tasks of a member."""
    state = newest(topics)
    assert state is not None
    (slot,) = (entry.slot for entry in state.members if entry.id == member)
    table = TaskTable(state.tasks)
    return [str(table.task(index)) for index in (state.holder == slot).nonzero()[0].tolist()]


def answer(topics: Topics, member: str, tasks: list[str]) -> None:
    """Write a member's report of what it holds, as of its newest record."""
    state = newest(topics)
    assert state is not None
    (entry,) = (entry for entry in state.members if entry.id == member)
    said = report(
        member, entry.revision, *tasks, epoch=entry.epoch, coordinator_epoch=state.coordinator_epoch
    )
    topics.write(TopicKind.MEMBERSHIP, said)


def test_two_prefixes_and_a_group_in_parts(prefixes: tuple[Topics, Topics], tmp_path: Path) -> None:
    """Two groups of one name under two prefixes have their own tasks, members and recovery.

    Without the checkpoint the parts of the large group are joined and read back, the owner keeps
    its tasks, and a new member gets its share.
    """
    one, two = prefixes
    long = {"session_timeout_ms": 600_000}
    with Job(one, tmp_path, command=(*COMMAND, "--topic-prefix", two.prefix)) as job:
        job.start()
        for topics, tasks in zip(prefixes, (SMALL, LARGE), strict=True):
            topics.write(TopicKind.CONFIG, config(*tasks, **long))
            topics.write(TopicKind.MEMBERSHIP, join("W1"))
        for topics in prefixes:
            until(lambda topics=topics: has(topics, 1), "W1 is in", story=job.tail, pause_s=0.5)
        one.write(TopicKind.MEMBERSHIP, join("W2"))
        until(lambda: has(one, 2), "W2 is in the small group", story=job.tail, pause_s=0.5)
        assert len(held(two, "W1")) == len(LARGE)
        records, keys = published(two)
        names = [record for record in records if isinstance(record, Dictionary)]
        assert [record.version for record in names] == [
            Dictionary.of("g", TaskTable(LARGE)).version
        ]
        beside = {key.partition(b"||")[2].rstrip(b"12") for key in keys}
        assert {b"", b"names"} < beside <= {b"", b"names", b"names.a", b"a", b"b"}

        assert job.stop() == 0
        shutil.rmtree(job.checkpoint)
        job.start()
        two.write(TopicKind.MEMBERSHIP, join("W2"))
        for topics in prefixes:
            what = "both are members, and have said what they hold"
            until(lambda topics=topics: _answered(topics), what, story=job.tail, pause_s=0.5)
        state = newest(two)
        assert state is not None
        assert (state.target == 0).sum() == (state.target == 1).sum() == len(LARGE) / 2
        assert len(held(two, "W1")) == len(LARGE)  # to be released by it first


def _answered(topics: Topics) -> bool:
    """Answer for members that are asked; return whether two are members and none is asked."""
    state = newest(topics)
    assert state is not None
    for entry in state.members:
        if entry.slot in state.recovering:
            answer(topics, entry.id, held(topics, entry.id))
    return has(topics, 2)
