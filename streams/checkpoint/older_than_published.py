"""A checkpoint that is older than what its own job has published.

The machine of a coordinator may be restored from a backup or a snapshot, or lose power before its
disk has all files. The checkpoint then lacks batches that the job has published, and no claim shows
it, because no other job has claimed. A job that went on from there would take the same events in
other batches and decide otherwise: it fences members, gives tasks to two owners, and fencing tokens
go back.

So such a checkpoint is emptied, and the groups are read back, as after a loss.

A record of ``<prefix>.groups`` shows it. It names the events that its group has taken in, and Spark
writes where a batch ends (``offsets/N``) before anything of the batch is published. So no group has
taken in more than the newest batch of its checkpoint, except what it had taken in when it was read
back, which a file in the checkpoint keeps. Of each partition the newest records are enough: the
last ones published are the farthest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

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
from muster.streams.errors import KafkaUnreachable

FILE = "muster-read-back.json"
_EPOCHS, _TAKEN = "epochs", "taken"
NEWEST_RECORDS = 32
"""So many records of each partition are read; the parts of a split record count."""
READ_TIMEOUT_S = 30.0


class ReadBack(NamedTuple):
    """What a checkpoint keeps of the groups that were read back into it.

    Attributes:
        epochs: prefix → epoch of the coordinator that read them back. Records of earlier ones were
            read back, or come from one that is superseded.
        taken: topic → partition → the newest event that one of the groups has taken in.
    """

    epochs: Mapping[str, int]
    taken: Offsets


def story(checkpoint: Checkpoint, clients: ClientSettings, prefixes: Iterable[str]) -> str | None:
    """What a checkpoint lacks of what was published, in words; None = it lacks nothing.

    Nothing is concluded for a checkpoint on which only earlier versions ran: they kept no file.

    Raises:
        KafkaUnreachable: the published records could not be read.
    """
    if checkpoint.is_new or not (kept := checkpoint.read(FILE)):
        return None
    # The records first: a process that still runs on this checkpoint begins a batch, then publishes
    # it.
    published = [(p, s) for p in prefixes for s in newest_published(clients, p)]
    ends = checkpoint.begun_ends()
    if ends is None:
        return None
    ahead = first_ahead(published, ends, _read_back(kept))
    return None if ahead is None else _story(*ahead)


def note_start(checkpoint: Checkpoint, epochs: Mapping[str, int]) -> None:
    """Note the epochs of a start on a checkpoint of an earlier version; later starts compare."""
    if not checkpoint.read(FILE):
        note_read_back(checkpoint, epochs, ())


def note_read_back(
    checkpoint: Checkpoint,
    epochs: Mapping[str, int],
    snapshots: Iterable[tuple[str, GroupSnapshot]],
) -> None:
    """Keep what a coordinator has read back; `snapshots` are the groups, each with its prefix."""
    taken: dict[str, dict[str, int]] = {}
    for _, snapshot in snapshots:
        for topic, partition, offset in snapshot.through:
            offsets = taken.setdefault(topic, {})
            offsets[str(partition)] = max(offset, offsets.get(str(partition), offset))
    checkpoint.write(FILE, {_EPOCHS: dict(epochs), _TAKEN: taken})


def _read_back(content: Mapping[str, Any]) -> ReadBack:
    """What `note_read_back` has kept."""
    taken = {t: {int(p): int(o) for p, o in each.items()} for t, each in content[_TAKEN].items()}
    return ReadBack({str(p): int(epoch) for p, epoch in content[_EPOCHS].items()}, taken)


def first_ahead(
    published: Iterable[tuple[str, GroupSnapshot]], ends: Offsets, read_back: ReadBack
) -> tuple[GroupSnapshot, str, int, int] | None:
    """The first record whose group has taken in more than the checkpoint; None = there is none.

    Args:
        published: records of groups, each with its prefix.
        ends: topic → partition → where the checkpoint's newest batch ends.
        read_back: what was read back into the checkpoint.

    Returns:
        The record, and topic, partition and offset of the event.
    """
    for prefix, snapshot in published:
        if snapshot.coordinator_epoch < read_back.epochs.get(prefix, 0):
            continue
        for topic, partition, offset in snapshot.through:
            if topic not in ends:
                continue  # another prefix, which the checkpoint does not know yet
            before = read_back.taken.get(topic, {}).get(partition, -1)
            if offset > max(ends[topic].get(partition, 0) - 1, before):
                return snapshot, topic, partition, offset
    return None


def _story(snapshot: GroupSnapshot, topic: str, partition: int, offset: int) -> str:
    return (
        f"group {snapshot.group} was published with the event at offset {offset} of {topic}, "
        f"partition {partition}, which no batch of the checkpoint has. Probably the machine was "
        "restored from a backup or a snapshot, or lost power before its disk had everything. The "
        "groups are read back from Kafka, and no task moves"
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
