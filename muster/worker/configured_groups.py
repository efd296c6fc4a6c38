"""The names of the configured groups, for the warning of a worker whose own group has no tasks.

Often that group's name is misspelt, and the list of the others shows it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from muster.kafka.compacted import newest_values
from muster.kafka.reader import Row, until_end
from muster.protocol.codec import decode_record
from muster.protocol.errors import DecodeError
from muster.protocol.records import GroupSnapshot, Record
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
        starts = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions]
        rows = _in_time(until_end(consumer, starts, PATIENCE_S, skip_errors=True))
        newest = newest_values(rows, len(partitions))
    except KafkaException:
        return None
    finally:
        consumer.close()
    records = (_decoded(key, value) for key, value in newest.items())
    return sorted(r.group for r in records if isinstance(r, GroupSnapshot) and r.tasks)


def _in_time(rows: Iterator[Row]) -> Iterator[Row]:
    """What can be read within `PATIENCE_S`."""
    until_s = time.monotonic() + PATIENCE_S
    with suppress(KafkaException):
        for row in rows:
            yield row
            if time.monotonic() > until_s:
                return


def _decoded(key: bytes, value: bytes) -> Record | None:
    try:
        return decode_record(TopicKind.GROUPS, key, value)
    except DecodeError:
        return None
