"""What a worker reads on `muster.groups`: names of a large group's units, and configured groups.

A member reads the dictionary of its group when an assignment refers to one that it lacks. Small
groups have none. The coordinator writes a dictionary before the assignments that need it, under the
key ``group||names``, and only when the group's tasks change. If the topic has been given more
partitions since, the dictionary may be in any of them.

The names of the configured groups are for the warning of a worker whose own group has no tasks:
often that group's name is misspelt, and the list of the others shows it.

A `config` is of a consumer, and a `topic` is `muster.groups` with its prefix.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import TopicMetadata

from muster.kafka.compacted import joined, newest_values
from muster.kafka.reader import Row, until_end
from muster.protocol.codec import decode_record
from muster.protocol.errors import DecodeError
from muster.protocol.keys import DICTIONARY_PART, joined_key, key_of, partition_of
from muster.protocol.records import Dictionary, GroupSnapshot, Record
from muster.protocol.taskset import UnitRef
from muster.protocol.topics import TopicKind

log = logging.getLogger("muster.worker.kafka")

Dictionaries: TypeAlias = Mapping[int, tuple[UnitRef, ...]]
"""Version -> units."""

PATIENCE_S: Final = 10.0
"""A dictionary: reading ends when Kafka has not answered for this long; the next record tries
again. Names of groups: longest time of reading; the groups read by then are returned."""


def find_names(config: Mapping[str, Any], topic: str, group: str, version: int) -> Dictionaries:
    """The dictionaries of a group that the topic still has, by version.

    The search ends with the partition that has the `version` needed.
    """
    own_key = key_of(group, part=DICTIONARY_PART)
    dictionaries: dict[int, tuple[UnitRef, ...]] = {}
    try:
        with _reader(config) as consumer:
            count = len(_metadata(consumer, topic).partitions)
            own = partition_of(own_key, count)
            for partition in sorted(range(count), key=lambda number: number != own):
                start = TopicPartition(topic, partition, OFFSET_BEGINNING)
                dictionaries |= dictionaries_in(until_end(consumer, [start], PATIENCE_S), group)
                if version in dictionaries:
                    break
    except KafkaException as error:
        log.error("the dictionary of %s cannot be read: %s", group, error)
    return dictionaries


def dictionaries_in(rows: Iterable[Row], group: str) -> Dictionaries:
    """The dictionaries of a group among the records of `muster.groups`, by version."""
    key = key_of(group, part=DICTIONARY_PART)
    own = (row for row in rows if row.key is not None and joined_key(row.key) == key)
    records = (_decoded(row.key, row.value) for row in joined(own))
    return {record.version: record.units for record in records if isinstance(record, Dictionary)}


def configured_groups(config: Mapping[str, Any], topic: str) -> list[str] | None:
    """Names of the groups that have tasks, ascending; None = Kafka did not answer."""
    try:
        with _reader(config) as consumer:
            metadata = _metadata(consumer, topic)
            if metadata.error is not None:
                return None
            partitions = metadata.partitions
            starts = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions]
            rows = _in_time(until_end(consumer, starts, PATIENCE_S, skip_errors=True))
            newest = newest_values(rows, len(partitions))
    except KafkaException:
        return None
    records = (_decoded(key, value) for key, value in newest.items())
    return sorted(r.group for r in records if isinstance(r, GroupSnapshot) and r.tasks)


@contextmanager
def _reader(config: Mapping[str, Any]) -> Iterator[Consumer]:
    consumer = Consumer({**config, "enable.partition.eof": True}, logger=log)
    try:
        yield consumer
    finally:
        consumer.close()


def _metadata(consumer: Consumer, topic: str) -> TopicMetadata:
    metadata: TopicMetadata = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic]
    return metadata


def _in_time(rows: Iterator[Row]) -> Iterator[Row]:
    """What can be read within `PATIENCE_S`."""
    until_s = time.monotonic() + PATIENCE_S
    with suppress(KafkaException):
        for row in rows:
            yield row
            if time.monotonic() > until_s:
                return


def _decoded(key: bytes | None, value: bytes | None) -> Record | None:
    with suppress(DecodeError):  # `muster decode` shows the error
        return decode_record(TopicKind.GROUPS, key, value)
    return None
