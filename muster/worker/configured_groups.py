"""The names of the configured groups, for the warning of a worker whose own group has no tasks.

Often that group's name is misspelt, and the list of the others shows it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from muster.protocol.codec import decode_record
from muster.protocol.errors import DecodeError
from muster.protocol.keys import key_of, parse_key
from muster.protocol.parts import Joiner
from muster.protocol.records import GroupSnapshot
from muster.protocol.topics import TopicKind
from muster.worker.dictionary import log

PATIENCE_S: Final = 10.0
"""Longest time of reading; the groups read by then are returned."""


def configured_groups(config: Mapping[str, Any], topic: str) -> list[str] | None:
    """Names of the groups that have tasks, ascending; None = Kafka did not answer.

    Args:
        config: of a consumer.
        topic: `muster.groups`, with its prefix.
    """
    consumer = Consumer({**config, "enable.partition.eof": True}, logger=log)
    try:
        metadata = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic]
        if metadata.error is not None:
            return None
        partitions = metadata.partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        newest = _newest(consumer, len(partitions))
    except KafkaException:
        return None
    finally:
        consumer.close()
    return sorted(name for name, value in newest.items() if _has_tasks(name, value))


def _newest(consumer: Consumer, partitions: int) -> dict[str, bytes]:
    """The newest record of every group, by its name."""
    records: dict[str, bytes] = {}
    joiners: defaultdict[int | None, Joiner] = defaultdict(Joiner)
    until_s, open_partitions = time.monotonic() + PATIENCE_S, partitions
    while open_partitions and time.monotonic() < until_s:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if (error := message.error()) is not None:
            open_partitions -= error.code() == KafkaError._PARTITION_EOF
            continue
        try:
            group = parse_key(message.key()).group
            whole = joiners[message.partition()].feed(message.key() or b"", message.value())
        except DecodeError:
            continue
        if whole is not None and whole.key == key_of(group):
            if whole.value is None:
                records.pop(group, None)
            else:
                records[group] = whole.value
    return records


def _has_tasks(group: str, value: bytes) -> bool:
    try:
        record = decode_record(TopicKind.GROUPS, key_of(group), value)
    except DecodeError:
        return False
    return isinstance(record, GroupSnapshot) and bool(record.tasks)
