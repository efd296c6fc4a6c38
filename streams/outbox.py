"""Records → rows for the sink: the table of which record goes to which topic."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.types import Row

from muster.protocol import codec
from muster.protocol.records import (
    GroupGone,
    GroupSnapshot,
    MemberAssignment,
    MemberGone,
    Record,
    Rejected,
    WakeUp,
)
from muster.protocol.topics import TopicKind, topic_name
from muster.streams.sink import OutputRow

TOPIC_OF: dict[type, TopicKind] = {
    MemberAssignment: TopicKind.ASSIGNMENTS,
    MemberGone: TopicKind.ASSIGNMENTS,
    GroupSnapshot: TopicKind.GROUPS,
    GroupGone: TopicKind.GROUPS,
    WakeUp: TopicKind.CLOCK,
    Rejected: TopicKind.REJECTED,
}


def rows(prefix: str, records: Iterable[Record]) -> list[Row]:
    """Rows of `sink.OUTPUT`, in the order of the records.

    Raises:
        EncodeError: a record that cannot be written.
    """
    found: list[Row] = []
    for record in records:
        encoded = codec.encode(record)
        topic = topic_name(TOPIC_OF[type(record)], prefix)
        headers = list(encoded.headers) or None
        found.append(OutputRow(topic, encoded.key, encoded.value, headers, None))
    return found
