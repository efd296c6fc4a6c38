"""The dictionary of a large group: read when an assignment refers to one we do not have.

Small groups have none. It was written before the assignment, to `muster.groups` under the key
``group||names``; its partition is read from the beginning, once. A dictionary is written when the
group's tasks change and not again, so after the topic was given more partitions it may lie in any.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from muster.protocol.codec import decode_record
from muster.protocol.errors import DecodeError
from muster.protocol.keys import DICTIONARY_PART, joined_key, key_of, partition_of
from muster.protocol.parts import Joiner
from muster.protocol.records import Dictionary
from muster.protocol.taskset import UnitRef
from muster.protocol.topics import TopicKind

log = logging.getLogger("muster.worker.kafka")

Dictionaries: TypeAlias = Mapping[int, tuple[UnitRef, ...]]
"""Version to units."""

PATIENCE_S: Final = 10.0
"""How long Kafka may be silent before the reading is given up; the next record tries again."""


def find_names(config: Mapping[str, Any], topic: str, group: str, version: int) -> Dictionaries:
    """The dictionaries of a group that are still there, by version.

    Args:
        config: of a consumer.
        topic: `muster.groups`, with its prefix.
        group: the group.
        version: the one that is wanted; the search ends with the partition that has it.
    """
    key = key_of(group, part=DICTIONARY_PART)
    found: dict[int, tuple[UnitRef, ...]] = {}
    consumer = Consumer({**config, "enable.partition.eof": True}, logger=log)
    try:
        count = len(consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)
        own = partition_of(key, count)
        for partition in sorted(range(count), key=lambda each: each != own):
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
            found |= _names_in_partition(consumer, key)
            if version in found:
                break
    except (KafkaException, DecodeError) as error:
        log.error("the dictionary of %s cannot be read: %s", group, error)
    finally:
        consumer.close()
    return found


def _names_in_partition(consumer: Consumer, key: bytes) -> Dictionaries:
    """What the consumer finds under the key until it has read its partition to the end."""
    found: dict[int, tuple[UnitRef, ...]] = {}
    joiner = Joiner()
    while (message := consumer.poll(PATIENCE_S)) is not None:
        if (error := message.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                break
            raise KafkaException(error)
        own_key = message.key()
        if own_key is None or joined_key(own_key) != key:
            continue
        whole = joiner.feed(own_key, message.value())
        if whole is not None and whole.value is not None:
            record = decode_record(TopicKind.GROUPS, *whole)
            if isinstance(record, Dictionary):
                found[record.version] = record.units
    return found
