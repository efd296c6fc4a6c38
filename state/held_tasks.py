"""Tasks that a member says it holds, also those that the group did not give it.

A member says so in three ways:

- it joins and holds tasks already (`claim`);
- it answers a new coordinator, which has lost its checkpoint (`adopt`);
- it reports, and the group knows what it granted: an active beyond that fences the member, unless
  its report is older than the newest record (`agrees`).

Of them, tasks that the group's table does not have are *orphans*, to be given up.
"""

from __future__ import annotations

import numpy as np

from muster.protocol.digest import Holding
from muster.protocol.events import Report
from muster.protocol.ids import Role
from muster.protocol.records import MemberState
from muster.protocol.tasks import IntArray, TaskSet
from muster.state import fencing, lag, releases
from muster.state.draft import Draft
from muster.state.ownership import (
    COPY_ROLES,
    Orphan,
    contains,
    copies_of,
    pairs_of,
    slot_of,
    task_of,
    union,
)
from muster.state.printable import cut

ORPHANS_MAX = 4_096
"""A group remembers at most this many tasks that members hold and its table does not have."""
TOO_MANY_UNKNOWN = (
    "reports too many tasks that are not in the group's task list (the group can track"
    f" {ORPHANS_MAX} of them over all members); drop everything and join again"
)


def claim(draft: Draft, slot: int, holding: Holding) -> None:
    """Record what a joining member holds already; tasks that another has become duplicates.

    A copy of a task that the group has given it in another role does not count: the join is older
    than that record, and the answer repeats it.
    """
    active, unknown_actives = draft.table.indexes_of(holding.active)
    unknown_tasks = {Role.ACTIVE: unknown_actives}
    if len(active):
        draft.claim(slot, active)
    for role, tasks in copies_of(holding):
        indexes, unknown_tasks[role] = draft.table.indexes_of(tasks)
        if len(indexes) == 0:
            continue
        copies = draft.owned.copies[role]
        held_tasks = indexes[draft.owned.holder[indexes] != slot]
        held_tasks = held_tasks[~contains(active, held_tasks)]
        claimed = pairs_of(held_tasks, slot)
        other = draft.owned.copies[Role.LEARNER if role is Role.STANDBY else Role.STANDBY]
        known_parts = (copies.releasing, other.kept, other.releasing, draft.owned.duplicate)
        held_already = [contains(part, claimed) for part in known_parts]
        new_copies = claimed[~np.logical_or.reduce([contains(copies.kept, claimed), *held_already])]
        if len(new_copies):
            draft.owned.set_copies(role, kept=union(copies.kept, new_copies))
    _add_orphans(draft, slot, unknown_tasks)
    mark_ready(draft, slot, holding.ready)


def agrees(draft: Draft, slot: int, active: IntArray, unknown: TaskSet, *, is_newest: bool) -> bool:
    """Whether a member reports no active that it was not granted.

    If it does, it is fenced if it has acted on its newest record, else asked for another report.
    `unknown` are reported actives that the table does not have.
    """
    not_granted = _beyond(draft, slot, active)
    unknown_task = None
    if unknown:
        orphaned = {(o.unit, o.number, o.connector) for o in draft.orphans_of(slot)}
        unknown_task = next((task for task in unknown if tuple(task) not in orphaned), None)
    if not len(not_granted) and unknown_task is None:
        return True
    if is_newest:
        task = draft.table.task(int(not_granted[0])) if len(not_granted) else unknown_task
        draft.claim(slot, not_granted, giving_up=True)
        fencing.fence(draft, slot, f"holds {cut(str(task), 120)}, which it was not given")
    else:
        draft.ask(slot)
    return False


def _beyond(draft: Draft, slot: int, active: IntArray) -> IntArray:
    """The reported actives that the member was not granted and is not giving up."""
    not_held: IntArray = active[draft.owned.holder[active] != slot]
    if len(not_held) == 0:
        return not_held
    duplicates = task_of(draft.owned.duplicate[slot_of(draft.owned.duplicate) == slot])
    return np.setdiff1d(not_held, duplicates, assume_unique=True)


