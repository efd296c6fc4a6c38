"""The heartbeats that a clock has read from ``<prefix>.heartbeats``, and the covers made of them.

A clock reads every partition of the topic from the end that it has at the clock's start. For each
group it keeps the newest heartbeat of each member since the group's tick before. A cover may vouch
for the time between two records that were read from the group's partition: the log has every
heartbeat between them, in order. The clock's own time and the end offsets of partitions prove
nothing, because a record may carry an earlier time than that at which it can be read.

Where no member writes, the clock writes a *marker* (a tick on the heartbeats topic) and reads it.

Memory is bounded. The clock keeps heartbeats of at most `MEMBERS_MAX` members of a group and
`HEARD_MAX` members of all groups; beyond that it drops those of the largest group. It keeps at most
`STRANGERS_MAX` groups that have no wake-up. No cover vouches for the time of dropped heartbeats.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from muster.protocol.errors import DecodeError
from muster.protocol.expected_heartbeats import Agreement, Beat, needless_until_ms
from muster.protocol.heartbeat_columns import heartbeats
from muster.protocol.ids import GroupId
from muster.protocol.keys import key_of, parse_key, partition_of
from muster.protocol.tick_covers import AGE_S_MAX, Cover, Heard

MEMBERS_MAX = 50_000
"""Members of one group that have written since its newest tick."""
HEARD_MAX = 250_000
"""Members of all groups together: some 100 MB, and as much again while ticks are under way."""
STRANGERS_MAX = 1_000
"""The clock keeps at most this many groups that have no wake-up, but members that heartbeat."""
STRANGE_MS = 5_000
"""Such a group gets a tick so long after a heartbeat; the answer tells its members to join."""


class Sleeper(NamedTuple):
    """A group that the clock wakes, with its topic prefix."""

    prefix: str
    group: GroupId


class Row(NamedTuple):
    """A record of a heartbeats topic; `at_ms` is the broker's time of it."""

    partition: int
    key: bytes | None
    value: bytes | None
    at_ms: int


@dataclass(slots=True)
class _Partition:
    """Broker times of the first and of the newest record that were read."""

    since_ms: int
    through_ms: int

    @property
    def whole_ms(self) -> int:
        """The newest millisecond of which every record was read; there may be more of the next."""
        return self.through_ms - 1


@dataclass(slots=True)
class _Group:
    """The heartbeats of a group.

    Attributes:
        through_ms: end of the newest cover that Kafka has acknowledged; the next one begins here.
        heard: member → its newest heartbeat after that.
        sent: the heartbeats of the cover that was sent and is not acknowledged; None = there is
            none.
        sent_ms: the end of that cover.
        has_lost: heartbeats were dropped since the newest cover.
        is_gone: the group is forgotten when that cover is done.
    """

    through_ms: int
    heard: dict[str, Beat] = field(default_factory=dict)
    sent: dict[str, Beat] | None = None
    sent_ms: int = 0
    has_lost: bool = False
    is_gone: bool = False


