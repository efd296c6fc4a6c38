"""Folds the records of one group's topics into its generations and the waiting times of its events.

This module uses no clock and no Kafka: it reads rows one by one, in any order between topics. The
result is the generations with cause and moves, and how long each event waited for the assignment
that it led to, both by broker timestamps.

An event is answered by the first snapshot that includes it (`through`), if a member's revision
changes with that snapshot. Heartbeats, ticks, lag reports and deletions do not count, because the
coordinator does not answer them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from muster.protocol.codec import decode, decode_record
from muster.protocol.errors import DecodeError
from muster.protocol.events import GroupDeleted, Heartbeat, LagReport, Origin, Tick
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot, GroupState, Move
from muster.protocol.topics import TopicKind


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation began: why, and what it moved."""

    number: int
    cause: str
    moves: tuple[Move, ...]


News: TypeAlias = Generation | GroupState
"""A generation began, or the group changed its state."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A record of the group.

    Attributes:
        at_ms: when it was written.
        through: (topic, partition) -> newest offset that the coordinator had read.
        reaches_members: whether a member's revision changed with it.
    """

    at_ms: int
    through: dict[tuple[str, int], int]
    reaches_members: bool


@dataclass(slots=True)
class Story:
    """The history of one group. `snapshot` is its newest record; the lists grow."""

    group: GroupId
    prefix: str
    snapshot: GroupSnapshot | None = None
    generations: list[Generation] = field(default_factory=list)
    events: list[Origin] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)

    def read(
        self, kind: TopicKind, key: bytes | None, value: bytes | None, origin: Origin
    ) -> Sequence[News]:
        """Read one row; return its news."""
        try:
            if kind is TopicKind.GROUPS:
                record = decode_record(kind, key, value)
                if isinstance(record, GroupSnapshot) and record.group == self.group:
                    return self._publish(record, origin.at_ms)
                return ()
            event = decode(kind, key, value, origin)
        except DecodeError:
            return ()
        unanswered = Heartbeat | Tick | LagReport | GroupDeleted
        if event.group == self.group and not isinstance(event, unanswered):
            self.events.append(origin)
        return ()

    def _publish(self, record: GroupSnapshot, at_ms: int) -> list[News]:
        before, self.snapshot = self.snapshot, record
        through = {(topic, partition): offset for topic, partition, offset in record.through}
        self.publications.append(
            Publication(at_ms, through, _revisions(before) != _revisions(record))
        )
        news: list[News] = []
        generation = Generation(record.generation, record.cause, record.moves)
        if record.generation == 0:
            pass  # configured, and not placed yet
        elif before is None or record.generation != before.generation:
            self.generations.append(generation)
            news.append(generation)
        elif (record.cause, record.moves) != (before.cause, before.moves):
            # A generation without members is published again when its tasks are placed.
            self.generations[-1] = generation
            news.append(generation)
        if before is None or record.state is not before.state:
            news.append(record.state)
        return news

    def waits_ms(self, since_ms: int = 0) -> list[int]:
        """How long each answered event since `since_ms` waited for its answer."""
        waits: list[int] = []
        for topic, partition, offset, at_ms in self.events:
            if at_ms < since_ms:
                continue
            for publication in self.publications:
                if publication.through.get((topic, partition), -1) >= offset:
                    if publication.reaches_members:
                        waits.append(max(publication.at_ms - at_ms, 0))
                    break
        return waits


def _revisions(snapshot: GroupSnapshot | None) -> dict[str, tuple[int, int]]:
    """Member id -> incarnation and revision of its newest record."""
    members = () if snapshot is None else snapshot.members
    return {m.id: (m.incarnation, m.revision) for m in members}
