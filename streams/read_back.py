"""A lost checkpoint: the coordinator reads back what it published.

The compacted topic ``<prefix>.groups`` holds the newest snapshot of every group. Without a
checkpoint the snapshots become the operator's initial state, one row for each group. The core then
gives every member a fresh session and asks it what it holds, so no task moves.

The source starts ``config`` at its beginning: the topic is compacted, and a group may have a config
without ever having had a member. It starts ``membership`` and ``lag`` at the first row that some
group with members has not taken in (`through`). Groups without members do not hold the start back:
they can only have missed a join, and a member that gets no answer joins again. Nor do quarantined
ones, whose rows are refused until members are asked. The operator leaves out rows that a group has
already taken in, so an earlier start costs time and changes nothing.

A group may have read a partition last weeks ago: of `lag`, or of `membership` before the topic got
more partitions. It holds that one back only to `SKEW_MS` before its own clock, because each start
would read all that Kafka retains there.

A checkpoint counts as lost until a first batch is committed in it, because Spark hands out the
initial state in the first batch only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, BooleanType, StructField, StructType

from muster.kafka.client_settings import ClientSettings
from muster.kafka.compacted import newest_values
from muster.kafka.lasting_producer import produce
from muster.kafka.reader import offsets_of, until_end
from muster.logs import KAFKA
from muster.protocol import codec
from muster.protocol.errors import DecodeError
from muster.protocol.events import Mark, Tick
from muster.protocol.keys import key_of, partition_of
from muster.protocol.records import GroupSnapshot
from muster.protocol.topics import TopicKind, topic_name
from muster.signing.followed_key_file import KeyFile, signed
from muster.streams.checkpoint.files import Offsets
from muster.streams.errors import KafkaUnreachable
from muster.streams.source import EARLIEST, input_topics, lane_of

T = TypeVar("T")

_Places: TypeAlias = tuple[tuple[str, int, int], ...]
Retained: TypeAlias = Mapping[tuple[str, int], tuple[int, int]]
"""(topic, partition) → first offset and end."""

READ_TIMEOUT_S = 120.0
SKEW_MS = 600_000
"""By how much one partition may be behind another when a batch ends, with brokers' clocks that
differ. What is farther behind and not read again, a member's lag for example, is asked for."""
INITIAL = StructType(
    [
        StructField("lane", BinaryType()),
        StructField("snapshot", BinaryType(), nullable=False),
        StructField("quarantined", BooleanType(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The groups that were read back.

    Attributes:
        snapshots: with its prefix, the newest one of every group that was not forgotten.
        starting: where the source starts; at `EARLIEST` where an offset is not retained any more.
        last: where the last record of every partition is, if it has one.
        stamped_ms: the newest time that the broker has stamped on a record of `membership`, epoch
            milliseconds; 0 = there is none.
    """

    snapshots: tuple[tuple[str, GroupSnapshot], ...]
    starting: Offsets
    last: Offsets
    stamped_ms: int = 0


def _nothing() -> None:
    pass


def groups(
    clients: ClientSettings, prefixes: Iterable[str], gets_on: Callable[[], None] = _nothing
) -> Recovered:
    """Read every group's newest snapshot, and compute where the source starts.

    `gets_on` is called for each record that is read, and for each that is decoded.

    Raises:
        KafkaUnreachable: the topics could not be read in time.
    """
    prefixes = tuple(prefixes)
    snapshots: list[tuple[str, GroupSnapshot]] = []
    # A request waits behind a fetch that is under way on the same connection.
    more = {"enable.partition.eof": True, "fetch.wait.max.ms": 10}
    consumer = Consumer(clients.reader(f"{prefixes[0]}.recovery", more), logger=KAFKA)
    try:
        for prefix in prefixes:
            values = _newest(consumer, topic_name(TopicKind.GROUPS, prefix), gets_on)
            snapshots += [(prefix, snapshot) for snapshot in _decoded(values, gets_on)]
        consumer.unassign()
        topics = input_topics(prefixes)
        retained = offsets_of(consumer, topics, READ_TIMEOUT_S)
        if missing := {*topics} - {topic for topic, _ in retained}:
            raise KafkaUnreachable(f"Kafka does not describe {', '.join(sorted(missing))}")
        snapshots = [(prefix, without_others(snapshot, retained)) for prefix, snapshot in snapshots]
        newer = _offsets_at(consumer, silent_since_ms(snapshots, retained), retained)
        stamped_ms = _newest_stamp_ms(consumer, prefixes, retained)
    except KafkaException as error:
        raise KafkaUnreachable(f"the groups cannot be read back: {error}") from error
    finally:
        consumer.close()
    wanted = first_wanted(prefixes, snapshots, retained, newer)
    starting: Offsets = {topic: {} for topic in wanted}
    last: Offsets = {topic: {} for topic in wanted}
    for (topic, partition), (low, high) in retained.items():
        offset = wanted[topic].get(partition, EARLIEST)
        starting[topic][partition] = offset if low <= offset <= high else EARLIEST
        last[topic][partition] = max(low, high - 1)
    return Recovered(tuple(snapshots), starting, last, stamped_ms)


def initial_state(
    spark: SparkSession, recovered: Recovered, gets_on: Callable[[], None] = _nothing
) -> DataFrame:
    """The snapshots as the operator's initial state: one row for each group.

    `gets_on` is called for each group.
    """
    rows = [
        (lane_of(prefix, encoded.key), encoded.value, snapshot.quarantine is not None)
        for prefix, snapshot in _each(recovered.snapshots, gets_on)
        for encoded in [codec.encode(snapshot)]
    ]
    return spark.createDataFrame(rows, INITIAL)


def wake_all(
    clients: ClientSettings,
    recovered: Recovered,
    epochs: Mapping[str, int],
    keys: KeyFile | None = None,
    gets_on: Callable[[], None] = _nothing,
) -> None:
    """Write a tick for every group; `gets_on` is called for each that Kafka has acknowledged.

    The ticks give rows to the first batch, which loads the state, and make each group ask its
    members at once what they hold. A tick names this job's epoch (`epochs`, by prefix), which
    proves that the records behind it were written after the start.

    Raises:
        KafkaUnreachable: Kafka did not acknowledge the ticks.
    """
    # A new idempotent producer waits half a second for its id; a repeated tick does no harm.
    producer = Producer(clients.producer({"enable.idempotence": "false"}), logger=KAFKA)
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)
        else:
            gets_on()

    for prefix, snapshot in recovered.snapshots:
        tick = Tick(group=snapshot.group, published=Mark(epochs[prefix], 0))
        topic = topic_name(TopicKind.MEMBERSHIP, prefix)
        encoded = signed(keys, codec.encode(tick), tick, topic)
        produce(producer, topic, encoded, delivered)
        producer.poll(0)
    unsent = producer.flush(READ_TIMEOUT_S)
    if failures or unsent:
        why = f": {failures[0].str()}" if failures else ""
        raise KafkaUnreachable(f"{len(failures) + unsent} ticks were not acknowledged{why}")


def _each(items: Iterable[T], gets_on: Callable[[], None]) -> Iterator[T]:
    """The items; `gets_on` is called for each."""
    for item in items:
        gets_on()
        yield item


def _newest(consumer: Consumer, topic: str, gets_on: Callable[[], None]) -> dict[bytes, bytes]:
    """Newest value of every key of a compacted topic, without tombstones."""
    described = consumer.list_topics(topic, timeout=READ_TIMEOUT_S).topics[topic]
    if described.error is not None or not described.partitions:
        # No groups would be read back, and each would begin anew, with its first generation.
        raise KafkaException(described.error or KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    partitions = described.partitions
    starts = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions]
    rows = until_end(consumer, starts, READ_TIMEOUT_S, skip_errors=True)
    return newest_values(_each(rows, gets_on), len(partitions))


def _decoded(values: Mapping[bytes, bytes], gets_on: Callable[[], None]) -> list[GroupSnapshot]:
    snapshots: list[GroupSnapshot] = []
    for key, value in _each(sorted(values.items()), gets_on):
        try:
            record = codec.decode_record(TopicKind.GROUPS, key, value)
        except DecodeError:
            continue  # not muster's; readers of the topic can always decode muster's own records
        if isinstance(record, GroupSnapshot):
            snapshots.append(record)
    return snapshots


def _offsets_at(
    consumer: Consumer, since_ms: Mapping[tuple[str, int], int], retained: Retained
) -> dict[tuple[str, int], int]:
    """(topic, partition) → the first offset that is not older than that time."""
    asked = [TopicPartition(*place, at_ms) for place, at_ms in since_ms.items()]
    found = consumer.offsets_for_times(asked, timeout=READ_TIMEOUT_S) if asked else []
    offsets: dict[tuple[str, int], int] = {}
    for each in found:
        if each.error is None:  # else the start is earlier
            place = each.topic, each.partition
            offsets[place] = each.offset if each.offset >= 0 else retained[place][1]
    return offsets


def _newest_stamp_ms(consumer: Consumer, prefixes: Iterable[str], retained: Retained) -> int:
    """The newest time that the broker has stamped on a record of `membership`; 0 = none."""
    topics = {topic_name(TopicKind.MEMBERSHIP, prefix) for prefix in prefixes}
    starts = [
        TopicPartition(topic, partition, high - 1)
        for (topic, partition), (low, high) in retained.items()
        if topic in topics and high > low
    ]
    rows = until_end(consumer, starts, READ_TIMEOUT_S, skip_errors=True) if starts else ()
    return max((row.at_ms for row in rows), default=0)


class _Taken(NamedTuple):
    """How far a group has read a partition.

    Attributes:
        place: topic and partition.
        next: the first offset that the group has not taken in.
        holds: whether the start must not be behind it.
        may_be_silent: whether the group may have read the partition last long ago.
        since_ms: broker time before which it has certainly taken in what it has there.
    """

    place: tuple[str, int]
    next: int
    holds: bool
    may_be_silent: bool
    since_ms: int


def _taken(snapshots: Iterable[tuple[str, GroupSnapshot]], retained: Retained) -> Iterator[_Taken]:
    """How far each group has read each partition of `membership` and `lag`."""
    counts = Counter(topic for topic, _ in retained)
    for prefix, snapshot in snapshots:
        membership, lag = (topic_name(k, prefix) for k in (TopicKind.MEMBERSHIP, TopicKind.LAG))
        home = partition_of(key_of(snapshot.group), max(counts[membership], 1))
        holds = bool(snapshot.members) and snapshot.quarantine is None
        since_ms = max(snapshot.clock_ms - SKEW_MS, 0)
        for topic, partition, offset in snapshot.through:
            if topic in (membership, lag):
                may_be_silent = topic == lag or partition != home
                yield _Taken((topic, partition), offset + 1, holds, may_be_silent, since_ms)


def silent_since_ms(
    snapshots: Iterable[tuple[str, GroupSnapshot]], retained: Retained
) -> dict[tuple[str, int], int]:
    """(topic, partition) → the oldest `since_ms` of groups that may be silent there."""
    since_ms: dict[tuple[str, int], int] = {}
    for taken in _taken(snapshots, retained):
        if taken.holds and taken.may_be_silent:
            known_ms = since_ms.get(taken.place, taken.since_ms)
            since_ms[taken.place] = min(known_ms, taken.since_ms)
    return since_ms


def first_wanted(
    prefixes: Iterable[str],
    snapshots: Iterable[tuple[str, GroupSnapshot]],
    retained: Retained,
    newer: Mapping[tuple[str, int], int],
) -> Offsets:
    """First offset to read of every partition that some group has read; none of config.

    `newer` has the offsets of `silent_since_ms`.
    """
    held: Offsets = {topic: {} for topic in input_topics(tuple(prefixes))}
    free: Offsets = {topic: {} for topic in held}
    for taken in _taken(snapshots, retained):
        topic, partition = taken.place
        offset = max(taken.next, newer.get(taken.place, 0) if taken.may_be_silent else 0)
        offsets, choose = (held, min) if taken.holds else (free, max)
        if topic in held:
            offsets[topic][partition] = choose(offsets[topic].get(partition, offset), offset)
    return {topic: {**free[topic], **held[topic]} for topic in held}


def without_others(snapshot: GroupSnapshot, retained: Retained) -> GroupSnapshot:
    """The snapshot without the offsets that lie beyond the end of a topic.

    Such an offset belongs to another topic: the snapshot was copied from another cluster, or the
    topic was deleted and created again. With these offsets the group would ignore its members until
    the new topic had grown as long.
    """

    def known(through: _Places) -> _Places:
        return tuple(
            (topic, partition, offset)
            for topic, partition, offset in through
            if offset < retained.get((topic, partition), (0, 0))[1]
        )

    through, quarantine = known(snapshot.through), snapshot.quarantine
    if quarantine is not None:
        quarantine = quarantine._replace(through=known(quarantine.through))
    if through == tuple(snapshot.through) and quarantine == snapshot.quarantine:
        return snapshot
    return replace(snapshot, through=through, quarantine=quarantine)
