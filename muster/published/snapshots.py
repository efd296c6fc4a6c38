"""Reads the published record of groups from Kafka, and shows it as text and JSON.

The newest `GroupSnapshot` of a group on ``<prefix>.groups`` is its whole public state. It does not
contain heartbeats, because there are millions of them (`members_last_heard`).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from typing import Any, TypeVar

import numpy as np

from muster.kafka.client_settings import ClientSettings
from muster.kafka.compacted import is_late, joined
from muster.kafka.reader import Row, read
from muster.output import ago
from muster.protocol.codec import decode_outline, decode_record
from muster.protocol.errors import DecodeError
from muster.protocol.ids import GroupId, as_option
from muster.protocol.keys import key_of, parse_key
from muster.protocol.records import GroupGone, GroupSnapshot, GroupState, KeptDrain, MemberEntry
from muster.protocol.snapshot import GroupOutline, outline_of
from muster.protocol.tasks import TaskSet, TaskTable
from muster.protocol.topics import TopicKind, topic_name

_Snapshot = TypeVar("_Snapshot", GroupSnapshot, GroupOutline)
NO_MEMBER = -1
DRAINS_MAX = 10
"""How many drains of members that are gone are shown."""


@dataclass(frozen=True, slots=True)
class Published:
    """One record of ``<prefix>.groups`` and when it was written (epoch ms)."""

    record: GroupSnapshot | GroupGone
    at_ms: int


class _Order:
    """Which records are the newest of their group; give it those of all groups as they are read.

    If partitions were added, a group's records are in two of them: one that is older than the
    newest of another partition is not the newest.
    """

    def __init__(self) -> None:
        self._in_partition: dict[tuple[int, GroupId], Row] = {}
        self._newest: dict[GroupId, tuple[int, int]] = {}  # partition and timestamp

    def is_late(self, group: GroupId, row: Row) -> bool:
        """Whether a superseded coordinator wrote the next record of a group."""
        place = row.partition, group
        before = self._in_partition.get(place)
        if before is not None and is_late(row, before):
            return True
        self._in_partition[place] = row._replace(value=b"")  # values are large
        return False

    def is_newest(self, group: GroupId, partition: int, at_ms: int) -> bool:
        """Whether a record that is not late replaces those before it."""
        place, newest_ms = self._newest.get(group, (partition, 0))
        if partition != place and at_ms < newest_ms:
            return False
        self._newest[group] = partition, at_ms
        return True


def history(
    settings: ClientSettings,
    prefix: str,
    group: str | None,
    *,
    of: Container[str] | None = None,
) -> Iterator[Published]:
    """Every record of a group (or of all) that the topic still holds, a group's oldest first.

    With `of` the records of these groups only; it is for `group` None. A split record has the
    timestamp of its last part; one with a compacted part is left out, and so is a late one. If
    partitions were added, a group's records are in two of them. Those of one group are then merged
    by timestamp; when several groups are read, a record older than one of another partition that
    was already read is left out.
    """
    order = _Order()
    in_partition: defaultdict[int, list[Published]] = defaultdict(list)
    for of_group, row in _rows(settings, prefix, group):
        if of is not None and of_group not in of:
            continue
        published = published_in(row)
        if published is None or order.is_late(of_group, row):
            continue
        if group is not None:
            in_partition[row.partition].append(published)
        elif order.is_newest(of_group, row.partition, row.at_ms):
            yield published
    yield from merge(*in_partition.values(), key=lambda published: published.at_ms)


def rows_of_all(settings: ClientSettings, prefix: str) -> Iterator[tuple[GroupId, Row, bool]]:
    """`history` of all groups, undecoded, and with late records: whether each is late.

    To decode a record takes a hundred times as long as to read it.
    """
    order = _Order()
    for group, row in _rows(settings, prefix, None):
        late = order.is_late(group, row)
        if late or order.is_newest(group, row.partition, row.at_ms):
            yield group, row, late


def _rows(
    settings: ClientSettings, prefix: str, group: str | None
) -> Iterator[tuple[GroupId, Row]]:
    """The group of each whole record, and its row; without the groups' dictionaries."""
    topic = topic_name(TopicKind.GROUPS, prefix)
    for row in joined(read(settings, topic, key=None if group is None else key_of(group)), skipped):
        try:
            owner = parse_key(row.key).group
        except DecodeError as error:
            skipped(row, error)
            continue
        if row.key == key_of(owner):
            yield owner, row


