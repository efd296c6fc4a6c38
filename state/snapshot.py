"""Conversion between a group, its published record, and the liveness bytes stored beside it.

Record and liveness are the whole state, because a record is published whenever anything but
liveness changed. `recovered` builds a group from the record alone.
"""

from __future__ import annotations

import json

import numpy as np

from muster.protocol.digest import table_hashes
from muster.protocol.ids import Role
from muster.protocol.records import GroupSnapshot, GroupState
from muster.protocol.tasks import TaskTable
from muster.state import outcome
from muster.state.group import (
    NO_MEMBER,
    UNPROVED,
    Codes,
    Copies,
    Group,
    Lags,
    Member,
    Orphan,
    codes,
    slot_of,
    task_of,
    union,
)
from muster.state.liveness import Liveness


def snapshot_of(group: Group) -> GroupSnapshot:
    """The published record of a group."""
    lags = group.lags
    pairs = np.column_stack((task_of(lags.pair), slot_of(lags.pair), lags.offsets))
    sessions = group.sessions
    return GroupSnapshot(
        group=group.id,
        coordinator_epoch=group.coordinator_epoch,
        generation=group.generation,
        target_generation=group.target_generation,
        state=group.state,
        assignor=group.assignor,
        settings=group.settings,
        tasks=group.table.units,
        members=tuple(filter(None, group.members)),
        target=group.target,
        holder=group.holder,
        revoking=group.revoking,
        destination=group.destination,
        target_standby=_columns(group.standby.wanted),
        target_learner=_columns(group.learner.wanted),
        standby=_columns(union(group.standby.kept, group.standby.going)),
        learner=_columns(union(group.learner.kept, group.learner.going)),
        standby_revoking=_columns(group.standby.going),
        learner_revoking=_columns(group.learner.going),
        ready=_columns(group.ready),
        lags=pairs.astype(np.int64).reshape(-1, 3),
        lag_ms=lags.reported_ms,
        moves=group.moves,
        cause=group.cause,
        through=tuple((t, p, o) for (t, p), o in sorted(sessions.through.items())),
        clock_ms=sessions.clock_ms,
        next_ms=_next_ms(group),
        followup_ms=group.followup_ms,
        delay_until_ms=group.delay_until_ms,
        generation_ms=group.generation_ms,
        memory="" if group.memory is None else json.dumps(group.memory, sort_keys=True),
        recovering=tuple(sorted(group.recovering)),
        drains=group.drains,
    )


def _next_ms(group: Group) -> int | None:
    known = [at for at in (group.delay_until_ms, group.followup_ms) if at is not None]
    return min([*known, *group.drain_until_ms.values()], default=None)


def _columns(pairs: Codes) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    return np.column_stack((task_of(pairs), slot_of(pairs))).astype(np.int32)


def _codes(pairs: np.ndarray[tuple[int, int], np.dtype[np.int32]]) -> Codes:
    return codes(pairs[:, 0], pairs[:, 1])


def liveness_bytes(group: Group) -> bytes:
    """The state that the record does not have: sessions, clocks, offsets, then fields in JSON."""
    rest = {
        "again": group.again,
        "drain": sorted(group.drain_until_ms.items()),
        "duplicate": group.duplicate.tolist(),
        "floor": group.floor,
        "kept": outcome.to_json(group.deferred),
        "orphans": group.orphans,
        "since": group.since_epoch,
        "wary": group.unverified_until_ms,
    }
    return group.sessions.to_bytes() + json.dumps(rest, separators=(",", ":")).encode()


def restored(record: GroupSnapshot, liveness: bytes) -> Group:
    """The group of a record and the liveness stored with it."""
    sessions, end = Liveness.from_bytes(liveness)
    rest = json.loads(liveness[end:])
    group = _group(record, sessions)
    return _replaced(
        group,
        again=rest["again"],
        drain_until_ms=dict(rest["drain"]),
        duplicate=np.array(rest["duplicate"], dtype=np.int64),
        deferred=outcome.from_json(rest.get("kept")),
        orphans=tuple(Orphan(*fields) for fields in rest["orphans"]),
        unverified_until_ms=rest["wary"],
        since_epoch=rest.get("since"),
        floor=rest.get("floor", 0),
    )


def recovered(record: GroupSnapshot) -> Group:
    """The group of a record alone: fresh sessions, and a question to every member."""
    sessions = Liveness.new(len(_by_slot(record)))
    sessions.clock_ms = sessions.session_ms = record.clock_ms
    sessions.through = {(t, p): o for t, p, o in record.through}
    group = _group(record, sessions)
    present = [member for member in record.members if not member.away]
    for member in record.members:
        sessions.seat(member.slot, member.session_timeout_ms)
    return _replaced(
        group,
        coordinator_epoch=-1 if present else record.coordinator_epoch,
        again=bool((record.target == NO_MEMBER).any()),  # Connect may have wanted another round
        recovering=frozenset(member.slot for member in present),
        floor=record.generation + 1,  # the lost batch may have granted tasks under this one
        unverified_until_ms=UNPROVED,
    )


def _group(record: GroupSnapshot, sessions: Liveness) -> Group:
    table = TaskTable(record.tasks)
    members = _by_slot(record)
    going = {
        Role.STANDBY: _codes(record.standby_revoking),
        Role.LEARNER: _codes(record.learner_revoking),
    }
    standby, learner = _codes(record.standby), _codes(record.learner)
    return Group(
        id=record.group,
        coordinator_epoch=record.coordinator_epoch,
        generation=record.generation,
        target_generation=record.target_generation,
        assignor=record.assignor,
        settings=record.settings,
        table=table,
        hashes=table_hashes(table),
        members=members,
        by_id={m.id: m.slot for m in record.members},
        by_instance={m.instance_id: m.slot for m in record.members if m.instance_id is not None},
        roster=tuple(m.slot for m in sorted(record.members, key=lambda m: m.id)),
        target=record.target,
        destination=record.destination,
        holder=record.holder,
        revoking=record.revoking,
        standby=Copies(
            _codes(record.target_standby),
            np.setdiff1d(standby, going[Role.STANDBY], assume_unique=True),
            going[Role.STANDBY],
        ),
        learner=Copies(
            _codes(record.target_learner),
            np.setdiff1d(learner, going[Role.LEARNER], assume_unique=True),
            going[Role.LEARNER],
        ),
        ready=_codes(record.ready),
        lags=Lags(_codes(record.lags[:, :2].astype(np.int32)), record.lags[:, 2], record.lag_ms),
        moves=record.moves,
        cause=record.cause,
        memory=json.loads(record.memory) if record.memory else None,
        generation_ms=record.generation_ms,
        followup_ms=record.followup_ms,
        delay_until_ms=record.delay_until_ms,
        recovering=frozenset(record.recovering),
        drains=record.drains,
        dead=record.state is GroupState.DEAD,
        sessions=sessions,
    )


def _by_slot(record: GroupSnapshot) -> tuple[Member | None, ...]:
    size = max((member.slot + 1 for member in record.members), default=0)
    members: list[Member | None] = [None] * size
    for member in record.members:
        members[member.slot] = member
    return tuple(members)


def _replaced(group: Group, **changes: object) -> Group:
    fields = {name: getattr(group, name) for name in Group.__slots__}
    return Group(**{**fields, **changes})
