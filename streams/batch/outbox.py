"""Records → rows for the sink: the topic of each record, and the parts of one that is too large."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql.types import Row

from muster.protocol.keys import partition_of, whole_key
from muster.protocol.records import (
    Dictionary,
    GroupGone,
    GroupSnapshot,
    MemberAssignment,
    MemberGone,
    Record,
    Rejected,
    WakeUp,
)
from muster.protocol.split_records import parts
from muster.protocol.topics import TopicKind, topic_name
from muster.streams.sink import OutputRow

SINCE = "since"
"""Header of a snapshot: broker time (epoch milliseconds, text) of the oldest event it answers."""

TOPIC_OF: dict[type, TopicKind] = {
    MemberAssignment: TopicKind.ASSIGNMENTS,
    MemberGone: TopicKind.ASSIGNMENTS,
    Dictionary: TopicKind.GROUPS,
    GroupSnapshot: TopicKind.GROUPS,
    GroupGone: TopicKind.GROUPS,
    WakeUp: TopicKind.CLOCK,
    Rejected: TopicKind.REJECTED,
}


def rows(
    prefix: str,
    records: Iterable[Record],
    partitions: Mapping[str, int],
    *,
    turn: int = 0,
    since_ms: int | None = None,
) -> list[Row]:
    """Rows of `sink.OUTPUT`, in the order of the records.

    Args:
        prefix: topic prefix.
        records: the records to publish.
        partitions: topic → number of partitions; needed for parts only, which must be in the
            partition of the whole record.
        turn: see `parts`; must alternate from one publication of a group's snapshot to the next.
        since_ms: broker time of the oldest event that a snapshot among the records answers. It
            becomes a header, from which a reader computes how long the answer took.

    Raises:
        EncodeError: a record cannot be encoded.
    """
    output: list[Row] = []
    for record in records:
        topic = topic_name(TOPIC_OF[type(record)], prefix)
        own_turn = record.revision if isinstance(record, MemberAssignment) else turn
        for each in parts(record, turn=own_turn):
            is_part = whole_key(each.key) != each.key and not isinstance(record, Rejected)
            place = partition_of(each.key, partitions[topic]) if is_part else None
            headers = list(each.headers) or None
            if since_ms is not None and isinstance(record, GroupSnapshot):
                headers = [*each.headers, (SINCE, str(since_ms).encode())]
            output.append(OutputRow(topic, each.key, each.value, headers, place))
    return output