def published_in(row: Row) -> Published | None:
    """The group's record in a whole row of ``<prefix>.groups``.

    None = it is a group's dictionary, or this version cannot read it; then a line says so.
    """
    try:
        if row.key != key_of(parse_key(row.key).group):
            return None  # the group's dictionary
        record = decode_record(TopicKind.GROUPS, row.key, row.value)
    except DecodeError as error:
        skipped(row, error)
        return None
    assert isinstance(record, GroupSnapshot | GroupGone)  # by its key
    return Published(record, row.at_ms)


def skipped(row: Row, error: DecodeError) -> None:
    """Say that a record is skipped because this version cannot read it."""
    print(f"{row.topic}-{row.partition}@{row.offset} is skipped: {error}", file=sys.stderr)


def newest(records: Iterable[Published]) -> dict[GroupId, GroupSnapshot]:
    """The newest snapshot of every group, by id, of a `history`; deleted groups are left out."""
    snapshots: dict[GroupId, GroupSnapshot] = {}
    for published in records:
        record = published.record
        if isinstance(record, GroupGone) or is_deleted(record):
            snapshots.pop(record.group, None)
        else:
            snapshots[record.group] = record
    return dict(sorted(snapshots.items()))


def newest_snapshots(settings: ClientSettings, prefix: str) -> dict[GroupId, GroupSnapshot]:
    """The newest snapshot of every group, by id; decodes no record that another one replaced."""
    return _newest_as(settings, prefix, _snapshot, lambda snapshot: snapshot)


def newest_outlines(settings: ClientSettings, prefix: str) -> dict[GroupId, GroupOutline]:
    """The same, of which only an outline is decoded."""
    return _newest_as(settings, prefix, _outline, outline_of)


def _outline(row: Row) -> GroupOutline:
    return decode_outline(row.key, row.value or b"")


def _snapshot(row: Row) -> GroupSnapshot:
    record = decode_record(TopicKind.GROUPS, row.key, row.value)
    assert isinstance(record, GroupSnapshot)  # by its key, and it is no tombstone
    return record


def _newest_as(
    settings: ClientSettings,
    prefix: str,
    decoded: Callable[[Row], _Snapshot],
    shortened: Callable[[GroupSnapshot], _Snapshot],
) -> dict[GroupId, _Snapshot]:
    """The newest record of every group that was not deleted, by id.

    Of a group whose newest record this version cannot read the newest one that it can read counts.
    """
    rows = {group: row for group, row, late in rows_of_all(settings, prefix) if not late}
    found: dict[GroupId, _Snapshot] = {}
    unreadable: set[GroupId] = set()
    for group, row in rows.items():
        if row.value is None:
            continue
        try:
            found[group] = decoded(row)
        except DecodeError:
            unreadable.add(group)
    if unreadable:
        older = newest(history(settings, prefix, None, of=unreadable))
        found |= {group: shortened(snapshot) for group, snapshot in older.items()}
    return {group: each for group, each in sorted(found.items()) if not is_deleted(each)}


def refuses_events(snapshot: GroupSnapshot) -> str:
    """Why the coordinator refuses a group's events, and what to do; empty = it does not."""
    if snapshot.quarantine is None:
        return ""
    return (
        f"group {snapshot.group!r} is quarantined, and its events become dead letters: "
        f"{snapshot.quarantine.story}. Correct the cause, then: muster groups release "
        f"{as_option('--group', snapshot.group)}"
    )


def is_deleted(record: GroupSnapshot | GroupOutline) -> bool:
    """Whether the record is that of a deleted group, which only keeps its generation number."""
    return record.state is GroupState.DEAD and not record.members


