"""Avro row of a group's snapshot.

Tasks and settings are as in a config. Members are columns of numbers; fields that many of them
share (rack, tags, protocols) are written once as a profile. `snapshot_vectors` writes the task
vectors, and the held tasks as their difference from the target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from muster.protocol import rows, source_rows, task_rows
from muster.protocol.bits import pack_numbers, take_numbers
from muster.protocol.errors import DecodeError
from muster.protocol.events import PROFILE
from muster.protocol.framing import Row
from muster.protocol.ids import GroupId, Role, member_from
from muster.protocol.keys import Key
from muster.protocol.owner_vectors import decode_owners, encode_owners
from muster.protocol.records import (
    GroupSnapshot,
    GroupState,
    KeptDrain,
    MemberEntry,
    MemberState,
    Move,
    Quarantine,
)
from muster.protocol.setting_values import LONG_MAX
from muster.protocol.snapshot_vectors import (
    codes,
    decode_flags,
    decode_pairs,
    decode_vector,
    encode_flags,
    encode_pairs,
    encode_vector,
)
from muster.protocol.tasks import IntArray, TaskTable

_Array = TypeVar("_Array")
MOVES_BYTES_MAX = 16 << 20
"""Limit of the moves of a snapshot, several hundred thousand of them."""
_PLAIN = (
    *("coordinator_epoch", "generation", "target_generation", "assignor", "cause", "clock_ms"),
    *("next_ms", "followup_ms", "delay_until_ms", "generation_ms", "memory"),
)
_DEADLINES = ("next_ms", "followup_ms", "delay_until_ms")
_VECTORS = {"holder": "target", "destination": "target"}
"""Owner vector → its base."""
_PAIRS = {
    "target_standby": None,
    "target_learner": None,
    "standby": "target_standby",
    "learner": "target_learner",
    "standby_revoking": None,
    "learner_revoking": None,
}
"""Pairs → their base."""
_STANDBY_READY = "standby_ready"
"""Extra: ready pairs that are not learners, with base `standby`; older versions have none."""
_DRAINS = "drains"
"""Extra: drains that outlive their member, as JSON."""
_FLAGS = ("apart", "fenced", "drained")
"""Extras: a flag for each member, in their order: whether it heartbeats apart, is fenced, …"""
_FLOOR = "floor"
"""Extra: a generation that an earlier coordinator may have used, one u64."""
_QUARANTINE = "quarantine"
"""Extra: since when and why the group is quarantined, as JSON."""
_QUARANTINE_THROUGH = "quarantine_through"
"""Extra: the newest records of config that were read in the quarantine, as JSON."""
_COLUMNS = ("slot", "epoch", "previous_epoch", "revision", "revoke_revision", "joined_ms")
_PROFILE = (*PROFILE, "state", "draining", "away", "session_timeout_ms")
_profile_of = attrgetter(*_PROFILE)
_MOVE = tuple(field.name for field in fields(Move))
_STATES = {state.value: state for state in MemberState}
_GROUP_STATES = {state.value: state for state in GroupState}


class GroupOutline(NamedTuple):
    """What a list of groups shows; members and tasks are counted. See `GroupSnapshot`."""

    group: GroupId
    coordinator_epoch: int
    generation: int
    state: GroupState
    assignor: str
    members: int
    tasks: int
    is_quarantined: bool


def outline_of(snapshot: GroupSnapshot) -> GroupOutline:
    """The outline of a snapshot."""
    return GroupOutline(
        snapshot.group,
        snapshot.coordinator_epoch,
        snapshot.generation,
        snapshot.state,
        snapshot.assignor,
        len(snapshot.members),
        sum(unit.size for unit in snapshot.tasks),
        snapshot.quarantine is not None,
    )


def outline_from(key: Key, row: Row) -> GroupOutline:
    """An outline from a snapshot's row, without the work of `snapshot_from`."""
    return GroupOutline(
        key.group,
        row["coordinator_epoch"],
        row["generation"],
        _GROUP_STATES.get(row["state"], GroupState.UNKNOWN),
        row["assignor"],
        len(row["members"]["ids"]),
        sum(unit["count"] + unit["connector"] for unit in row["tasks"]),
        _QUARANTINE in row["extras"],
    )


