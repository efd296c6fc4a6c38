"""Applies a new config to a group: settings, assignor, tasks.

When the task table changes, the vectors are renumbered task by task. A task that leaves the table
while a member has it becomes an orphan, which the member must release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from muster.protocol.digest import table_hashes
from muster.protocol.events import GroupConfig
from muster.protocol.ids import Role
from muster.protocol.records import MemberState
from muster.protocol.settings import SETTINGS, Settings
from muster.protocol.tasks import IntArray, TaskTable
from muster.protocol.topics import TopicKind
from muster.state import discovery, drains, reports
from muster.state.causes import count_of
from muster.state.draft import Draft
from muster.state.liveness import ASKED
from muster.state.ownership import (
    NO_MEMBER,
    Codes,
    Copies,
    Lags,
    Orphan,
    codes,
    slot_of,
    task_of,
    union,
)

_KEYS = {setting.field: setting.key for setting in SETTINGS}


def configure(draft: Draft, event: GroupConfig) -> None:
    """Apply a config; a deleted group becomes alive again."""
    if draft.dead:
        draft.dead, draft.cause = False, ""
    draft.publishes_again = True  # the operator sees that the config was read
    _catch_up(draft, event)
    if event.assignor != draft.assignor:
        draft.causes.add(f"assignor {draft.assignor} → {event.assignor}")
        draft.assignor, draft.target.memory = event.assignor, None
        draft.target.again = False
    _set(draft, event.settings)
    discovery.configured(draft, event)


def _catch_up(draft: Draft, event: GroupConfig) -> None:
    """Open a generation if a Connect worker had read a newer config than the group (S3-F11).

    Connect's assignors place nothing while a worker's config offset is above the group's.
    """
    before = offset_of(draft.group.sessions.through)
    offsets = (draft.member(slot).config_offset for slot in draft.roster.slots)
    if any(offset is not None and offset > before for offset in offsets):
        draft.causes.add(f"config read up to {event.origin.offset}")


def offset_of(through: Mapping[tuple[str, int], int]) -> int:
    """Offset of the newest config read, -1 = none; see `Liveness.through`."""
    kind = str(TopicKind.CONFIG)
    read = (at for (topic, _), at in through.items() if topic.rpartition(".")[2] == kind)
    return max(read, default=-1)


def _set(draft: Draft, settings: Settings) -> None:
    old = draft.settings
    differ = [f.name for f in fields(Settings) if getattr(old, f.name) != getattr(settings, f.name)]
    draft.settings = settings
    if not differ:
        return
    draft.causes.add(f"config changed: {', '.join(sorted(_KEYS[name] for name in differ))}")
    if "scale_down_timeout_ms" in differ:
        for slot in draft.roster.slots:
            drains.set_deadline(draft, slot)
    if {"session_timeout_ms", "heartbeat_interval_ms"}.isdisjoint(differ):
        return
    for slot in draft.roster.slots:
        # A longer timeout counts at once, a shorter one when the member has acknowledged it.
        if settings.session_timeout_ms > draft.member(slot).session_timeout_ms:
            draft.update(slot, session_timeout_ms=settings.session_timeout_ms)
            draft.sessions.set_timeout(slot, settings.session_timeout_ms)
        draft.sessions.flags[slot] |= ASKED
        draft.answer.add(slot)


def reweigh(draft: Draft, table: TaskTable) -> None:
    """Replace the task table by one with the same tasks, whose weights or racks differ."""
    draft.table = table


def declare(draft: Draft, table: TaskTable, *, explained: bool = False) -> None:
    """Replace the task table: renumber the tasks that stay, make orphans of those that leave.

    Args:
        draft: the group.
        table: the new tasks.
        explained: the causes say already what was added and removed.
    """
    old = draft.table
    new_index = _new_indexes(old, table)
    kept = new_index[new_index != NO_MEMBER]
    added, removed = len(table) - len(kept), len(old) - len(kept)
    for number, what in ((added, "added"), (removed, "removed")):
        if number and not explained:
            draft.causes.add(f"{count_of(number, 'task')} {what}")
    if not added and not removed and not explained:
        draft.causes.add("tasks declared anew")
    orphans = {
        *draft.owned.orphans,
        *_orphaned(draft, np.flatnonzero(new_index == NO_MEMBER).astype(np.int32)),
    }
    _carry(draft, table, new_index)
    draft.table, draft.hashes = table, table_hashes(table)
    draft.target.asked_ms = None  # a placement of the tasks before is of no use
    draft.touched |= {o.slot for o in orphans}  # a reclaimed task has another digest
    back = {orphan: index for orphan in orphans if (index := table.find(orphan.task)) is not None}
    draft.owned.orphans = tuple(sorted(orphans - back.keys()))
    _reclaim(draft, sorted(back.items()))
    draft.answer |= {o.slot for o in draft.owned.orphans}
    owing = reports.owing(draft)
    for slot in sorted({o.slot for o in orphans}):
        # If all orphans of an UNREVOKED member are back in the table, it may owe nothing more.
        member = draft.roster.by_slot[slot]  # None: the member left in this batch
        owed = member is not None and member.state is MemberState.UNREVOKED
        if owed and not owing[slot]:
            reports.owes_nothing(draft, slot)


def _new_indexes(old: TaskTable, new: TaskTable) -> IntArray:
    """int32[old T]: index of each old task in the new table, `NO_MEMBER` (-1) if it left."""
    indexes = np.full(len(old), NO_MEMBER, dtype=np.int32)
    place = {
        (u.name, bool(c)): i
        for i, (u, c) in enumerate(zip(new.units, new.is_connector_unit, strict=True))
    }
    for i, (unit, connector) in enumerate(zip(old.units, old.is_connector_unit, strict=True)):
        j = place.get((unit.name, bool(connector)))
        if j is not None:
            count = min(unit.size, new.units[j].size)
            start = int(new.start[j])
            indexes[old.start[i] : old.start[i] + count] = np.arange(start, start + count)
    return indexes


def _orphaned(draft: Draft, lost: IntArray) -> list[Orphan]:
    """The tasks that left the table and that members have, one orphan for each holder and role."""
    orphans: list[Orphan] = []

    def add(task: int, slot: int, role: Role, notified: bool) -> None:
        member = draft.roster.by_slot[slot]
        if member is not None and not member.away:
            orphans.append(Orphan(slot, int(role), *draft.table.task(task), notified))

    for task in lost.tolist():
        if draft.owned.holder[task] != NO_MEMBER:
            add(
                task,
                int(draft.owned.holder[task]),
                Role.ACTIVE,
                bool(draft.owned.revoking[task]),
            )
    pairs = [(draft.owned.duplicate, Role.ACTIVE, True)]
    for role, copies in draft.owned.copies.items():
        pairs += [(copies.kept, role, False), (copies.going, role, True)]
    for held, role, notified in pairs:
        for pair in held[np.isin(task_of(held), lost)].tolist():
            add(pair >> 32, pair & 0xFFFFFFFF, role, notified)
    return orphans


def _carry(draft: Draft, table: TaskTable, new_index: IntArray) -> None:
    kept = new_index != NO_MEMBER
    to = new_index[kept]

    def vector(old: IntArray) -> IntArray:
        new = np.full(len(table), NO_MEMBER, dtype=np.int32)
        new[to] = old[kept]
        return new

    def pairs(old: Codes) -> Codes:
        task = new_index[task_of(old)]
        stays = task != NO_MEMBER
        return codes(task[stays], slot_of(old)[stays])

    draft.target.active, draft.target.destination = (
        vector(draft.target.active),
        vector(draft.target.destination),
    )
    revoking = np.zeros(len(table), dtype=np.bool_)
    revoking[to] = draft.owned.revoking[kept]
    draft.owned.holder, draft.owned.revoking = vector(draft.owned.holder), revoking
    draft.owned.copies = {
        role: Copies(*(pairs(part) for part in copies))
        for role, copies in draft.owned.copies.items()
    }
    draft.owned.ready, draft.owned.duplicate = (
        pairs(draft.owned.ready),
        pairs(draft.owned.duplicate),
    )
    draft.departed.carry(pairs)
    task = new_index[task_of(draft.owned.lags.pair)]
    stays = task != NO_MEMBER
    pair = task[stays].astype(np.int64) << 32 | slot_of(draft.owned.lags.pair)[stays].astype(
        np.int64
    )
    order = np.argsort(pair, kind="stable")
    offsets, reported_ms = (
        draft.owned.lags.offsets[stays][order],
        draft.owned.lags.reported_ms[stays][order],
    )
    draft.owned.lags = Lags(pair[order], offsets, reported_ms)


def _reclaim(draft: Draft, back: list[tuple[Orphan, int]]) -> None:
    """Turn orphans whose tasks are in the table again, at these indexes, into held tasks."""
    if not back:
        return
    task = np.array([index for _, index in back], dtype=np.int32)
    slot = np.array([orphan.slot for orphan, _ in back], dtype=np.int32)
    role = np.array([orphan.role for orphan, _ in back])
    notified = np.array([orphan.notified for orphan, _ in back], dtype=np.bool_)
    active = role == Role.ACTIVE
    draft.claim_each(task[active], slot[active], notified[active])
    for kind, copies in draft.owned.copies.items():
        mine = role == kind
        going, kept = mine & notified, mine & ~notified
        draft.owned.set_copies(
            kind,
            going=union(copies.going, codes(task[going], slot[going])),
            kept=union(copies.kept, codes(task[kept], slot[kept])),
        )
        # The group forgot with the tasks which copies are ready, and a member tells it once.
        for asked in sorted({*slot[kept].tolist()}):
            if draft.roster.by_slot[asked] is not None:
                draft.ask(asked)
