"""A checkpoint that is older than what its own job has published.

The machine of a coordinator may be restored from a backup or a snapshot, or lose power before its
disk has all files. The checkpoint then lacks batches that the job has published, and no claim shows
it, because no other job has claimed. A job that went on from there would take the same events in
other batches and decide otherwise: it fences members, gives tasks to two owners, and fencing tokens
go back.

A record of ``<prefix>.groups`` shows it. It names the events that its group has taken in, and Spark
writes where a batch ends (``offsets/N``) before anything of the batch is published. So no group has
taken in more than the newest batch of its checkpoint, except what it had taken in when it was read
back, which a file in the checkpoint keeps. Of each partition the newest records are enough: the
last ones published are the farthest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition

from muster.kafka.client_settings import ClientSettings
from muster.kafka.compacted import joined
from muster.kafka.reader import offsets_of, until_end
from muster.logs import KAFKA
from muster.protocol import codec
from muster.protocol.errors import DecodeError
from muster.protocol.records import GroupSnapshot
from muster.protocol.topics import TopicKind, topic_name
from muster.streams.checkpoint.files import Checkpoint, Offsets
from muster.streams.errors import KafkaUnreachable, StaleCheckpoint

FILE = "muster-read-back.json"
NEWEST_RECORDS = 32
"""So many records of each partition are read; the parts of a split record count."""
READ_TIMEOUT_S = 30.0


def fault(
    checkpoint: Checkpoint, clients: ClientSettings, prefixes: Iterable[str]
) -> StaleCheckpoint | None:
    """The error for a checkpoint that lacks a published batch; None = it lacks none.

    Raises:
        KafkaUnreachable: the published records could not be read.
    """
    if checkpoint.is_new:
        return None
    # The records first: a process that still runs on this checkpoint begins a batch, then publishes
    # it.
    published = [s for prefix in prefixes for s in newest_published(clients, prefix)]
    ends = checkpoint.begun_ends()
    if ends is None:
        return None
    read_back = {
        topic: {int(p): int(o) for p, o in offsets.items()}
        for topic, offsets in checkpoint.read(FILE).items()
        if isinstance(offsets, dict)
    }
    ahead = first_ahead(published, ends, read_back)
    return None if ahead is None else StaleCheckpoint(_story(checkpoint.folder, *ahead))


def note_read_back(checkpoint: Checkpoint, taken: Offsets) -> None:
    """Keep the newest event that a group which was read back has taken in, of each partition."""
    offsets = {t: {str(p): offset for p, offset in each.items()} for t, each in taken.items()}
    checkpoint.write(FILE, offsets)


def newest_taken(snapshots: Iterable[GroupSnapshot]) -> Offsets:
    """The newest event that one of these groups has taken in, of each partition."""
    newest: Offsets = {}
    for snapshot in snapshots:
        for topic, partition, offset in snapshot.through:
            offsets = newest.setdefault(topic, {})
            offsets[partition] = max(offset, offsets.get(partition, offset))
    return newest


def first_ahead(
    published: Iterable[GroupSnapshot],
    ends: Mapping[str, Mapping[int, int]],
    read_back: Mapping[str, Mapping[int, int]],
) -> tuple[GroupSnapshot, str, int, int] | None:
    """The first record whose group has taken in more than the checkpoint; None = there is none.

    Args:
        published: records of groups.
        ends: topic → partition → where the checkpoint's newest batch ends.
        read_back: topic → partition → newest event of the groups that were read back into it.

    Returns:
        The record, and topic, partition and offset of the event.
    """
    for snapshot in published:
        for topic, partition, offset in snapshot.through:
            if topic not in ends:
                continue  # another prefix, which the checkpoint does not know yet
            if offset >= ends[topic].get(partition, 0) and offset > read_back.get(topic, {}).get(
                partition, -1
            ):
                return snapshot, topic, partition, offset
    return None


def _story(folder: str, snapshot: GroupSnapshot, topic: str, partition: int, offset: int) -> str:
    return (
        f"the checkpoint {folder} is behind: group {snapshot.group} was published with the event "
        f"at offset {offset} of {topic}, partition {partition}, which no batch of the checkpoint "
        "has. Probably its machine was restored from a backup or a snapshot, or lost power before "
        "the disk had everything. From here, fencing tokens would go back. Give --checkpoint a new "
        "folder: the groups are read back from Kafka, and no task moves"
    )


def newest_published(clients: ClientSettings, prefix: str) -> Sequence[GroupSnapshot]:
    """The groups among the newest records of each partition of a prefix' groups.

    Raises:
        KafkaUnreachable: the records could not be read in time.
    """
    topic = topic_name(TopicKind.GROUPS, prefix)
    more = {"enable.partition.eof": True, "fetch.wait.max.ms": 10}
    consumer = Consumer(clients.reader(f"{prefix}.job", more), logger=KAFKA)
    snapshots: list[GroupSnapshot] = []
    try:
        starts = [
            TopicPartition(topic, partition, max(low, high - NEWEST_RECORDS))
            for (_, partition), (low, high) in offsets_of(consumer, [topic], READ_TIMEOUT_S).items()
            if high > low
        ]
        rows = until_end(consumer, starts, READ_TIMEOUT_S) if starts else ()
        for row in joined(rows):
            with suppress(DecodeError):  # a dictionary, or not a record of muster
                record = codec.decode_record(TopicKind.GROUPS, row.key, row.value)
                if isinstance(record, GroupSnapshot):
                    snapshots.append(record)
    except KafkaException as error:
        raise KafkaUnreachable(f"{topic} cannot be read: {error}") from error
    finally:
        consumer.close()
    return snapshots
