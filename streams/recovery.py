"""A lost checkpoint: what the coordinator knew is read back from what it published.

The compacted topic ``<prefix>.groups`` holds the newest snapshot of every group. With no checkpoint
those become the operator's initial state, one row for each group; the core then gives every member
a fresh session and asks it what it holds, so no task moves.

Where to start reading: ``config`` from its beginning (it is compacted, and a group may have been
configured without ever having had a member); ``membership`` and ``lag`` behind what every group
with members has taken in (`through`). Groups without members do not hold the start back: all they
can have missed is a join, and a member that is not answered joins again. Offsets are a matter of
cost only; rows a group has already taken in are skipped by the core.

A checkpoint counts as lost until a first batch is committed in it, because Spark hands out the
initial state in the first batch only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from muster.clients import ClientSettings
from muster.protocol import codec
from muster.protocol.errors import DecodeError
from muster.protocol.events import Tick
from muster.protocol.parts import Joiner, Whole
from muster.protocol.records import GroupSnapshot
from muster.protocol.topics import TopicKind, topic_name
from muster.streams.errors import KafkaUnreachable
from muster.streams.source import EARLIEST, input_topics, lane_of

Offsets: TypeAlias = dict[str, dict[int, int]]
"""topic → partition → offset."""

READ_TIMEOUT_S = 120.0
INITIAL = StructType(
    [StructField("lane", BinaryType()), StructField("snapshot", BinaryType(), nullable=False)]
)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was read back.

    Attributes:
        snapshots: (prefix, newest snapshot record) of every group that was not deleted.
        starting: where the source starts.
    """

    snapshots: tuple[tuple[str, GroupSnapshot], ...]
    starting: Offsets


def is_new(spark: SparkSession, checkpoint: str) -> bool:
    """Whether the checkpoint has no committed batch, on whatever file system it is."""
    jvm, context = spark._jvm, spark.sparkContext
    assert jvm is not None  # the session runs
    path = jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/commits")
    system = path.getFileSystem(context._jsc.hadoopConfiguration())
    if not system.exists(path):
        return True
    return not any(status.getPath().getName().isdigit() for status in system.listStatus(path))


def recover(clients: ClientSettings, prefixes: Iterable[str]) -> Recovered:
    """Read every group's newest snapshot, and work out where to start.

    Raises:
        KafkaUnreachable: Kafka did not hand the topics out in time.
    """
    prefixes = tuple(prefixes)
    snapshots: list[tuple[str, GroupSnapshot]] = []
    consumer = Consumer(
        clients.librdkafka({"group.id": f"{prefixes[0]}.recovery", "enable.auto.commit": False})
    )
    try:
        for prefix in prefixes:
            values = _newest(consumer, topic_name(TopicKind.GROUPS, prefix))
            snapshots += [(prefix, found) for found in _decoded(values)]
        starting = {
            topic: _bounded(consumer, topic, offsets)
            for topic, offsets in first_wanted(prefixes, snapshots).items()
        }
    except KafkaException as error:
        raise KafkaUnreachable(f"the groups cannot be read back: {error}") from error
    finally:
        consumer.close()
    return Recovered(tuple(snapshots), starting)


def initial_state(spark: SparkSession, found: Recovered) -> DataFrame:
    """Snapshots as the operator takes them: one row for each group."""
    rows = [
        (lane_of(prefix, encoded.key), encoded.value)
        for prefix, snapshot in found.snapshots
        for encoded in (codec.encode(snapshot),)
    ]
    return spark.createDataFrame(rows, INITIAL)


