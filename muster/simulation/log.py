"""Kafka in memory: the topics of one group, which keep their order and lose nothing; its delays.

Events are appended to the input topics and stamped with true time, in whole milliseconds: the
broker's clock is exact. `publish` returns the records for members, in order, for delivery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from muster.protocol.events import (
    Event,
    GroupConfig,
    GroupDeleted,
    LagReport,
    Origin,
    TopicsFound,
)
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot, MemberAssignment, MemberGone, Record, WakeUp

MemberRecord = MemberAssignment | MemberGone
GROUP = GroupId("g")
RARELY = 0.03
"""Probability that something takes ten times as long as usual."""


def delay(rng: Random, usual: float) -> float:
    """A random delay of about `usual`, rarely of ten times that; milliseconds."""
    times = 10 if rng.random() < RARELY else 1
    return 0.5 + rng.expovariate(1 / usual) * times


def topic_of(event: Event) -> str:
    """The topic of an event."""
    if isinstance(event, GroupConfig | GroupDeleted | TopicsFound):
        return "config"
    return "lag" if isinstance(event, LagReport) else "membership"


@dataclass(slots=True)
class Log:
    """The topics.

    Attributes:
        inputs: topic → its events, each with its origin.
        snapshot: state of the group that is read back, None = never published.
        wake: newest wake-up, None = never published.
        wakes: number of wake-ups published so far.
    """

    inputs: dict[str, list[Event]] = field(
        default_factory=lambda: {"membership": [], "config": [], "lag": []}
    )
    snapshot: GroupSnapshot | None = None
    wake: WakeUp | None = None
    wakes: int = 0

    def append(self, event: Event, at_ms: int) -> None:
        """Append an event to its topic."""
        topic = topic_of(event)
        rows = self.inputs[topic]
        rows.append(replace(event, origin=Origin(topic, 0, len(rows), at_ms)))

    def ends(self) -> dict[str, int]:
        """The end offset of each input topic."""
        return {topic: len(rows) for topic, rows in self.inputs.items()}

    def between(self, start: dict[str, int], end: dict[str, int]) -> list[Event]:
        """The events from `start` (of each topic) up to `end`."""
        return [e for topic, rows in self.inputs.items() for e in rows[start[topic] : end[topic]]]

    def publish(self, records: Sequence[Record]) -> list[MemberRecord]:
        """Write a coordinator's records; return those for members."""
        for_members: list[MemberRecord] = []
        for record in records:
            if isinstance(record, MemberAssignment | MemberGone):
                for_members.append(record)
            elif isinstance(record, GroupSnapshot):
                # `streams.read_back` chooses so, too, which of two states is read back.
                if self.snapshot is None or self.snapshot.generation <= record.generation:
                    self.snapshot = record
            elif isinstance(record, WakeUp):
                self.wake = record
                self.wakes += 1
        return for_members