def snapshot_row(snapshot: GroupSnapshot) -> Row:
    """The Avro row of a snapshot."""
    row: Row = {name: getattr(snapshot, name) for name in _PLAIN}
    for name in _DEADLINES:
        row[name] = _at_most_long(row[name])
    tasks = task_rows.tasks_row(snapshot.tasks)
    row |= tasks | _members_row(snapshot.members)
    row["state"] = snapshot.state.value
    row["settings"] = rows.settings_row(snapshot.settings, snapshot.assignor)
    row["target"] = encode_owners(snapshot.target)
    for name, base in _VECTORS.items():
        row[name] = encode_vector(getattr(snapshot, name), getattr(snapshot, base))
    row["revoking"] = encode_flags(snapshot.revoking)
    count = len(snapshot.target)
    for name, base_name in _PAIRS.items():
        known = getattr(snapshot, base_name) if base_name else None
        row[name] = encode_pairs(getattr(snapshot, name), count, known)
    row |= rows.with_extras(
        {"extras": tasks.get("extras", {})},
        _ready_row(snapshot, count),
        {"extras": _rare_extras(snapshot)},
        source_rows.group_found_row(snapshot.sources, snapshot.found),
        _flags_row(snapshot),
    )
    lags = snapshot.lags
    row["lags"] = encode_pairs(lags[:, :2].astype(np.int32), count)
    row["lag_offsets"] = pack_numbers(lags[:, 2])
    row["lag_ms"] = pack_numbers(snapshot.lag_ms)
    row["moves"] = _move_rows(snapshot.moves)
    row["through"] = [
        {"topic": topic, "partition": partition, "offset": offset}
        for topic, partition, offset in snapshot.through
    ]
    row["recovering"] = list(snapshot.recovering)
    return row


def snapshot_from(key: Key, row: Row) -> GroupSnapshot:
    """A snapshot from its row, checked."""
    tasks = task_rows.tasks_from(row)
    sources = source_rows.sources_from(row["extras"])
    members = _members_from(row["members"], row["profiles"])
    return GroupSnapshot(
        group=key.group,
        state=_GROUP_STATES.get(row["state"], GroupState.UNKNOWN),
        settings=rows.kept_settings_from(row["settings"], row["assignor"]),
        tasks=tasks,
        members=members,
        moves=tuple(_move_from(move) for move in row["moves"]),
        through=tuple((t["topic"], t["partition"], t["offset"]) for t in row["through"]),
        recovering=tuple(row["recovering"]),
        apart=_flagged("apart", row["extras"], members),
        fenced=_flagged("fenced", row["extras"], members),
        drained=_flagged("drained", row["extras"], members),
        floor=rows.number_from(row["extras"], _FLOOR) or 0,
        drains=_drains_from(row["extras"]),
        quarantine=_quarantine_from(row["extras"]),
        sources=sources,
        found=source_rows.group_found_from(row["extras"], sources, tasks),
        **{name: row[name] for name in _PLAIN},
        **_arrays_from(row, len(TaskTable(tasks))),
    )


def _arrays_from(row: Row, count: int) -> dict[str, Any]:
    arrays: dict[str, Any] = {"target": _read("target", _owners_from, row, count)}
    for name, base in _VECTORS.items():
        arrays[name] = _read(name, decode_vector, row, arrays[base])
    arrays["revoking"] = _read("revoking", decode_flags, row, count)
    for name, base_name in _PAIRS.items():
        known = arrays[base_name] if base_name else None
        arrays[name] = _read(name, decode_pairs, row, count, known)
    arrays["ready"] = _read("ready", decode_pairs, row, count, arrays["learner"])
    if _STANDBY_READY in row["extras"]:
        more = _read(_STANDBY_READY, decode_pairs, row["extras"], count, arrays["standby"])
        ready = np.concatenate((arrays["ready"], more))
        arrays["ready"] = ready[np.argsort(codes(ready), kind="stable")]
    pairs = _read("lags", decode_pairs, row, count)
    offsets = _read("lag_offsets", take_numbers, row, len(pairs))
    arrays["lags"] = np.column_stack((pairs.astype(np.int64), offsets))
    arrays["lag_ms"] = _read("lag_ms", take_numbers, row, len(pairs))
    return arrays