def wake_all(clients: ClientSettings, found: Recovered) -> None:
    """Write a tick for every group.

    The first batch, which loads the state, has rows then, and each group asks its members at once
    what they hold.

    Raises:
        KafkaUnreachable: Kafka did not take the ticks.
    """
    producer = Producer(clients.producer())
    for prefix, snapshot in found.snapshots:
        encoded = codec.encode(Tick(group=snapshot.group))
        topic = topic_name(TopicKind.MEMBERSHIP, prefix)
        producer.produce(topic, key=encoded.key, value=encoded.value, headers=list(encoded.headers))
        producer.poll(0)
    if left := producer.flush(READ_TIMEOUT_S):
        raise KafkaUnreachable(f"{left} ticks were not taken")


def _newest(consumer: Consumer, topic: str) -> dict[bytes, bytes]:
    """Newest value of every key of a compacted topic, tombstones left out."""
    listed = consumer.list_topics(topic, timeout=READ_TIMEOUT_S).topics[topic].partitions
    ends: dict[int, int] = {}
    for partition in listed:
        low, high = consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=READ_TIMEOUT_S
        )
        if high > low:
            ends[partition] = high
    newest: dict[bytes, bytes] = {}
    joiner = Joiner()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    deadline = time.monotonic() + READ_TIMEOUT_S
    while ends:
        if time.monotonic() > deadline:
            raise KafkaUnreachable(
                f"{topic} could not be read to its end in {READ_TIMEOUT_S:.0f} s"
            )
        for message in consumer.consume(10_000, 0.2):
            key, value = message.key(), message.value()
            if message.error() is not None or key is None:
                continue
            deadline = time.monotonic() + READ_TIMEOUT_S
            whole = _joined(joiner, key, value)
            if whole is None:
                continue
            if whole.value is None:
                newest.pop(whole.key, None)
            else:
                newest[whole.key] = whole.value
        # By position, not by messages: the last offsets may have been compacted away.
        for position in consumer.position([TopicPartition(topic, p) for p in ends]):
            if position.offset >= ends[position.partition]:
                del ends[position.partition]
    consumer.unassign()
    return newest


def _joined(joiner: Joiner, key: bytes, value: bytes | None) -> Whole | None:
    try:
        return joiner.feed(key, value)
    except DecodeError:
        return None


def _decoded(values: Mapping[bytes, bytes]) -> list[GroupSnapshot]:
    found: list[GroupSnapshot] = []
    for key, value in sorted(values.items()):
        try:
            record = codec.decode_record(TopicKind.GROUPS, key, value)
        except DecodeError:
            continue  # not ours; a group of ours is never unreadable, or every reader would fail
        if isinstance(record, GroupSnapshot):
            found.append(record)
    return found


def first_wanted(
    prefixes: Iterable[str], snapshots: Iterable[tuple[str, GroupSnapshot]]
) -> Offsets:
    """First offset wanted of every partition some group has read; none of config.

    Args:
        prefixes: topic prefixes.
        snapshots: (prefix, newest snapshot) of every group.
    """
    held: Offsets = {topic: {} for topic in input_topics(tuple(prefixes))}
    free: Offsets = {topic: {} for topic in held}
    for prefix, snapshot in snapshots:
        config = topic_name(TopicKind.CONFIG, prefix)
        for topic, partition, offset in snapshot.through:
            if topic not in held or topic == config:
                continue
            if snapshot.members:
                known = held[topic].get(partition, offset + 1)
                held[topic][partition] = min(known, offset + 1)
            else:
                known = free[topic].get(partition, 0)
                free[topic][partition] = max(known, offset + 1)
    return {topic: {**free[topic], **held[topic]} for topic in held}


def _bounded(consumer: Consumer, topic: str, wanted: Mapping[int, int]) -> dict[int, int]:
    """Offsets for every partition of a topic, none outside what is retained."""
    partitions = consumer.list_topics(topic, timeout=READ_TIMEOUT_S).topics[topic].partitions
    bounded: dict[int, int] = {}
    for partition in partitions:
        low, high = consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=READ_TIMEOUT_S
        )
        offset = wanted.get(partition, EARLIEST)
        bounded[partition] = offset if low <= offset <= high else EARLIEST
    return bounded
