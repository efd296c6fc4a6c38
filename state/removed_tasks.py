"""Replaces a group's task table; a removed task stays with its member until the member releases it.

The vectors are renumbered task by task. A task that leaves the table while a member has it becomes
an orphan, which the member must release. If the task comes back first, the member keeps it.
"""

from __future__ import annotations

import numpy as np

from muster.protocol.digest import table_hashes
from muster.protocol.ids import Role
from muster.protocol.records import MemberState
from muster.protocol.tasks import IntArray, TaskTable
from muster.state import releases
from muster.state.causes import count_of
from muster.state.draft import Draft
from muster.state.liveness import FENCED, later
from muster.state.ownership import (
    NO_MEMBER,
    Codes,
    Copies,
    Orphan,
    codes,
    slot_of,
    task_of,
    union,
)


def declare(draft: Draft, table: TaskTable, *, explained: bool = False) -> None:
    """Replace the task table: renumber the tasks that stay, make orphans of those that leave.

    Args:
        draft: the group.
        table: the new tasks.
        explained: the causes say already what was added and removed.
    """
    old_table = draft.table
    new_index = _new_indexes(old_table, table)
    surviving = new_index[new_index != NO_MEMBER]
    added, removed = len(table) - len(surviving), len(old_table) - len(surviving)
    for number, what in ((added, "added"), (removed, "removed")):
        if number and not explained:
            draft.causes.add(f"{count_of(number, 'task')} {what}")
    if not added and not removed and not explained:
        draft.causes.add("tasks declared anew")
    new_orphans = _orphaned(draft, np.flatnonzero(new_index == NO_MEMBER).astype(np.int32))
    orphans = {*draft.owned.orphans, *new_orphans}
    _carry(draft, table, new_index)
    draft.table, draft.hashes = table, table_hashes(table)
    draft.target.asked_ms = None  # a placement of the tasks before is of no use
    draft.touched |= {o.slot for o in orphans}  # a reclaimed task has another digest
    returned = {
        orphan: index for orphan in orphans if (index := table.find(orphan.task)) is not None
    }
    draft.owned.orphans = tuple(sorted(orphans - returned.keys()))
    _reclaim(draft, sorted(returned.items()))
    draft.addressed |= {o.slot for o in draft.owned.orphans}
    _demand_more(draft, sorted({o.slot for o in new_orphans if not o.notified}))
    owes_release = releases.owing(draft)
    for slot in sorted({o.slot for o in orphans}):
        # If all orphans of an UNREVOKED member are back in the table, it may owe nothing more.
        member = draft.roster.by_slot[slot]  # None: the member left in this batch
        is_unrevoked = member is not None and member.state is MemberState.UNREVOKED
        if is_unrevoked and not owes_release[slot]:
            releases.note_all_released(draft, slot)


def _demand_more(draft: Draft, slots: list[int]) -> None:
    """Restart the time of members that still release other tasks and must now release these, too.

    A member may have released the others already; it has not read yet that it must release more.
    """
    for slot in slots:
        member = draft.roster.by_slot[slot]
        if member is None or member.state is not MemberState.UNREVOKED:
            continue  # its next step demands the release
        if not draft.sessions.flags[slot] & FENCED:
            patience_ms = draft.patience_ms(slot)
            draft.update(slot, deadline_ms=later(draft.sessions.session_ms, patience_ms))
            draft.sessions.demand(slot)


def _new_indexes(old: TaskTable, new: TaskTable) -> IntArray:
    """int32[old T]: index of each old task in the new table, `NO_MEMBER` (-1) if it left."""
    indexes = np.full(len(old), NO_MEMBER, dtype=np.int32)
    new_unit_index = {
        (u.name, bool(c)): i
        for i, (u, c) in enumerate(zip(new.units, new.is_connector_unit, strict=True))
    }
    for i, (unit, connector) in enumerate(zip(old.units, old.is_connector_unit, strict=True)):
        new_unit = new_unit_index.get((unit.name, bool(connector)))
        if new_unit is not None:
            common_count = min(unit.size, new.units[new_unit].size)
            new_start = int(new.start[new_unit])
            indexes[old.start[i] : old.start[i] + common_count] = np.arange(
                new_start, new_start + common_count
            )
    return indexes


