"""Which record of a group discovery takes for its newest one."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import Message

from muster.kafka.client_settings import client_settings
from muster.protocol import codec
from muster.protocol.events import Event, GroupConfig, GroupDeleted, TopicsFound
from muster.protocol.ids import GroupId
from muster.protocol.keys import key_of, partition_of
from muster.protocol.settings import Settings
from muster.protocol.sources import Found, Source
from muster.streams.discovery_thread import Discovery, _Group

G = GroupId("g")
TOPIC = "muster.config"
HOME = partition_of(key_of(G), 2)
OTHER = 1 - HOME


def config(*topics: str) -> GroupConfig:
    """A config that declares these topics."""
    return GroupConfig(
        group=G, assignor="sticky", settings=Settings(), tasks=(), sources=(Source(topics),)
    )


def found(topic: str) -> TopicsFound:
    """What was found for a config that declares this topic."""
    return TopicsFound(group=G, found=(Found(Source((topic,)), ()),))


def sources(group: _Group) -> tuple[object, object]:
    """The sources that the config declares, and those of what was found."""
    assert group.config is not None
    found_sources = group.found and tuple(each.source for each in group.found.found)
    return group.config.sources, found_sources


def read(*records: tuple[Event, int, int, int]) -> _Group:
    """What is known of the group after these records: event, partition, offset, time."""
    discovery = Discovery(client_settings("k:9092"), ["muster"])
    discovery._counts = Counter({TOPIC: 2})
    for event, partition, offset, at_ms in records:
        encoded = codec.encode(event)
        message = SimpleNamespace(
            topic=lambda: TOPIC,
            key=lambda encoded=encoded: encoded.key,
            value=lambda encoded=encoded: encoded.value,
            partition=lambda partition=partition: partition,
            offset=lambda offset=offset: offset,
            timestamp=lambda at_ms=at_ms: (2, at_ms),
        )
        discovery._note(cast("Message", message))
    return discovery._groups["muster", G]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_topic_that_got_partitions(order: tuple[int, int]) -> None:
    """The old config and what was found for it are in another partition, read first or last."""
    each = (
        [(config("old"), OTHER, 40, 1_000), (found("old"), OTHER, 41, 1_001)],
        [(config("new"), HOME, 0, 5_000), (found("new"), HOME, 1, 5_001)],
    )
    group = read(*each[order[0]], *each[order[1]])
    assert sources(group) == ((Source(("new",)),), (Source(("new",)),))


def test_a_group_that_was_deleted_after_the_topic_got_partitions() -> None:
    """The tombstone is in the partition of today, and the config before it is not taken back."""
    deleted = GroupDeleted(group=G), HOME, 0, 5_000
    assert read(deleted, (config("old"), OTHER, 40, 1_000)).config is None


def test_a_broker_whose_clock_is_behind() -> None:
    """In one partition the later record counts, also with an earlier time of another leader."""
    records = [(config("old"), HOME, 0, 900_000), (config("new"), HOME, 1, 600_000)]
    assert sources(read(*records)) == ((Source(("new",)),), None)
