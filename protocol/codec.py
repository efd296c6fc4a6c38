"""Converts events and records to bytes and back.

`encode` gives the key, value and headers of an event or record. `decode` reads events (topics
membership, config, lag), `decode_record` the coordinator's records. Values do not repeat the group
and member of the key. A missing value is a tombstone. Invalid bytes raise `DecodeError` and nothing
else, because every number is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from muster.protocol import event_rows, record_rows
from muster.protocol.errors import DecodeError
from muster.protocol.events import (
    Drain,
    Event,
    GroupConfig,
    GroupDeleted,
    Heartbeat,
    Join,
    LagReport,
    Leave,
    Origin,
    Report,
    Tick,
    TopicsFound,
)
from muster.protocol.framing import KNOWN, Row, Schemas, pack, write
from muster.protocol.ids import GroupId
from muster.protocol.keys import (
    COORDINATOR_KEY,
    DICTIONARY_PART,
    FOUND_PART,
    SIGN_GROUP,
    Key,
    dead_letter_key,
    key_of,
    parse_key,
)
from muster.protocol.record_rows import Dictionaries
from muster.protocol.records import (
    CoordinatorClaim,
    CoordinatorSign,
    Dictionary,
    GroupGone,
    GroupSnapshot,
    MemberAssignment,
    MemberGone,
    Record,
    Rejected,
    WakeUp,
)
from muster.protocol.snapshot import GroupOutline, outline_from, snapshot_from, snapshot_row
from muster.protocol.taskset import SET_TASKS_MAX
from muster.protocol.tick_covers import HEARD_MAX
from muster.protocol.topics import EVENT_BYTES_MAX, TopicKind

Headers: TypeAlias = tuple[tuple[str, bytes], ...]
CONFIG_BYTES_MAX = 16 << 20
"""A packed config may inflate to at most this many bytes."""
_PACKED = ("GroupConfig", "TopicsFound", "GroupSnapshot", "Dictionary")
_NO_DICTIONARIES: Dictionaries = {}
CONTENT_TYPE = ("content-type", b"application/avro")


class Encoded(NamedTuple):
    """A record as Kafka gets it. A value of None is a tombstone."""

    key: bytes
    value: bytes | None
    headers: Headers


EVENTS: dict[tuple[TopicKind, str], Callable[..., Event]] = {
    (TopicKind.MEMBERSHIP, "Join"): event_rows.join_from,
    (TopicKind.MEMBERSHIP, "Report"): event_rows.report_from,
    (TopicKind.MEMBERSHIP, "Heartbeat"): event_rows.heartbeat_from,
    (TopicKind.MEMBERSHIP, "Leave"): event_rows.leave_from,
    (TopicKind.MEMBERSHIP, "Drain"): event_rows.drain_from,
    (TopicKind.MEMBERSHIP, "Tick"): event_rows.tick_from,
    (TopicKind.LAG, "LagReport"): event_rows.lag_report_from,
    (TopicKind.CONFIG, "GroupConfig"): event_rows.config_from,
    (TopicKind.CONFIG, "TopicsFound"): event_rows.found_from,
}
"""(topic, schema) → the function that reads the event."""

_NAMING_TASKS = ("Join", "Report", "LagReport")
"""The events that name tasks; their readers take a limit."""

RECORDS: dict[tuple[TopicKind, str], Callable[[Key, Row], Record]] = {
    (TopicKind.GROUPS, "Dictionary"): record_rows.dictionary_from,
    (TopicKind.GROUPS, "GroupSnapshot"): snapshot_from,
    (TopicKind.CLOCK, "WakeUp"): record_rows.wake_up_from,
    (TopicKind.CLOCK, "CoordinatorSign"): record_rows.sign_from,
    (TopicKind.REJECTED, "Rejected"): lambda _key, row: record_rows.rejected_from(row),
    (TopicKind.COORDINATOR, "CoordinatorClaim"): lambda _key, row: record_rows.claim_from(row),
}
"""(topic, schema) → the function that reads the record; assignments also need dictionaries."""


def decode(
    kind: TopicKind,
    key: bytes | None,
    value: bytes | None,
    origin: Origin,
    *,
    schemas: Schemas = KNOWN,
    tasks_max: int = SET_TASKS_MAX,
    heard_max: int = HEARD_MAX,
) -> Event:
    """Read an event of the topics membership, config and lag; a value of None is a tombstone.

    A few bytes can name millions of tasks. So `tasks_max` limits the tasks that a join or report
    names in each role, and the units of a lag report; `heard_max` limits the members whose
    heartbeats a tick carries.

    Raises:
        DecodeError: the bytes are not a valid event of this topic.
    """
    group, member, part = parse_key(key)
    is_found = kind == TopicKind.CONFIG and part == FOUND_PART
    if member is not None or (part and not is_found):
        raise DecodeError(f"key {key!r}; expected the group id alone"[:200])
    if value is None:
        if kind == TopicKind.CONFIG and not part:
            return GroupDeleted(group=group, origin=origin)
        raise DecodeError(f"a tombstone on {kind}, where it means nothing")
    # Only configs grow large, so other events are never packed.
    name, row = schemas.read(bytes(value), CONFIG_BYTES_MAX if kind == TopicKind.CONFIG else 0)
    build = EVENTS.get((kind, name))
    if is_found and name != "TopicsFound":
        raise DecodeError(f"a {name} under the key of what was found"[:200])
    if build is None:
        raise DecodeError(f"a {name} does not belong on {kind}")
    if name in _NAMING_TASKS:
        return build(group, row, origin, tasks_max)
    return build(group, row, origin, heard_max) if name == "Tick" else build(group, row, origin)


def decode_record(
    kind: TopicKind,
    key: bytes | None,
    value: bytes | None,
    *,
    dictionaries: Dictionaries = _NO_DICTIONARIES,
    schemas: Schemas = KNOWN,
) -> Record:
    """Read a record of the coordinator, to which an assignment may need the group's dictionaries.

    A value of None is a tombstone. The parts of a split record must be joined first (`Joiner`).

    Raises:
        UnknownDictionary: an assignment refers to a dictionary that was not given.
        DecodeError: the bytes are not a valid record of this topic.
    """
    keyed = kind not in (TopicKind.REJECTED, TopicKind.COORDINATOR)
    parsed = parse_key(key) if keyed else Key(GroupId(""))
    if parsed.part not in ("", DICTIONARY_PART):
        raise DecodeError("a part of a record that was split; its parts must be joined first")
    if value is None:
        return _tombstone(kind, parsed)
    name, row = schemas.read(bytes(value))
    if name == "Part":
        raise DecodeError("a part of a record that was split; its parts must be joined first")
    if (kind, name) == (TopicKind.ASSIGNMENTS, "MemberAssignment"):
        return record_rows.assignment_from(parsed, row, dictionaries)
    build = RECORDS.get((kind, name))
    if build is None:
        raise DecodeError(f"a {name} does not belong on {kind}")
    return build(parsed, row)


def decode_outline(key: bytes | None, value: bytes) -> GroupOutline:
    """Read the outline of a group's snapshot, in a tenth of the time of `decode_record`.

    Raises:
        DecodeError: the bytes are not a snapshot.
    """
    name, row = KNOWN.read(bytes(value))
    if name != "GroupSnapshot":
        raise DecodeError(f"a {name}; expected a GroupSnapshot")
    return outline_from(parse_key(key), row)


def _tombstone(kind: TopicKind, key: Key) -> Record:
    if kind == TopicKind.GROUPS and key.part == DICTIONARY_PART:
        return Dictionary(group=key.group, units=())
    if kind == TopicKind.ASSIGNMENTS and key.member is not None:
        return MemberGone(group=key.group, member=key.member)
    if kind == TopicKind.GROUPS:
        return GroupGone(group=key.group)
    if kind == TopicKind.CLOCK:
        return WakeUp(group=key.group, at_ms=None)
    raise DecodeError(f"a tombstone on {kind}, where it means nothing")


def encode(value: Event | Record) -> Encoded:
    """Key, value and headers of an event or record.

    Raises:
        EncodeError: an id or number is not valid.
    """
    match value:
        case GroupDeleted() | GroupGone() | WakeUp(at_ms=None):
            return Encoded(key_of(value.group), None, ())
        case MemberGone():
            return Encoded(key_of(value.group, value.member), None, ())
        case Heartbeat():
            # No headers: they would double the size of the most frequent event.
            row = event_rows.heartbeat_row(value)
            return Encoded(key_of(value.group), write("Heartbeat", row), ())
        case Rejected():
            topic, partition, offset, _ = value.origin
            key = dead_letter_key(topic, partition, offset)
            reason = ("reason", value.reason.encode())
            return _framed(key, "Rejected", record_rows.rejected_row(value), reason)
        case CoordinatorClaim():
            return _framed(COORDINATOR_KEY, "CoordinatorClaim", record_rows.claim_row(value))
        case CoordinatorSign():
            key = key_of(SIGN_GROUP, value.job)
            return _framed(key, "CoordinatorSign", record_rows.sign_row(value))
        case Dictionary():
            key = key_of(value.group, part=DICTIONARY_PART)
            if not value.units:
                return Encoded(key, None, ())
            return _framed(key, "Dictionary", record_rows.dictionary_row(value))
        case MemberAssignment():
            generation = ("generation", str(value.generation).encode())
            key = key_of(value.group, value.member)
            return _framed(key, "MemberAssignment", record_rows.assignment_row(value), generation)
        case GroupSnapshot():
            generation = ("generation", str(value.generation).encode())
            row = snapshot_row(value)
            return _framed(key_of(value.group), "GroupSnapshot", row, generation)
        case Join() | Report() if value.lags:
            # Lags that do not fit are left out: `LagReport`s carry them too.
            whole = _event(value)
            fits = len(whole.value or b"") <= EVENT_BYTES_MAX
            return whole if fits else _event(replace(value, lags=()))
        case _:
            return _event(value)


_ROWS: dict[type, Callable[..., Row]] = {
    Join: event_rows.join_row,
    Report: event_rows.report_row,
    Leave: event_rows.leave_row,
    Drain: event_rows.drain_row,
    LagReport: event_rows.lag_report_row,
    GroupConfig: event_rows.config_row,
    TopicsFound: event_rows.found_row,
    Tick: event_rows.tick_row,
    WakeUp: record_rows.wake_up_row,
}


def _event(
    value: Join | Report | Leave | Drain | LagReport | GroupConfig | TopicsFound | Tick | WakeUp,
) -> Encoded:
    part = FOUND_PART if isinstance(value, TopicsFound) else ""
    key = key_of(value.group, part=part)
    return _framed(key, type(value).__name__, _ROWS[type(value)](value))


def _framed(key: bytes, name: str, row: Row, *headers: tuple[str, bytes]) -> Encoded:
    schema = ("schema", f"muster.{name}".encode())
    value = write(name, row)
    if name in _PACKED:
        value = pack(value)
    return Encoded(key, value, (CONTENT_TYPE, schema, *headers))