def _orphaned(draft: Draft, lost_tasks: IntArray) -> list[Orphan]:
    """The tasks that left the table and that members have, one orphan for each holder and role."""
    orphans: list[Orphan] = []

    def add(task: int, slot: int, role: Role, notified: bool) -> None:
        member = draft.roster.by_slot[slot]
        if member is not None and not member.away:
            orphans.append(Orphan(slot, int(role), *draft.table.task(task), notified))

    for task in lost_tasks.tolist():
        if draft.owned.holder[task] != NO_MEMBER:
            notified = bool(draft.owned.revoking[task])
            add(task, int(draft.owned.holder[task]), Role.ACTIVE, notified)
    sources = [(draft.owned.duplicate, Role.ACTIVE, True)]
    for role, copies in draft.owned.copies.items():
        sources += [(copies.kept, role, False), (copies.releasing, role, True)]
    for holders_and_copies, role, notified in sources:
        for pair in holders_and_copies[np.isin(task_of(holders_and_copies), lost_tasks)].tolist():
            add(pair >> 32, pair & 0xFFFFFFFF, role, notified)
    return orphans


def _carry(draft: Draft, table: TaskTable, new_index: IntArray) -> None:
    survives = new_index != NO_MEMBER
    new_tasks = new_index[survives]

    def vector(old: IntArray) -> IntArray:
        new = np.full(len(table), NO_MEMBER, dtype=np.int32)
        new[new_tasks] = old[survives]
        return new

    def pairs(old: Codes) -> Codes:
        new_task = new_index[task_of(old)]
        survives_pair = new_task != NO_MEMBER
        return codes(new_task[survives_pair], slot_of(old)[survives_pair])

    draft.target.active = vector(draft.target.active)
    draft.target.destination = vector(draft.target.destination)
    revoking = np.zeros(len(table), dtype=np.bool_)
    revoking[new_tasks] = draft.owned.revoking[survives]
    draft.owned.holder, draft.owned.revoking = vector(draft.owned.holder), revoking
    draft.owned.copies = {
        role: Copies(*(pairs(part) for part in copies))
        for role, copies in draft.owned.copies.items()
    }
    draft.owned.ready = pairs(draft.owned.ready)
    draft.owned.duplicate = pairs(draft.owned.duplicate)
    draft.departed.carry(pairs)
    lags = draft.owned.lags
    lags = lags.where(new_index[task_of(lags.pair)] != NO_MEMBER)
    new_task = new_index[task_of(lags.pair)].astype(np.int64)
    lags = lags._replace(pair=new_task << 32 | slot_of(lags.pair))
    draft.owned.lags = lags.where(np.argsort(lags.pair, kind="stable"))


def _reclaim(draft: Draft, returned: list[tuple[Orphan, int]]) -> None:
    """Turn orphans whose tasks are in the table again, at these indexes, into held tasks.

    A member that claimed a task in two roles has it in the first of them.
    """
    if not returned:
        return
    first_roles = {(orphan.slot, index): (orphan, index) for orphan, index in reversed(returned)}
    returned = sorted(first_roles.values())
    task = np.array([index for _, index in returned], dtype=np.int32)
    slot = np.array([orphan.slot for orphan, _ in returned], dtype=np.int32)
    role = np.array([orphan.role for orphan, _ in returned])
    notified = np.array([orphan.notified for orphan, _ in returned], dtype=np.bool_)
    is_active = role == Role.ACTIVE
    draft.claim_each(task[is_active], slot[is_active], notified[is_active])
    for kind, copies in draft.owned.copies.items():
        in_role = role == kind
        is_released, is_kept = in_role & notified, in_role & ~notified
        draft.owned.set_copies(
            kind,
            releasing=union(copies.releasing, codes(task[is_released], slot[is_released])),
            kept=union(copies.kept, codes(task[is_kept], slot[is_kept])),
        )
        # The group forgot with the tasks which copies are ready, and a member tells it once.
        for kept_slot in sorted({*slot[is_kept].tolist()}):
            if draft.roster.by_slot[kept_slot] is not None:
                draft.ask(kept_slot)
