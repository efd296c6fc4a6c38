"""Which groups are configured: read once by a worker whose own group has no tasks.

Most often the group's name is misspelt then, and the names there are say so.
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
"""So long is read; what was found by then is told."""


def configured_groups(config: Mapping[str, Any], topic: str) -> list[str] | None:
    """Names of the groups that have tasks, ascending; None = Kafka did not say.

    Args:
        config: of a consumer.
        topic: `muster.groups`, with its prefix.
    """
    consumer = Consumer({**config, "enable.partition.eof": True}, logger=log)
    try:
        found = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic]
        if found.error is not None:
            return None
        partitions = found.partitions
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        newest = _newest(consumer, len(partitions))
    except KafkaException:
        return None
    finally:
        consumer.close()
    return sorted(name for name, value in newest.items() if _has_tasks(name, value))


def _newest(consumer: Consumer, partitions: int) -> dict[str, bytes]:
    """The newest record of every group, by its name."""
    found: dict[str, bytes] = {}
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
                found.pop(group, None)
            else:
                found[group] = whole.value
    return found


def _has_tasks(group: str, value: bytes) -> bool:
    try:
        record = decode_record(TopicKind.GROUPS, key_of(group), value)
    except DecodeError:
        return False
    return isinstance(record, GroupSnapshot) and bool(record.tasks)