class Heartbeats:
    """The heartbeats of the groups of some prefixes. Pure: the clock reads and writes."""

    def __init__(self) -> None:
        self._partitions: dict[str, dict[int, _Partition]] = {}
        self._counts: dict[str, int] = {}
        self._groups: dict[Sleeper, _Group] = {}
        self._strangers: dict[Sleeper, int] = {}
        self._heard = 0
        """Members in `heard` of all groups."""

    def listen(self, prefix: str, partitions: int) -> None:
        """Note that all of so many partitions are read from now on."""
        self._counts[prefix] = partitions

    def stop(self, prefix: str) -> None:
        """Note that the heartbeats of a prefix cannot be read any more."""
        self._counts.pop(prefix, None)
        self._partitions.pop(prefix, None)

    def skip(self, prefix: str, partition: int) -> None:
        """Note that records of a partition were lost: no cover vouches for the time before now."""
        self._partitions.get(prefix, {}).pop(partition, None)

    def place(self, sleeper: Sleeper) -> int | None:
        """The partition to which a group's heartbeats are written; None = they are not read."""
        count = self._counts.get(sleeper.prefix)
        return None if count is None else partition_of(key_of(sleeper.group), count)

    def _partition(self, sleeper: Sleeper) -> _Partition | None:
        number = self.place(sleeper)
        return None if number is None else self._partitions.get(sleeper.prefix, {}).get(number)

    def through_ms(self, sleeper: Sleeper) -> int:
        """Broker time up to which every heartbeat of a group was read; 0 = nothing was."""
        partition = self._partition(sleeper)
        return 0 if partition is None else partition.whole_ms

    def read(self, prefix: str, rows: Sequence[Row], known: Container[Sleeper]) -> None:
        """Take in records of a prefix, those of each partition in their order.

        Groups that are not `known` have no wake-up.
        """
        columns = heartbeats([row.value for row in rows])
        beats = zip(
            columns.position.tolist(),
            columns.members,
            columns.epoch.tolist(),
            columns.digest.tolist(),
            strict=True,
        )
        position, member, epoch, digest = next(beats, (-1, "", 0, 0))
        partitions = self._partitions.setdefault(prefix, {})
        names: dict[bytes | None, Sleeper | None] = {}
        for index, row in enumerate(rows):
            partition = partitions.get(row.partition)
            if partition is None:
                partition = partitions[row.partition] = _Partition(row.at_ms, row.at_ms)
            if index == position:
                if row.key not in names:
                    names[row.key] = self._sleeper(prefix, row, known)
                sleeper = names[row.key]
                if sleeper is not None:
                    at_ms = max(row.at_ms, partition.through_ms)
                    self._hear(sleeper, partition, member, Beat(at_ms, epoch, digest))
                position, member, epoch, digest = next(beats, (-1, "", 0, 0))
            partition.through_ms = max(partition.through_ms, row.at_ms)

    def _sleeper(self, prefix: str, row: Row, known: Container[Sleeper]) -> Sleeper | None:
        """The group of a heartbeat; None = its heartbeats are not kept."""
        try:
            parsed = parse_key(row.key)
        except DecodeError:
            return None
        sleeper = Sleeper(prefix, parsed.group)
        if parsed.member is not None or parsed.part:
            return None
        if sleeper in known:
            self._strangers.pop(sleeper, None)
        elif sleeper not in self._strangers:
            if len(self._strangers) >= STRANGERS_MAX:
                return None
            self._strangers[sleeper] = row.at_ms
        return sleeper

    def _hear(self, sleeper: Sleeper, partition: _Partition, member: str, beat: Beat) -> None:
        group = self._groups.get(sleeper)
        if group is None:
            # Whatever came before this record was not kept, so no cover vouches for that time.
            group = self._groups[sleeper] = _Group(partition.through_ms)
        if member in group.heard:
            group.heard[member] = beat
        elif len(group.heard) < MEMBERS_MAX:
            group.heard[member] = beat
            self._heard += 1
            if self._heard > HEARD_MAX:
                self._lose()
        else:
            group.has_lost = True

    def _lose(self) -> None:
        """Drop the heartbeats of the largest group, so that a flood costs its own group first."""
        largest = max(self._groups.values(), key=lambda group: len(group.heard))
        self._heard -= len(largest.heard)
        largest.heard, largest.has_lost = {}, True

    def strangers(self, now_ms: int) -> list[Sleeper]:
        """Groups without a wake-up whose members have written heartbeats for a while."""
        waited = self._strangers.items()
        return [sleeper for sleeper, at_ms in waited if at_ms + STRANGE_MS <= now_ms]

    def forget(self, sleeper: Sleeper) -> None:
        """Forget a group: it wants no more ticks, or has got one as a stranger."""
        self._strangers.pop(sleeper, None)
        group = self._groups.get(sleeper)
        if group is not None and group.sent is None:
            self._drop(sleeper, group)
        elif group is not None:
            group.is_gone = True

    def _drop(self, sleeper: Sleeper, group: _Group) -> None:
        self._heard -= len(group.heard)
        del self._groups[sleeper]

    def needless_until_ms(self, sleeper: Sleeper, agreement: Agreement, now_ms: int) -> int:
        """The time up to which a group needs no tick; 0 = it needs one now."""
        group = self._groups.get(sleeper)
        if group is None or group.sent is not None or group.has_lost:
            return 0
        return needless_until_ms(agreement, group.heard, now_ms)

    def cover(self, sleeper: Sleeper) -> Cover | None:
        """The cover of the next tick; None = nothing was read, or the one before is not `done`."""
        partition = self._partition(sleeper)
        if partition is None:
            return None
        group = self._groups.setdefault(sleeper, _Group(partition.through_ms))
        if group.sent is not None:
            return None
        through_ms = partition.whole_ms
        if group.has_lost:
            group.through_ms = partition.through_ms
        from_ms = max(group.through_ms, partition.since_ms)
        heard = tuple(
            Heard(member, min(max(through_ms - at_ms, 0) // 1_000, AGE_S_MAX), epoch, digest)
            for member, (at_ms, epoch, digest) in group.heard.items()
        )
        self._heard -= len(group.heard)
        group.sent, group.sent_ms, group.heard, group.has_lost = group.heard, through_ms, {}, False
        return Cover(min(from_ms, through_ms), through_ms, heard)

    def done(self, sleeper: Sleeper, *, written: bool) -> None:
        """Note whether the tick with the newest cover was written.

        If it was not, the next cover has its members again.
        """
        group = self._groups.get(sleeper)
        if group is None or group.sent is None:
            return
        if group.is_gone:
            self._drop(sleeper, group)
        elif written:
            group.through_ms = max(group.through_ms, group.sent_ms)
        else:
            self._come_back(group, group.sent)
        group.sent = None

    def _come_back(self, group: _Group, sent: dict[str, Beat]) -> None:
        """Keep again what was not written, within the limits of the group and of all groups."""
        both = sent | group.heard
        self._heard -= len(group.heard)
        group.heard = dict(islice(both.items(), MEMBERS_MAX))
        group.has_lost |= len(both) > MEMBERS_MAX
        self._heard += len(group.heard)
        while self._heard > HEARD_MAX:
            self._lose()
