"""Kafka as an ordeal sees it: topics that keep their order, a broker that is away at times.

Events go to the input topics and are stamped with true time, in whole milliseconds; the broker's
clock is the clock. Records for members are delivered by who publishes them, in their order.
Nothing that was appended is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from muster.protocol.events import Event, GroupConfig, GroupDeleted, LagReport, Origin
from muster.protocol.records import GroupSnapshot, MemberAssignment, MemberGone, Record, WakeUp

MemberRecord = MemberAssignment | MemberGone


def topic_of(event: Event) -> str:
    """The topic of an event."""
    if isinstance(event, GroupConfig | GroupDeleted):
        return "config"
    return "lag" if isinstance(event, LagReport) else "membership"


@dataclass(slots=True)
class Kafka:
    """The topics.

    Attributes:
        inputs: topic → its events, each with its origin.
        snapshot: newest state of the group, None = never published.
        wake: newest wake-up, None = never published.
        wakes: wake-ups published so far.
    """

    inputs: dict[str, list[Event]] = field(
        default_factory=lambda: {"membership": [], "config": [], "lag": []}
    )
    snapshot: GroupSnapshot | None = None
    wake: WakeUp | None = None
    wakes: int = 0

    def append(self, event: Event, at_ms: int) -> None:
        """An event reaches its topic."""
        topic = topic_of(event)
        rows = self.inputs[topic]
        rows.append(replace(event, origin=Origin(topic, 0, len(rows), at_ms)))

    def ends(self) -> dict[str, int]:
        """Where each input topic ends."""
        return {topic: len(rows) for topic, rows in self.inputs.items()}

    def between(self, start: dict[str, int], end: dict[str, int]) -> list[Event]:
        """The events from `start` (of each topic) up to `end`."""
        return [e for topic, rows in self.inputs.items() for e in rows[start[topic] : end[topic]]]

    def publish(self, records: Sequence[Record]) -> list[MemberRecord]:
        """A coordinator's records reach their topics; returns those for members."""
        told: list[MemberRecord] = []
        for record in records:
            if isinstance(record, MemberAssignment | MemberGone):
                told.append(record)
            elif isinstance(record, GroupSnapshot):
                self.snapshot = record
            elif isinstance(record, WakeUp):
                self.wake = record
                self.wakes += 1
        return told
