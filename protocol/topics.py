"""The topics: what each is for, how it is keyed, and the settings that make it so.

Inputs use ``message.timestamp.type=LogAppendTime``: the broker's clock is the group's clock
(design, idea 1). Compacted topics hold one truth per key; the others are history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

DEFAULT_PREFIX = "muster"

RECORD_BYTES_MAX = 1_000_000
"""What one record (key, value and headers, uncompressed) may take. Below Kafka's default
``max.request.size`` and ``max.message.bytes``, so that a stock producer and broker take it."""

EVENT_BYTES_MAX = RECORD_BYTES_MAX - 2_000
"""What the value of an event may take; events are never split. The rest is for key and headers."""

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


class TopicKind(StrEnum):
    """What a topic carries. Its name is prefix, dot, kind."""

    MEMBERSHIP = "membership"
    CONFIG = "config"
    LAG = "lag"
    ASSIGNMENTS = "assignments"
    GROUPS = "groups"
    REJECTED = "rejected"
    CLOCK = "clock"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as it should be.

    Attributes:
        kind: what it carries.
        purpose: one sentence for `muster topics` and the docs.
        key: layout of its record keys.
        settings: topic settings, by Kafka's names.
        partitions: fixed number of partitions; None = as many as the operator wants.
    """

    kind: TopicKind
    purpose: str
    key: str
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    partitions: int | None = None

    def name(self, prefix: str = DEFAULT_PREFIX) -> str:
        """The full topic name."""
        return f"{prefix}.{self.kind}"


def _history(retention_ms: int, *, log_append_time: bool = True) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime" if log_append_time else "CreateTime",
        "retention.ms": str(retention_ms),
        "segment.ms": str(_HOUR_MS),
        "max.message.bytes": "1048588",
    }


def _truth(*, log_append_time: bool = False, segment_bytes: int = 64 << 20) -> dict[str, str]:
    # delete.retention.ms: a reader that was away for a day still sees that something was deleted.
    # max.compaction.lag.ms and the segment size bound what a reader from the beginning must read.
    return {
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime" if log_append_time else "CreateTime",
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
        TopicKind.CONFIG,
        "what each group is configured to be; a tombstone deletes the group",
        "group",
        _truth(log_append_time=True),
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
        _truth(),
    ),
    Topic(
        TopicKind.GROUPS,
        "the whole state of each group, for tools and for recovery",
        "group",
        _truth(),
    ),
    Topic(
        TopicKind.REJECTED,
        "dead letters: inputs that changed nothing, with the reason",
        "topic|partition|offset",
        _history(7 * _DAY_MS, log_append_time=False),
    ),
    Topic(
        TopicKind.CLOCK,
        "when each group wants a tick at the latest",
        "group",
        _truth(segment_bytes=4 << 20),
    ),
    Topic(
        TopicKind.COORDINATOR,
        "claims of coordinators; the offset of the newest is the coordinator epoch",
        "coordinator",
        _truth(segment_bytes=4 << 20),
        partitions=1,
    ),
)

BY_KIND: Mapping[TopicKind, Topic] = {topic.kind: topic for topic in TOPICS}
_KINDS = {str(kind): kind for kind in TopicKind}
INPUTS = (TopicKind.MEMBERSHIP, TopicKind.CONFIG, TopicKind.LAG)
"""What the coordinator reads as events."""


def topic_name(kind: TopicKind, prefix: str = DEFAULT_PREFIX) -> str:
    """Full name of the topic of a kind."""
    return BY_KIND[kind].name(prefix)


def kind_of(topic: str, prefix: str = DEFAULT_PREFIX) -> TopicKind | None:
    """What a topic carries; None when it is none of ours."""
    start, _, kind = topic.rpartition(".")
    return _KINDS.get(kind) if start == prefix else None
