"""The topics: purpose, key layout and settings of each.

Input topics use ``message.timestamp.type=LogAppendTime``, because the broker's timestamps are the
group's time. They use ``compression.type=uncompressed``, because Kafka limits the bytes of a record
as they are stored: a compressed one can take a thousand times as many in the coordinator's memory.
On compacted topics the newest record of a key counts; the other topics are history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

DEFAULT_PREFIX = "muster"

RECORD_BYTES_MAX = 1_000_000
"""Limit of one record (key, value and headers, uncompressed). It is below Kafka's default
``max.request.size`` and ``max.message.bytes``, so producers and brokers accept it unconfigured."""

EVENT_BYTES_MAX = RECORD_BYTES_MAX - 2_000
"""Limit of an event's value; events are never split. The difference is for key and headers."""

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


class TopicKind(StrEnum):
    """What a topic carries. The topic's name is prefix, dot, kind."""

    MEMBERSHIP = "membership"
    HEARTBEATS = "heartbeats"
    CONFIG = "config"
    LAG = "lag"
    ASSIGNMENTS = "assignments"
    GROUPS = "groups"
    REJECTED = "rejected"
    CLOCK = "clock"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Topic:
    """The specification of one topic.

    Attributes:
        purpose: one sentence for `muster topics` and the docs.
        key: layout of its record keys.
        settings: topic settings, by Kafka's names.
        partitions: fixed number of partitions; None = as many as the operator wants.
        optional: muster works without it; installations of older versions do not have it.
    """

    kind: TopicKind
    purpose: str
    key: str
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    partitions: int | None = None
    optional: bool = False

    def name(self, prefix: str = DEFAULT_PREFIX) -> str:
        """The full topic name."""
        return f"{prefix}.{self.kind}"


_INPUT = {"message.timestamp.type": "LogAppendTime", "compression.type": "uncompressed"}
_OUTPUT = {"message.timestamp.type": "CreateTime"}


def _history(retention_ms: int, *, is_input: bool = True) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        **(_INPUT if is_input else _OUTPUT),
        "retention.ms": str(retention_ms),
        "segment.ms": str(_HOUR_MS),
        "max.message.bytes": "1048588",
    }


def _compacted(*, is_input: bool = False, segment_bytes: int = 64 << 20) -> dict[str, str]:
    # delete.retention.ms: a reader that was away for a day still sees tombstones.
    # max.compaction.lag.ms and the segment size bound how much a reader from the beginning reads.
    return {
        "cleanup.policy": "compact",
        **(_INPUT if is_input else _OUTPUT),
        "delete.retention.ms": str(_DAY_MS),
        "max.compaction.lag.ms": str(6 * _HOUR_MS),
        "segment.bytes": str(segment_bytes),
        "max.message.bytes": "1048588",
    }


TOPICS: tuple[Topic, ...] = (
    Topic(
        TopicKind.MEMBERSHIP,
        "members say who they are, what they hold and that they are alive; ticks of the clock",
        "group",
        _history(_DAY_MS),
    ),
    Topic(
        TopicKind.HEARTBEATS,
        "members say that they are alive; clocks read it, the query does not",
        "group",
        {**_history(_HOUR_MS), "segment.ms": str(_HOUR_MS // 4)},
        optional=True,
    ),
    Topic(
        TopicKind.CONFIG,
        "what each group is configured to be; a tombstone deletes the group",
        "group",
        _compacted(is_input=True),
    ),
    Topic(
        TopicKind.LAG,
        "how far copies of tasks are behind",
        "group",
        _history(6 * _HOUR_MS),
    ),
    Topic(
        TopicKind.ASSIGNMENTS,
        "what each member should hold; a tombstone when it left or expired",
        "group|member",
        _compacted(),
    ),
    Topic(
        TopicKind.GROUPS,
        "the whole state of each group, for tools and for recovery",
        "group",
        _compacted(),
    ),
    Topic(
        TopicKind.REJECTED,
        "dead letters: inputs that changed nothing, with the reason",
        "topic|partition|offset",
        _history(7 * _DAY_MS, is_input=False),
    ),
    Topic(
        TopicKind.CLOCK,
        "when each group wants a tick at the latest",
        "group",
        _compacted(segment_bytes=4 << 20),
    ),
    Topic(
        TopicKind.COORDINATOR,
        "claims of coordinators; the offset of the newest is the coordinator epoch",
        "coordinator",
        _compacted(segment_bytes=4 << 20),
        partitions=1,
    ),
)

BY_KIND: Mapping[TopicKind, Topic] = {topic.kind: topic for topic in TOPICS}
_KINDS = {str(kind): kind for kind in TopicKind}
INPUTS = (TopicKind.MEMBERSHIP, TopicKind.CONFIG, TopicKind.LAG)
"""The topics that the coordinator reads as events."""


def topic_name(kind: TopicKind, prefix: str = DEFAULT_PREFIX) -> str:
    """Full name of the topic of a kind."""
    return BY_KIND[kind].name(prefix)


def kind_of(topic: str, prefix: str = DEFAULT_PREFIX) -> TopicKind | None:
    """The kind of a topic; None if it is not one of muster's."""
    start, _, kind = topic.rpartition(".")
    return _KINDS.get(kind) if start == prefix else None
