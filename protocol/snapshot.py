"""A group's snapshot and its Avro row: members as rows, task vectors as bytes."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.protocol import rows
from muster.protocol.errors import DecodeError
from muster.protocol.framing import Row
from muster.protocol.ids import Role
from muster.protocol.keys import Key
from muster.protocol.records import GroupSnapshot, GroupState, MemberEntry, MemberState, Move
from muster.protocol.tasks import TaskTable

_PLAIN = (
    *("coordinator_epoch", "generation", "target_generation", "assignor", "cause", "clock_ms"),
    *("next_ms", "followup_ms", "delay_until_ms", "generation_ms", "memory"),
)
_VECTORS = ("target", "holder", "destination")
_PAIRS = (
    *("target_standby", "target_learner", "standby", "learner"),
    *("standby_revoking", "learner_revoking", "ready"),
)
_MEMBER_PLAIN = (
    *("id", "slot", "instance_id", "rack", "capacity", "config_offset", "rebalance_timeout_ms"),
    *("make_before_break", "epoch", "previous_epoch", "revision", "revoke_revision", "joined_ms"),
    *("draining", "away", "session_timeout_ms", "deadline_ms"),
)


def snapshot_row(snapshot: GroupSnapshot) -> Row:
    """The row of a snapshot."""
    row: Row = {name: getattr(snapshot, name) for name in _PLAIN}
    row |= rows.tasks_row(snapshot.tasks)
    row["state"] = snapshot.state.value
    row["settings"] = rows.settings_row(snapshot.settings, snapshot.assignor)
    row["members"] = [_member_row(member) for member in snapshot.members]
    for name in _VECTORS:
        row[name] = _packed(getattr(snapshot, name))
    row["revoking"] = _packed(snapshot.revoking.astype(np.int32))
    for name in _PAIRS:
        row[name] = _packed(getattr(snapshot, name))
    row["lags"] = _packed(snapshot.lags[:, :2].astype(np.int32))
    row["lag_offsets"] = snapshot.lags[:, 2].tolist()
    row["lag_ms"] = snapshot.lag_ms.tolist()
    row["moves"] = [
        {
            "task": move.task,
            "role": int(move.role),
            "from_member": move.from_member,
            "to_member": move.to_member,
            "reason": move.reason,
        }
        for move in snapshot.moves
    ]
    row["through"] = [
        {"topic": topic, "partition": partition, "offset": offset}
        for topic, partition, offset in snapshot.through
    ]
    row["recovering"] = list(snapshot.recovering)
    return row


def snapshot_from(key: Key, row: Row) -> GroupSnapshot:
    """The snapshot of a row, checked."""
    tasks = rows.tasks_from(row)
    count = len(TaskTable(tasks))
    arrays: dict[str, Any] = {name: _unpacked(row[name], count) for name in _VECTORS}
    arrays["revoking"] = _unpacked(row["revoking"], count).astype(np.bool_)
    for name in _PAIRS:
        arrays[name] = _unpacked(row[name], None).reshape(-1, 2)
    pairs = _unpacked(row["lags"], None).reshape(-1, 2)
    if not len(pairs) == len(row["lag_offsets"]) == len(row["lag_ms"]):
        raise DecodeError("lags, lag_offsets and lag_ms differ in length")
    offsets = np.array(row["lag_offsets"], dtype=np.int64)
    arrays["lags"] = np.column_stack((pairs.astype(np.int64), offsets))
    arrays["lag_ms"] = np.array(row["lag_ms"], dtype=np.int64)
    return GroupSnapshot(
        group=key.group,
        state=_state(row["state"]),
        settings=rows.settings_from(row["settings"], row["assignor"]),
        tasks=tasks,
        members=tuple(_member_from(each) for each in row["members"]),
        moves=tuple(_move_from(each) for each in row["moves"]),
        through=tuple((t["topic"], t["partition"], t["offset"]) for t in row["through"]),
        recovering=tuple(row["recovering"]),
        **{name: row[name] for name in _PLAIN},
        **arrays,
    )


def _state(text: str) -> GroupState:
    try:
        return GroupState(text)
    except ValueError:
        raise DecodeError(f"group state {text[:40]!r}") from None


def _member_row(member: MemberEntry) -> Row:
    return {
        **{name: getattr(member, name) for name in _MEMBER_PLAIN},
        "incarnation": rows.u64(member.incarnation),
        "tags": dict(member.tags),
        "protocols": list(member.protocols),
        "topics": None if member.topics is None else list(member.topics),
        "static": list(member.static),
        "state": member.state.value,
    }


def _member_from(row: Row) -> MemberEntry:
    rows.member_from(row["id"])
    states = {state.value: state for state in MemberState}
    return MemberEntry(
        **{name: row[name] for name in _MEMBER_PLAIN},
        incarnation=rows.u64_from(row["incarnation"]),
        tags=rows.tags_from(row["tags"]),
        protocols=tuple(row["protocols"]),
        topics=rows.optional_names(row["topics"]),
        static=tuple(row["static"]),
        state=states.get(row["state"], MemberState.UNKNOWN),
    )


def _move_from(row: Row) -> Move:
    try:
        role = Role(row["role"])
    except ValueError:
        raise DecodeError(f"role {row['role']} of a move") from None
    return Move(
        task=row["task"],
        role=role,
        from_member=row["from_member"],
        to_member=row["to_member"],
        reason=row["reason"],
    )


def _packed(array: NDArray[np.int32]) -> bytes:
    return zlib.compress(np.ascontiguousarray(array, dtype="<i4").tobytes(), 1)


def _unpacked(data: bytes, count: int | None) -> NDArray[np.int32]:
    stream = zlib.decompressobj()
    limit = 4 * (rows.GROUP_TASKS_MAX if count is None else count)
    try:
        raw = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise DecodeError(f"a vector that does not inflate: {error}") from None
    if not stream.eof or len(raw) > limit or (count is not None and len(raw) != limit):
        raise DecodeError("a vector of another length than the group's tasks")
    if len(raw) % (4 if count is not None else 8):
        raise DecodeError("a vector that ends within a number")
    return np.frombuffer(raw, dtype="<i4").astype(np.int32)
