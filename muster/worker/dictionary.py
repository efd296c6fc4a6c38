"""Reads the dictionary of a large group, when an assignment refers to one the member lacks.

Small groups have none. The coordinator writes a dictionary before the assignments that need it, to
`muster.groups` under the key ``group||names``, and only when the group's tasks change. If the topic
has been given more partitions since, the dictionary may be in any of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from muster.kafka.compacted import joined
from muster.kafka.reader import Row, until_end
from muster.protocol.codec import decode_record
from muster.protocol.errors import DecodeError
from muster.protocol.keys import DICTIONARY_PART, joined_key, key_of, partition_of
from muster.protocol.records import Dictionary
from muster.protocol.taskset import UnitRef
from muster.protocol.topics import TopicKind

log = logging.getLogger("muster.worker.kafka")

Dictionaries: TypeAlias = Mapping[int, tuple[UnitRef, ...]]
"""Version -> units."""

PATIENCE_S: Final = 10.0
"""Reading ends when Kafka has not answered for this long; the next record tries again."""


def find_names(config: Mapping[str, Any], topic: str, group: str, version: int) -> Dictionaries:
    """The dictionaries of a group that the topic still has, by version.

    Args:
        config: of a consumer.
        topic: `muster.groups`, with its prefix.
        group: the group.
        version: the one needed; the search ends with the partition that has it.
    """
    own_key = key_of(group, part=DICTIONARY_PART)
    dictionaries: dict[int, tuple[UnitRef, ...]] = {}
    consumer = Consumer({**config, "enable.partition.eof": True}, logger=log)
    try:
        count = len(consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)
        own = partition_of(own_key, count)
        for partition in sorted(range(count), key=lambda number: number != own):
            start = TopicPartition(topic, partition, OFFSET_BEGINNING)
            dictionaries |= dictionaries_in(until_end(consumer, [start], PATIENCE_S), group)
            if version in dictionaries:
                break
    except KafkaException as error:
        log.error("the dictionary of %s cannot be read: %s", group, error)
    finally:
        consumer.close()
    return dictionaries


def dictionaries_in(rows: Iterable[Row], group: str) -> Dictionaries:
    """The dictionaries of a group among the records of `muster.groups`, by version."""
    key = key_of(group, part=DICTIONARY_PART)
    own = (row for row in rows if row.key is not None and joined_key(row.key) == key)
    dictionaries: dict[int, tuple[UnitRef, ...]] = {}
    for row in joined(own):
        with suppress(DecodeError):  # `muster decode` shows the error
            record = decode_record(TopicKind.GROUPS, row.key, row.value)
            if isinstance(record, Dictionary):
                dictionaries[record.version] = record.units
    return dictionaries