def _ready_row(snapshot: GroupSnapshot, count: int) -> Row:
    """The ready pairs: learners in the field `ready`, the others in an extra."""
    ready = snapshot.ready
    if len(ready) == 0:  # the common case
        return {"ready": encode_pairs(ready, count, snapshot.learner)}
    learning = np.isin(codes(ready), codes(snapshot.learner))
    row: Row = {"ready": encode_pairs(ready[learning], count, snapshot.learner)}
    if not learning.all():
        standby_pairs = encode_pairs(ready[~learning], count, snapshot.standby)
        row["extras"] = {_STANDBY_READY: standby_pairs}
    return row


def _flags_row(snapshot: GroupSnapshot) -> Row:
    """The extras of members' flags, without those that no member has."""
    flagged = {name: those for name in _FLAGS if (those := getattr(snapshot, name))}
    if not flagged:
        return {}
    slots = np.fromiter((member.slot for member in snapshot.members), dtype=np.int64)
    return {"extras": {n: encode_flags(np.isin(slots, those)) for n, those in flagged.items()}}


def _flagged(name: str, extras: Row, members: tuple[MemberEntry, ...]) -> tuple[int, ...]:
    """Slots of the members that have a flag."""
    if name not in extras:
        return ()
    flags = _read(name, decode_flags, extras, len(members))
    return tuple(sorted({member.slot for member, flag in zip(members, flags, strict=True) if flag}))


def _rare_extras(snapshot: GroupSnapshot) -> Row:
    """Kept drains, the quarantine and the floor, those that the group has."""
    extras: Row = {}
    if snapshot.drains:
        extras[_DRAINS] = rows.json_bytes(snapshot.drains)
    if snapshot.quarantine is not None:
        since_ms, story, through = snapshot.quarantine
        extras[_QUARANTINE] = rows.json_bytes((since_ms, story))
        if through:
            extras[_QUARANTINE_THROUGH] = rows.json_bytes(through)
    if snapshot.floor:
        extras[_FLOOR] = rows.u64(snapshot.floor)
    return extras


def _drains_from(extras: Row) -> tuple[KeptDrain, ...]:
    if _DRAINS not in extras:
        return ()
    try:
        return tuple(_drain_from(*fields) for fields in json.loads(extras[_DRAINS]))
    except (ValueError, TypeError, RecursionError) as error:
        raise DecodeError(f"malformed drains: {error}") from None


def _drain_from(member: object, instance: object, gone_ms: object, expelled: object) -> KeptDrain:
    texts = isinstance(member, str) and isinstance(instance, str | None)
    if not (texts and type(gone_ms) in (int, type(None)) and isinstance(expelled, bool)):
        raise ValueError("expected [member id, instance id, milliseconds, true or false]")
    return KeptDrain(member_from(str(member)), instance, gone_ms, expelled)  # type: ignore[arg-type]  # checked


def _quarantine_from(extras: Row) -> Quarantine | None:
    if _QUARANTINE not in extras:
        return None
    try:
        since_ms, story = json.loads(extras[_QUARANTINE])
    except (ValueError, TypeError, RecursionError) as error:
        raise DecodeError(f"malformed quarantine: {error}") from None
    if type(since_ms) is not int or not isinstance(story, str):
        raise DecodeError("a quarantine that is not [milliseconds, text]")
    return Quarantine(since_ms, story, _quarantine_through(extras))


def _quarantine_through(extras: Row) -> tuple[tuple[str, int, int], ...]:
    if _QUARANTINE_THROUGH not in extras:
        return ()
    try:
        places = tuple((t, p, o) for t, p, o in json.loads(extras[_QUARANTINE_THROUGH]))
    except (ValueError, TypeError, RecursionError) as error:
        raise DecodeError(f"malformed quarantine_through: {error}") from None
    if not all(isinstance(t, str) and type(p) is int and type(o) is int for t, p, o in places):
        raise DecodeError("a quarantine_through that is not [[topic, partition, offset], ...]")
    return places


def _read(name: str, read: Callable[..., _Array], row: Row, *known: object) -> _Array:
    """Read one field; an error names the field."""
    try:
        return read(row[name], *known)
    except DecodeError as error:
        raise error.within(name) from None


def _owners_from(data: bytes, count: int) -> IntArray:
    owners, end = decode_owners(data, 0, count)
    if end != len(data):
        raise DecodeError("bytes behind the owner vector", end)
    return owners