def configured(settings: ClientSettings, prefix: str) -> list[str]:
    """Names of the groups that have tasks."""
    return [name for name, each in newest_outlines(settings, prefix).items() if each.tasks]


@dataclass(frozen=True)
class Shown:
    """A snapshot with its tasks by member.

    Attributes:
        snapshot: the record.
        heard: when members last wrote (epoch ms), if looked up.
        seen_ms: when the coordinator last wrote (epoch ms); None = never, or not looked up.
    """

    snapshot: GroupSnapshot
    heard: Mapping[str, int]
    seen_ms: int | None = None

    @cached_property
    def table(self) -> TaskTable:
        """The group's tasks."""
        return TaskTable(self.snapshot.tasks)

    @cached_property
    def unassigned(self) -> TaskSet:
        """Tasks no member holds."""
        holder = self.snapshot.holder
        return self.table.set_of(np.flatnonzero(holder == NO_MEMBER).astype(np.int32))

    def active(self, member: MemberEntry) -> TaskSet:
        """Actives the member runs and keeps."""
        s = self.snapshot
        return self._set((s.holder == member.slot) & ~s.revoking)

    def revoking(self, member: MemberEntry) -> TaskSet:
        """Tasks of any role the member was asked to stop and has not released."""
        s = self.snapshot
        actives = self._set((s.holder == member.slot) & s.revoking)
        standbys, learners = s.standby_revoking, s.learner_revoking
        return actives | self._pairs(standbys, member) | self._pairs(learners, member)

    def standby(self, member: MemberEntry) -> TaskSet:
        """Standbys the member keeps."""
        s = self.snapshot
        return self._pairs(s.standby, member) - self._pairs(s.standby_revoking, member)

    def state(self, member: MemberEntry) -> str:
        """The member's state; ``away`` for one with an instance id that left for a while."""
        return "away" if member.away else member.state.value

    def learner(self, member: MemberEntry) -> TaskSet:
        """Learners the member restores."""
        s = self.snapshot
        return self._pairs(s.learner, member) - self._pairs(s.learner_revoking, member)

    def _set(self, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> TaskSet:
        return self.table.set_of(np.flatnonzero(mask).astype(np.int32))

    def _pairs(self, pairs: np.ndarray[Any, np.dtype[np.int32]], member: MemberEntry) -> TaskSet:
        return self.table.set_of(pairs[pairs[:, 1] == member.slot, 0].astype(np.int32))


def drains_text(snapshot: GroupSnapshot, now_ms: int) -> list[str]:
    """A line for each drain whose member is gone or was expelled, with the command to undo it."""
    lines = []
    for drain in sorted(snapshot.drains, key=lambda drain: drain.member):
        status = "is back" if drain.gone_ms is None else f"went {ago(now_ms, drain.gone_ms)}"
        if drain.expelled:
            lines.append(
                f"{drain.member} was expelled before it was empty and {status}: its process may "
                f"still run what it had; drained until {_cancel(snapshot, drain)}"
            )
        elif drain.gone_ms is not None:
            lines.append(
                f"{drain.member} {status}; it gets no tasks when it returns, until "
                f"{_cancel(snapshot, drain)}"
            )
    unlisted = len(lines) - DRAINS_MAX
    return lines if unlisted <= 0 else [*lines[:DRAINS_MAX], f"and {unlisted} more drained members"]


def _cancel(snapshot: GroupSnapshot, drain: KeptDrain) -> str:
    whom = f"{as_option('--group', snapshot.group)} {as_option('--member', drain.member)}"
    return f"muster drain {whom} --cancel"


def names(tasks: TaskSet) -> list[str]:
    """Printed ids, in order."""
    return [str(task) for task in tasks]


def compact(tasks: TaskSet) -> str:
    """Tasks as Kafka's tools print an assignment: ``0(0,1,2),1(4)``; a connector as ``c1(-,0)``."""
    return ",".join(
        f"{name}({','.join('-' if n < 0 else str(n) for n in numbers.tolist())})"
        for name, _, numbers in tasks.units
    )
