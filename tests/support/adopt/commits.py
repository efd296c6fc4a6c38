"""Every offset that a group has ever committed, from Kafka's own topic."""

from __future__ import annotations

import struct

from confluent_kafka import Consumer, TopicPartition

OFFSETS = "__consumer_offsets"


def commits(address: str, group: str, topic: str) -> dict[int, list[int]]:
    """Offsets by partition of the topic, in the order in which they were committed."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "looks", "enable.partition.eof": True}
    )
    parts = consumer.list_topics(OFFSETS, timeout=30).topics[OFFSETS].partitions
    consumer.assign([TopicPartition(OFFSETS, part, 0) for part in parts])
    names = b"".join(struct.pack(">h", len(n)) + n for n in (group.encode(), topic.encode()))
    offsets: dict[int, list[int]] = {}
    ends = 0
    while ends < len(parts):
        message = consumer.poll(30)
        assert message is not None, "the offsets are not read to their end"
        if message.error() is not None:
            ends += 1
            continue
        key, value = message.key() or b"", message.value()
        # Kafka's format. Key: version, group, topic, partition. Value: version, offset.
        if value is None or key[:2] not in (b"\0\0", b"\0\1") or not key[2:].startswith(names):
            continue
        (partition,) = struct.unpack(">i", key[-4:])
        offsets.setdefault(partition, []).append(*struct.unpack_from(">q", value, 2))
    consumer.close()
    return offsets