def adopt(draft: Draft, slot: int, event: Report) -> None:
    """After a lost checkpoint, take what a member reports as what it holds.

    The member ignores older records from now on, and the only record of the new coordinator epoch
    is the question that it answers.
    """
    member = draft.member(slot)
    active, unknown_actives = draft.table.indexes_of(event.holding.active)
    unknown_tasks = {Role.ACTIVE: unknown_actives}
    tasks_before = draft.tasks_of(slot)
    draft.free(tasks_before[~contains(active, tasks_before)])
    duplicates = draft.owned.duplicate
    is_held = (slot_of(duplicates) != slot) | contains(active, task_of(duplicates))
    draft.owned.duplicate = duplicates[is_held]
    draft.claim(slot, active)
    draft.promote_duplicates()
    in_a_role = active
    for role, tasks in copies_of(event.holding):
        copies = draft.owned.copies[role]
        indexes, unknown_tasks[role] = draft.table.indexes_of(tasks)
        indexes = indexes[~contains(in_a_role, indexes)]
        in_a_role = np.union1d(in_a_role, indexes)
        reported_pairs = pairs_of(indexes, slot)
        releasing = copies.releasing[
            (slot_of(copies.releasing) != slot) | np.isin(copies.releasing, reported_pairs)
        ]
        of_others = copies.kept[slot_of(copies.kept) != slot]
        kept = union(of_others, np.setdiff1d(reported_pairs, releasing, assume_unique=True))
        draft.owned.set_copies(role, kept=kept, releasing=releasing)
    orphans = draft.orphans_of(slot)
    draft.set_orphans_of(slot, [o for o in orphans if o.task in unknown_tasks[Role(o.role)]])
    _add_orphans(draft, slot, unknown_tasks)
    draft.generation = max(draft.generation, event.epoch)
    revision, epoch = max(member.revision, event.revision), max(member.epoch, event.epoch)
    draft.update(slot, revision=revision, epoch=epoch)
    if releases.owes_nothing(draft, slot):
        draft.update(slot, state=MemberState.STABLE, revoke_revision=0, deadline_ms=None)
    if draft.member(slot).state is MemberState.UNREVOKED:
        draft.sessions.demand(slot)  # the earlier coordinator's demand; its time starts again
    else:
        draft.sessions.cancel_demand(slot)
    draft.touched.add(slot)
    draft.recovered(slot)


def has_room(draft: Draft, holding: Holding, slot: int | None = None) -> bool:
    """Whether the group has room to remember the holding's tasks that its table does not have.

    A few bytes of an event can name millions of tasks. The tasks of the member in `slot` that are
    remembered already take no new room.
    """
    free_room = max(ORPHANS_MAX - len(draft.owned.orphans), 0)
    if len(holding) <= free_room:
        return True
    free_room += 0 if slot is None else len(draft.orphans_of(slot))
    sets = (holding.active, holding.standby, holding.learner)
    return sum(len(draft.table.indexes_of(tasks)[1]) for tasks in sets) <= free_room


def _add_orphans(draft: Draft, slot: int, unknown_tasks: dict[Role, TaskSet]) -> None:
    """Make the member's tasks that are not in the table orphans, to be released too."""
    if not any(unknown_tasks.values()):
        return
    known_orphans = {o._replace(notified=False) for o in draft.orphans_of(slot)}
    unknown_orphans = {
        Orphan(slot, int(role), *task) for role, tasks in unknown_tasks.items() for task in tasks
    }
    draft.set_orphans_of(slot, (unknown_orphans - known_orphans).union(draft.orphans_of(slot)))


def mark_ready(draft: Draft, slot: int, ready: TaskSet, event: Report | None = None) -> None:
    """Note which of the member's learners and standbys have caught up, by a report or a join."""
    if not ready:
        return
    pairs = pairs_of(draft.table.indexes_of(ready)[0], slot)
    kept = union(*(draft.owned.copies[role].kept for role in COPY_ROLES))
    copies = np.intersect1d(pairs, kept, assume_unique=True)
    again = copies[:0] if event is None else lag.ready_again(draft, copies, event)
    lag.absorb_ready(draft, copies, again)
