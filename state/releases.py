"""Releases: what members were asked to give up, and have given up.

A member releases by a report that lacks the task, or by a leave. While it still holds others of the
tasks that it was asked for, it keeps its state and epoch, and its timeout runs on.
"""

from __future__ import annotations

import numpy as np

from muster.assignor.model import BoolArray
from muster.protocol.digest import Holding
from muster.protocol.ids import Role
from muster.protocol.tasks import EMPTY, IntArray, TaskSet
from muster.state import lag
from muster.state.draft import Draft
from muster.state.liveness import FENCED
from muster.state.ownership import (
    COPY_ROLES,
    Codes,
    Orphan,
    contains,
    copies_of,
    pairs_of,
    slot_of,
    union,
)


def acknowledge(draft: Draft, slot: int) -> None:
    """Release everything that the member was asked to give up."""
    release(draft, slot, Holding(), np.empty(0, dtype=np.int32), EMPTY)


def release(
    draft: Draft, slot: int, holding: Holding, active: IntArray, unknown_actives: TaskSet
) -> None:
    """Free the tasks that the member was asked to give up and no longer holds.

    `active` and `unknown_actives` are the actives of `holding` that the table has, and has not.
    """
    held_tasks = draft.tasks_of(slot)
    owed_tasks = held_tasks[draft.owned.revoking[held_tasks]]
    still_held = contains(active, owed_tasks)
    owes_copies, frees_copies = _release_copies(draft, slot, holding, active)
    released_orphans: set[Orphan] = set()
    orphans = draft.orphans_of(slot)
    if orphans:
        held_unknown = {Role.ACTIVE: unknown_actives}
        held_unknown |= {
            role: draft.table.indexes_of(tasks)[1] for role, tasks in copies_of(holding)
        }
        released_orphans = {o for o in orphans if o.task not in held_unknown[Role(o.role)]}
    owes_orphans = len(released_orphans) < len(orphans)
    if not still_held.all() or frees_copies or released_orphans:
        draft.free(owed_tasks[~still_held])
        draft.promote_duplicates()
        if released_orphans:
            draft.set_orphans_of(slot, [o for o in orphans if o not in released_orphans])
        draft.touched.add(slot)
    if not (still_held.any() or owes_copies or owes_orphans):
        note_all_released(draft, slot)


def _release_copies(
    draft: Draft, slot: int, holding: Holding, active: IntArray
) -> tuple[bool, bool]:
    """Free the copies and duplicates that the member was asked to give up and no longer holds.

    Returns:
        Whether it still holds some of those, and whether it has given some of them up.
    """
    given_up = {role: draft.owned.copies[role].releasing for role in COPY_ROLES}
    given_up[Role.ACTIVE] = draft.owned.duplicate
    owes_more = frees = False
    if not any(map(len, given_up.values())):  # the common case
        return owes_more, frees
    pairs = {role: pairs_of(draft.table.indexes_of(t)[0], slot) for role, t in copies_of(holding)}
    pairs[Role.ACTIVE] = pairs_of(active, slot)
    remaining: dict[Role, Codes] = {}
    for role, releasing in given_up.items():
        of_member = slot_of(releasing) == slot
        still_held = of_member & contains(pairs[role], releasing)
        owes_more |= bool(still_held.any())
        frees |= bool((of_member & ~still_held).any())
        remaining[role] = releasing[~of_member | still_held]
    if not frees:
        return owes_more, frees
    held_copies = union(*(pairs[role] for role in COPY_ROLES))
    for role in COPY_ROLES:
        gone = np.setdiff1d(given_up[role], remaining[role], assume_unique=True)
        gone = np.setdiff1d(gone, held_copies, assume_unique=True)
        lag.end(draft, np.setdiff1d(gone, pairs[Role.ACTIVE], assume_unique=True))
        draft.owned.set_copies(role, releasing=remaining[role])
    draft.owned.duplicate = remaining[Role.ACTIVE]
    return owes_more, frees


def note_all_released(draft: Draft, slot: int) -> None:
    """Note that a member has given up everything it was asked to give up.

    A fenced member stays fenced: only the deadline of its demand removes it.
    """
    if draft.sessions.flags[slot] & FENCED:
        return
    draft.acknowledged.add(slot)
    if slot not in draft.recovery.asked:  # now: a later event of this batch could pass the deadline
        draft.sessions.cancel_demand(slot)


def owes_nothing(draft: Draft, slot: int) -> bool:
    """Whether a member has given up everything that it was asked for, but for orphans."""
    releasing_sets = [draft.owned.copies[role].releasing for role in COPY_ROLES]
    releasing_sets.append(draft.owned.duplicate)
    return not draft.owned.revoking[draft.tasks_of(slot)].any() and not any(
        (slot_of(pairs) == slot).any() for pairs in releasing_sets
    )


def owing(draft: Draft) -> BoolArray:
    """bool[slots + 1]: members that hold something they must give up."""
    owes_release = np.zeros(len(draft.roster.by_slot) + 1, dtype=np.bool_)
    owes_release[draft.owned.holder[draft.owned.revoking]] = True
    owed_pairs = [draft.owned.copies[role].releasing for role in COPY_ROLES]
    owes_release[slot_of(np.concatenate((*owed_pairs, draft.owned.duplicate)))] = True
    owes_release[[o.slot for o in draft.owned.orphans]] = True
    owes_release[-1] = False
    return owes_release


def keep_all(draft: Draft, slot: int) -> None:
    """Withdraw all releases asked of a member; its next step may ask for them again."""
    draft.set_holder(draft.tasks_of(slot), slot)
    for role in COPY_ROLES:
        copies = draft.owned.copies[role]
        of_member = slot_of(copies.releasing) == slot
        kept = union(copies.kept, copies.releasing[of_member])
        draft.owned.set_copies(role, kept=kept, releasing=copies.releasing[~of_member])
