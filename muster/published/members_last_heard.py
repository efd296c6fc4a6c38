"""When members were last heard, for people who look at groups.

Each member's newest heartbeat is read from the tails of ``<prefix>.membership`` and, for members
that heartbeat apart, ``<prefix>.heartbeats``. Each topic is read once, however many groups are
looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import TypeAlias

from muster.kafka.access_check import NoTopics
from muster.kafka.client_settings import ClientSettings
from muster.kafka.reader import Row, read
from muster.output import ago, span
from muster.protocol.codec import decode
from muster.protocol.errors import DecodeError
from muster.protocol.events import Heartbeat, Join, Origin, Report
from muster.protocol.heartbeat_columns import heartbeats
from muster.protocol.ids import GroupId
from muster.protocol.keys import key_of, parse_key
from muster.protocol.records import GroupSnapshot
from muster.protocol.topics import TopicKind, topic_name

Heard: TypeAlias = tuple[GroupId, str, int]
"""Group, member, and the broker's time of a record that it wrote (epoch ms)."""


def last_heartbeats(
    settings: ClientSettings, prefix: str, snapshots: Collection[GroupSnapshot], now_ms: int
) -> dict[GroupId, dict[str, int]]:
    """Group → member → when it last wrote (broker time, epoch ms); absent = not within a session.

    `snapshots` are the groups' newest records; `now_ms` is this machine's time, epoch ms.
    """
    newest: dict[GroupId, dict[str, int]] = {each.group: {} for each in snapshots}
    sessions = [(s, max(m.session_timeout_ms for m in s.members)) for s in snapshots if s.members]
    together = {s.group: s.clock_ms - session_ms for s, session_ms in sessions}
    # Nothing else is written of a quiet group whose members heartbeat apart, so its newest record
    # may be days old. Twice the session, because the clocks of this machine and of the broker may
    # differ.
    apart = {s.group: now_ms - 2 * session_ms for s, session_ms in sessions if s.apart}
    for group, member, at_ms in chain(
        _written(settings, prefix, together), _written_apart(settings, prefix, apart)
    ):
        newest[group][member] = max(at_ms, newest[group].get(member, 0))
    return newest


def heard_text(snapshot: GroupSnapshot, heard_ms: int | None, now_ms: int) -> str | None:
    """How long ago a member was heard; after two heartbeat intervals, how long it is silent.

    `heard_ms`: None = it was not heard within a session, and nothing is said. Times are epoch ms.
    """
    if heard_ms is None:
        return None
    patience_ms = 2 * snapshot.settings.heartbeat_interval_ms
    is_silent = now_ms - heard_ms > patience_ms
    return f"silent {span(now_ms - heard_ms)}" if is_silent else ago(now_ms, heard_ms)


def _written(
    settings: ClientSettings, prefix: str, since_ms: Mapping[GroupId, int]
) -> Iterator[Heard]:
    """Heartbeats, joins and reports of these groups since then on the topic of events."""
    for group, row in _rows(settings, topic_name(TopicKind.MEMBERSHIP, prefix), since_ms):
        origin = Origin(row.topic, row.partition, row.offset, row.at_ms)
        try:
            event = decode(TopicKind.MEMBERSHIP, row.key, row.value, origin)
        except DecodeError:
            continue  # the coordinator makes it a dead letter
        if event.group == group and isinstance(event, Heartbeat | Join | Report):
            yield group, event.member, row.at_ms


def _written_apart(
    settings: ClientSettings, prefix: str, since_ms: Mapping[GroupId, int]
) -> Iterator[Heard]:
    """Heartbeats of these groups since then on the topic of heartbeats."""
    rows: list[tuple[GroupId, Row]] = []
    with suppress(NoTopics):  # deleted since: then no member can write to it
        rows += _rows(settings, topic_name(TopicKind.HEARTBEATS, prefix), since_ms)
    columns = heartbeats([row.value for _, row in rows])
    for position, member in zip(columns.position.tolist(), columns.members, strict=True):
        group, row = rows[position]
        yield group, member, row.at_ms


def _rows(
    settings: ClientSettings, topic: str, since_ms: Mapping[GroupId, int]
) -> Iterator[tuple[GroupId, Row]]:
    """The rows of these groups, each since its time; reads nothing if there are none."""
    if not since_ms:
        return
    only = key_of(next(iter(since_ms))) if len(since_ms) == 1 else None
    for row in read(settings, topic, key=only, since_ms=min(since_ms.values())):
        try:
            group = parse_key(row.key).group
        except DecodeError:
            continue
        if group in since_ms and row.at_ms >= since_ms[group]:
            yield group, row