def _members_row(members: tuple[MemberEntry, ...]) -> Row:
    profiles: dict[tuple[object, ...], int] = {}
    profile = [profiles.setdefault(_profile_of(member), len(profiles)) for member in members]
    static = any(member.instance_id is not None for member in members)
    columns: Row = {name: _column(map(attrgetter(name), members)) for name in _COLUMNS}
    columns["ids"] = [member.id for member in members]
    columns["incarnations"] = b"".join(rows.u64(member.incarnation) for member in members)
    columns["instance_ids"] = [member.instance_id for member in members] if static else []
    deadlines = (_at_most_long(member.deadline_ms) for member in members)
    columns["deadline_ms"] = _column(-1 if at_ms is None else at_ms for at_ms in deadlines)
    columns["profile"] = _column(profile)
    return {"members": columns, "profiles": [_profile_row(profile) for profile in profiles]}


def _at_most_long(at_ms: int | None) -> int | None:
    """A time limited to the range of a long: an infinite timeout added to a clock exceeds it."""
    return None if at_ms is None else min(at_ms, LONG_MAX)


def _column(numbers: Iterable[int]) -> bytes:
    return pack_numbers(np.fromiter(numbers, dtype=np.int64))


def _profile_row(profile: tuple[Any, ...]) -> Row:
    row = dict(zip(_PROFILE, profile, strict=True))
    row["tags"] = dict(row["tags"])
    row["state"] = row["state"].value
    for name in ("protocols", "static", "topics"):
        row[name] = None if row[name] is None else list(row[name])
    return row


def _members_from(columns: Row, profiles: list[Row]) -> tuple[MemberEntry, ...]:
    ids = columns["ids"]
    count = len(ids)
    incarnations = columns["incarnations"]
    instance_ids = columns["instance_ids"] or [None] * count
    if len(incarnations) != 8 * count or len(instance_ids) != count:
        raise DecodeError(f"columns of members that differ in length from their {count} ids")
    numbers: dict[str, list[Any]] = {
        name: take_numbers(columns[name], count).tolist() for name in _COLUMNS
    }
    deadlines: list[int] = take_numbers(columns["deadline_ms"], count).tolist()
    profile = take_numbers(columns["profile"], count)
    if count and not 0 <= int(profile.min()) <= int(profile.max()) < len(profiles):
        raise DecodeError("a member's profile is missing")
    shared: list[dict[str, Any]] = [_profile_from(row) for row in profiles]
    members: list[MemberEntry] = []
    for i, profile_index in enumerate(map(int, profile)):
        own: dict[str, Any] = {name: column[i] for name, column in numbers.items()}
        own["id"] = member_from(ids[i])
        own["incarnation"] = rows.u64_from(incarnations[8 * i : 8 * i + 8])
        own["instance_id"] = instance_ids[i]
        own["deadline_ms"] = None if deadlines[i] < 0 else deadlines[i]
        members.append(MemberEntry(**own, **shared[profile_index]))
    return tuple(members)


def _profile_from(row: Row) -> dict[str, Any]:
    fields: dict[str, Any] = {name: row[name] for name in _PROFILE}
    fields["tags"] = tuple(sorted(row["tags"].items()))
    fields["state"] = _STATES.get(row["state"], MemberState.UNKNOWN)
    for name in ("protocols", "static", "topics"):
        fields[name] = None if row[name] is None else tuple(row[name])
    return fields


def _move_rows(moves: Sequence[Move]) -> list[Row]:
    """The rows of the moves up to `MOVES_BYTES_MAX`, so that the group can always publish."""
    listed, bytes_left = [], MOVES_BYTES_MAX
    for move in moves:
        bytes_left -= 8 + len(move.task) + len(move.reason)
        bytes_left -= len(move.from_member or "") + len(move.to_member or "")
        if bytes_left < 0:
            break
        listed.append({name: getattr(move, name) for name in _MOVE} | {"role": int(move.role)})
    return listed


def _move_from(row: Row) -> Move:
    try:
        role = Role(row["role"])
    except ValueError:
        raise DecodeError(f"role {row['role']} of a move") from None
    return Move(**{name: row[name] for name in _MOVE} | {"role": role})
