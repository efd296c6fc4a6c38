"""Reads from Kafka the facts that the doctor's checks of a job and its groups need."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from muster.doctor import job as doctor_job
from muster.doctor.coordinators import is_news
from muster.doctor.facts import CanaryAnswer, Claim, Facts, Heard
from muster.kafka.client_settings import ClientSettings
from muster.kafka.reader import Row, read
from muster.protocol.codec import decode, decode_outline, decode_record
from muster.protocol.errors import DecodeError
from muster.protocol.events import Event, Join, Origin, Tick
from muster.protocol.framing import PREFIX
from muster.protocol.ids import GroupId
from muster.protocol.keys import parse_key
from muster.protocol.records import (
    CoordinatorClaim,
    CoordinatorSign,
    GroupSnapshot,
    Record,
    Rejected,
    WakeUp,
)
from muster.protocol.snapshot import GroupOutline
from muster.protocol.topics import TopicKind, topic_name
from muster.published.holdups import pending_releases
from muster.published.snapshots import published_in, rows_of_all, skipped
from muster.published.unapplied_configs import unapplied
from muster.streams.canary import GROUP as CANARY
from muster.streams.coordinator_signs import Signed

HEARD_MS = 120_000
"""How far back the membership topic is read."""


def read_facts(settings: ClientSettings, prefix: str) -> Facts:
    """Read the facts for `doctor.job`.

    Raises:
        Unreachable, Refused, NoTopics: a topic cannot be read.
    """
    now_ms = time.time_ns() // 1_000_000
    groups, writes, answered = _groups(settings, prefix)
    snapshots = {group: snapshot for group, (snapshot, _) in groups.items()}
    pending = pending_releases(settings, prefix, snapshots)
    wakeups: dict[GroupId, int] = {}
    canary: CanaryAnswer | None = None
    published_ms = max(answered.values(), default=0)
    signs: dict[str, Signed] = {}
    alarms = sorted(_records(settings, prefix, TopicKind.CLOCK), key=lambda alarm: alarm[1])
    for _, at_ms, wakeup in alarms:  # by time: added partitions can split a group's records
        if isinstance(wakeup, CoordinatorSign):
            signs[wakeup.job] = Signed(at_ms, wakeup)
            continue
        published_ms = max(published_ms, at_ms)
        if isinstance(wakeup, WakeUp) and wakeup.group == CANARY:
            canary = _canary_answer(wakeup, at_ms)
        elif isinstance(wakeup, WakeUp) and wakeup.at_ms is not None and wakeup.published:
            agreed = wakeup.agreement
            wakeups[wakeup.group] = wakeup.at_ms if agreed is None else agreed.until_ms
        elif isinstance(wakeup, WakeUp):  # it sleeps, or its rows wait, and it is woken in turn
            wakeups.pop(wakeup.group, None)
    since_ms = now_ms - doctor_job.REJECTED_MS
    rejected = [
        (at_ms, record)
        for _, at_ms, record in _records(settings, prefix, TopicKind.REJECTED, since_ms)
        if isinstance(record, Rejected)
    ]
    heard = _heard(settings, prefix, now_ms - HEARD_MS, answered)
    return Facts(
        now_ms=now_ms,
        read_ms=time.time_ns() // 1_000_000,
        claims=[
            Claim(offset, at_ms, record)
            for offset, at_ms, record in _records(settings, prefix, TopicKind.COORDINATOR)
            if isinstance(record, CoordinatorClaim)
        ],
        groups={g: (snapshot, groups[g][1]) for g, snapshot in snapshots.items()},
        writes=sorted(writes),
        wakeups=wakeups,
        heard=heard,
        rejected=rejected,
        holdups={group: pending.holdups(snapshot) for group, snapshot in snapshots.items()},
        published_ms=max([published_ms, *(at_ms for at_ms, _ in rejected)]),
        canary=canary,
        signs=[*signs.values()],
        unapplied=unapplied(settings, prefix, None, snapshots, now_ms),
    )


def _groups(
    settings: ClientSettings, prefix: str
) -> tuple[dict[GroupId, tuple[GroupSnapshot, int]], list[tuple[int, int]], dict[GroupId, int]]:
    """`Facts.groups`, `Facts.writes`, and the timestamp of each group's newest record.

    Of a record that another one replaced only the outline is decoded.
    """
    rows: dict[GroupId, Row] = {}
    outlines: dict[GroupId, GroupOutline] = {}
    answered: dict[GroupId, int] = {}
    writes: list[tuple[int, int]] = []
    for group, row, is_late in rows_of_all(settings, prefix):
        outline = None
        if row.value is not None:
            try:
                outline = decode_outline(row.key, row.value)
            except DecodeError as error:
                skipped(row, error)
                continue
            if is_news(outlines.get(group), outline):
                writes.append((row.at_ms, outline.coordinator_epoch))
        if is_late:
            continue  # it shows that its coordinator still writes, and nothing about the group
        answered[group] = row.at_ms
        rows.pop(group, None)
        outlines.pop(group, None)
        if outline is not None:
            rows[group], outlines[group] = row, outline
    whole = ((group, published_in(row)) for group, row in rows.items())
    groups = {
        group: (each.record, each.at_ms)
        for group, each in whole
        if each is not None and isinstance(each.record, GroupSnapshot)
    }
    return groups, writes, answered


def _canary_answer(wakeup: WakeUp, at_ms: int) -> CanaryAnswer | None:
    mark = wakeup.published
    if wakeup.at_ms is None or mark is None:
        return None
    return CanaryAnswer(mark.coordinator_epoch, mark.taken, at_ms, wakeup.at_ms)


def _records(
    settings: ClientSettings, prefix: str, kind: TopicKind, since_ms: int | None = None
) -> Iterator[tuple[int, int, Record]]:
    """(offset, timestamp, record) of every record of a topic that can be decoded."""
    for row in read(settings, topic_name(kind, prefix), since_ms=since_ms):
        try:
            yield row.offset, row.at_ms, decode_record(kind, row.key, row.value)
        except DecodeError:
            continue  # not a record of muster's


def _heard(
    settings: ClientSettings, prefix: str, since_ms: int, answered: Mapping[GroupId, int]
) -> dict[GroupId, Heard]:
    """The newest records of each group on the membership topic; only joins and ticks are decoded.

    `answered`: timestamp of each group's newest record on ``<prefix>.groups``.
    """
    by_group: dict[GroupId, Heard] = {}
    joined: defaultdict[GroupId, set[str]] = defaultdict(set)
    for row in read(settings, topic_name(TopicKind.MEMBERSHIP, prefix), since_ms=since_ms):
        try:
            group = parse_key(row.key).group
        except DecodeError:
            continue
        before = by_group.get(group, Heard())
        value = row.value or b""
        if value.startswith(PREFIX["Tick"]):
            uncovered_ms = 0 if _is_covered(row) else before.uncovered_ms or row.at_ms
            by_group[group] = replace(
                before, tick_ms=max(before.tick_ms, row.at_ms), uncovered_ms=uncovered_ms
            )
            continue
        by_group[group] = heard = replace(before, event_ms=max(before.event_ms, row.at_ms))
        if row.at_ms > answered.get(group, 0) and value.startswith(PREFIX["Join"]):
            since_ms = before.unanswered_ms or row.at_ms
            by_group[group] = replace(heard, unanswered_ms=since_ms)
            event = _event(row)
            joined[group] |= {event.member} if isinstance(event, Join) else set()
    for group, members in joined.items():
        by_group[group] = replace(by_group[group], joined=frozenset(members))
    return by_group


def _is_covered(row: Row) -> bool:
    """Whether a tick has a cover: its clock reads the heartbeats that members write apart."""
    event = _event(row)
    return isinstance(event, Tick) and event.cover is not None


def _event(row: Row) -> Event | None:
    try:
        return decode(
            TopicKind.MEMBERSHIP, row.key, row.value, Origin("", 0, row.offset, row.at_ms)
        )
    except DecodeError:
        return None
