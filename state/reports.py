"""Reports: what members say they hold, compared with what the group granted.

A report's revision is that of the newest record its sender acted on:

- below a revision reported before: the report is late or repeated, and is ignored;
- at least that of the record that asked for a release: of the tasks that it asked for, those
  that the report lacks count as released;
- that of the newest record: the report must agree. The record is sent again if granted tasks are
  missing, and the member is fenced if it has an active that was not granted;
- an older one, with an active that was not granted: the group asks for another report.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from muster.assignor.model import BoolArray
from muster.protocol.digest import Holding
from muster.protocol.events import Report
from muster.protocol.ids import Role
from muster.protocol.records import Fault, MemberState
from muster.protocol.tasks import EMPTY, IntArray, TaskSet
from muster.state import deafness, fencing, lag, recovery
from muster.state.draft import Draft
from muster.state.liveness import ASKED, FENCED
from muster.state.ownership import (
    COPY_ROLES,
    Codes,
    Orphan,
    codes,
    contains,
    slot_of,
    task_of,
    union,
)
from muster.state.printable import cut

ORPHANS_MAX = 4_096
"""A group remembers at most this many tasks that members hold and its table does not have."""
COUNT_MAX = 2**30
"""Epochs and revisions that an answer to a new coordinator may name. A group with a generation a
second gets there in 34 years; a higher one would leave no numbers for the generations to come."""
TOO_MANY_UNKNOWN = (
    "reports too many tasks that are not in the group's task list (the group can track"
    f" {ORPHANS_MAX} of them over all members); drop everything and join again"
)


def report(draft: Draft, event: Report) -> None:
    """Absorb a report, which says in full what a member holds."""
    slot = draft.roster.by_id.get(event.member)
    if slot is None:
        fencing.answer_unknown(draft, event.member, event.incarnation)
        return
    member = draft.member(slot)
    if member.incarnation != event.incarnation:
        if member.instance_id is not None:
            message = f"instance id {member.instance_id} has been taken over by another process"
            draft.fault(event.member, event.incarnation, Fault.FENCED_INSTANCE_ID, message)
        else:
            fencing.answer_unknown(draft, event.member, event.incarnation)
        return
    if member.away:
        return  # it was written before the leave, after which the process runs nothing
    draft.sessions.hear(slot)
    deafness.note_reading(draft, slot)
    if draft.sessions.flags[slot] & FENCED or event.revision < draft.sessions.reported[slot]:
        return
    recovery.prove(draft, event.coordinator_epoch)
    answers_question = slot in draft.recovery.asked
    if answers_question:
        if not _take_answer(draft, slot, event):
            return
    elif event.epoch > member.epoch or event.revision > member.revision:
        granted = f"epoch {member.epoch}, revision {member.revision}"
        reported = f"epoch {event.epoch}, revision {event.revision}"
        fencing.fence(draft, slot, f"reported {reported}; the group gave {granted}")
        return
    elif not _compare(draft, slot, event):
        return
    draft.sessions.reported[slot] = event.revision
    draft.sessions.misses[slot] = 0
    if event.revision >= draft.member(slot).revision:
        draft.sessions.flags[slot] &= 0xFFFF & ~ASKED
        _adopt_timeout(draft, slot, has_read_it=not answers_question)
    _mark_ready(draft, slot, event.holding.ready)
    if event.lags and member.state is MemberState.UNREVOKED:
        lag.end_given_up(draft, slot, event.lags)
    lag.absorb(draft, event.member, event.lags, event.origin, event.holding.ready)


def _take_answer(draft: Draft, slot: int, event: Report) -> bool:
    """Adopt an answer to a new coordinator's question; False = it is none, or was refused."""
    if not recovery.is_answer(draft, slot, event):
        return False
    if max(event.epoch, event.revision) > COUNT_MAX:
        reported = f"epoch {event.epoch}, revision {event.revision}"
        fencing.fence(draft, slot, f"reported {reported}; expected at most {COUNT_MAX}")
        return False
    if not has_room(draft, event.holding, slot):
        fencing.fence(draft, slot, TOO_MANY_UNKNOWN)
        return False
    _adopt(draft, slot, event)
    return True


def _compare(draft: Draft, slot: int, event: Report) -> bool:
    """Compare a report with what was granted and apply it; False = it was refused."""
    member = draft.member(slot)
    is_newest = event.revision >= member.revision
    active, unknown = draft.table.indexes_of(event.holding.active)
    not_granted = _beyond(draft, slot, active)
    unknown_task = None
    if unknown:
        orphaned = {(o.unit, o.number, o.connector) for o in draft.orphans_of(slot)}
        unknown_task = next((task for task in unknown if tuple(task) not in orphaned), None)
    if len(not_granted) or unknown_task is not None:
        task_name = cut(
            str(draft.table.task(int(not_granted[0])) if len(not_granted) else unknown_task), 120
        )
        if is_newest:
            draft.claim(slot, not_granted, giving_up=True)
            fencing.fence(draft, slot, f"holds {task_name}, which it was not given")
        else:
            draft.ask(slot)
        return False
    if member.state is MemberState.UNREVOKED and event.revision >= member.revoke_revision:
        _release(draft, slot, event.holding, active, unknown)
    if is_newest and _lacks(draft, slot, event.holding, active):
        draft.addressed.add(slot)
    return True


def _beyond(draft: Draft, slot: int, active: IntArray) -> IntArray:
    """The reported actives that the member was not granted and is not giving up."""
    not_held: IntArray = active[draft.owned.holder[active] != slot]
    if len(not_held) == 0:
        return not_held
    duplicates = task_of(draft.owned.duplicate[slot_of(draft.owned.duplicate) == slot])
    return np.setdiff1d(not_held, duplicates, assume_unique=True)


def _lacks(draft: Draft, slot: int, holding: Holding, active: IntArray) -> bool:
    """Whether the report lacks a task that the member's newest record grants."""
    held_tasks = draft.tasks_of(slot)
    if not contains(active, held_tasks[~draft.owned.revoking[held_tasks]]).all():
        return True
    for role, tasks in _copies_of(holding):
        kept = draft.owned.copies[role].kept
        if len(kept) == 0:
            continue
        granted = task_of(kept[slot_of(kept) == slot])
        if not contains(draft.table.indexes_of(tasks)[0], granted).all():
            return True
    return False


def acknowledge(draft: Draft, slot: int) -> None:
    """Release everything that the member was asked to give up."""
    _release(draft, slot, Holding(), np.empty(0, dtype=np.int32), EMPTY)


def _release(
    draft: Draft, slot: int, holding: Holding, active: IntArray, unknown_actives: TaskSet
) -> None:
    """Free the tasks that the member was asked to give up and no longer holds.

    While it still holds others of them, it keeps state and epoch, and its timeout runs on.

    Args:
        draft: the group.
        slot: the member's.
        holding: what it holds.
        active: the actives among that.
        unknown_actives: the actives among that which the table does not have.
    """
    held_tasks = draft.tasks_of(slot)
    owed_tasks = held_tasks[draft.owned.revoking[held_tasks]]
    still_held = contains(active, owed_tasks)
    owes_more, frees_tasks = bool(still_held.any()), not still_held.all()
    copies = _released_copies(draft, slot, holding, active)
    released_orphans: set[Orphan] = set()
    orphans = draft.orphans_of(slot)
    if orphans:
        held_unknown = {Role.ACTIVE: unknown_actives}
        held_unknown |= {
            role: draft.table.indexes_of(tasks)[1] for role, tasks in _copies_of(holding)
        }
        released_orphans = {o for o in orphans if o.task not in held_unknown[Role(o.role)]}
    owes_more |= copies.owes_more or len(released_orphans) < len(orphans)
    if frees_tasks or copies.frees or released_orphans:
        draft.free(owed_tasks[~still_held])
        if copies.frees:
            for role, gone in copies.gone.items():
                lag.end(draft, gone)
                draft.owned.set_copies(role, releasing=copies.releasing[role])
            draft.owned.duplicate = copies.duplicate
        draft.promote_duplicates()
        if released_orphans:
            draft.set_orphans_of(slot, [o for o in orphans if o not in released_orphans])
        draft.touched.add(slot)
    if not owes_more:
        owes_nothing(draft, slot)


class _Copies(NamedTuple):
    """What a report means for the copies and duplicates that its member gives up.

    Attributes:
        owes_more: whether it still holds some of them.
        frees: whether it has given some of them up.
        releasing: role → all members' copies that are still to be given up.
        gone: role → the copies that the member has given up and does not have in another role.
        duplicate: all members' duplicates that are still to be given up.
    """

    owes_more: bool
    frees: bool
    releasing: dict[Role, Codes]
    gone: dict[Role, Codes]
    duplicate: Codes


def _released_copies(draft: Draft, slot: int, holding: Holding, active: IntArray) -> _Copies:
    given_up = {role: draft.owned.copies[role].releasing for role in COPY_ROLES}
    given_up[Role.ACTIVE] = draft.owned.duplicate
    owes_more = frees = False
    if not any(map(len, given_up.values())):  # the common case
        return _Copies(owes_more, frees, {}, {}, draft.owned.duplicate)
    pairs = {role: _pairs(draft.table.indexes_of(t)[0], slot) for role, t in _copies_of(holding)}
    pairs[Role.ACTIVE] = _pairs(active, slot)
    remaining: dict[Role, Codes] = {}
    for role, releasing in given_up.items():
        of_member = slot_of(releasing) == slot
        still_held = of_member & contains(pairs[role], releasing)
        owes_more, frees = (
            owes_more or bool(still_held.any()),
            frees or bool((of_member & ~still_held).any()),
        )
        remaining[role] = releasing[~of_member | still_held]
    held_copies = union(*(pairs[role] for role in COPY_ROLES))
    ended_copies: dict[Role, Codes] = {}
    for role in COPY_ROLES:
        ended_pairs = np.setdiff1d(given_up[role], remaining[role], assume_unique=True)
        ended_pairs = np.setdiff1d(ended_pairs, held_copies, assume_unique=True)
        ended_copies[role] = np.setdiff1d(ended_pairs, pairs[Role.ACTIVE], assume_unique=True)
    return _Copies(owes_more, frees, remaining, ended_copies, remaining[Role.ACTIVE])


def owes_nothing(draft: Draft, slot: int) -> None:
    """Note that a member has given up everything it was asked to give up.

    A fenced member stays fenced: only the deadline of its demand removes it.
    """
    if draft.sessions.flags[slot] & FENCED:
        return
    draft.acknowledged.add(slot)
    if slot not in draft.recovery.asked:
        draft.sessions.cancel_demand(
            slot
        )  # now: a later event of this batch could pass the deadline


def owing(draft: Draft) -> BoolArray:
    """bool[slots + 1]: members that hold something they must give up."""
    owes_release = np.zeros(len(draft.roster.by_slot) + 1, dtype=np.bool_)
    owes_release[draft.owned.holder[draft.owned.revoking]] = True
    for role in COPY_ROLES:
        owes_release[slot_of(draft.owned.copies[role].releasing)] = True
    owes_release[slot_of(draft.owned.duplicate)] = True
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


def claim(draft: Draft, slot: int, holding: Holding) -> None:
    """Record what a joining member holds already; tasks that another has become duplicates.

    A copy of a task that the group has given it in another role does not count: the join is older
    than that record, and the answer repeats it.
    """
    active, unknown_actives = draft.table.indexes_of(holding.active)
    unknown_tasks = {Role.ACTIVE: unknown_actives}
    if len(active):
        draft.claim(slot, active)
    for role, tasks in _copies_of(holding):
        indexes, unknown_tasks[role] = draft.table.indexes_of(tasks)
        if len(indexes) == 0:
            continue
        copies = draft.owned.copies[role]
        held_tasks = indexes[draft.owned.holder[indexes] != slot]
        held_tasks = held_tasks[~contains(active, held_tasks)]
        claimed = _pairs(held_tasks, slot)
        other = draft.owned.copies[Role.LEARNER if role is Role.STANDBY else Role.STANDBY]
        known_parts = (copies.releasing, other.kept, other.releasing, draft.owned.duplicate)
        held_already = [contains(part, claimed) for part in known_parts]
        new_copies = claimed[~np.logical_or.reduce([contains(copies.kept, claimed), *held_already])]
        if len(new_copies):
            draft.owned.set_copies(role, kept=union(copies.kept, new_copies))
    _add_orphans(draft, slot, unknown_tasks)
    _mark_ready(draft, slot, holding.ready)


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


def _mark_ready(draft: Draft, slot: int, ready: TaskSet) -> None:
    """Note which of the member's learners and standbys have caught up."""
    if not ready:
        return
    pairs = _pairs(draft.table.indexes_of(ready)[0], slot)
    kept = union(*(draft.owned.copies[role].kept for role in COPY_ROLES))
    lag.absorb_ready(draft, np.intersect1d(pairs, kept, assume_unique=True))


def _adopt(draft: Draft, slot: int, event: Report) -> None:
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
    for role, tasks in _copies_of(event.holding):
        copies = draft.owned.copies[role]
        indexes, unknown_tasks[role] = draft.table.indexes_of(tasks)
        indexes = indexes[~contains(in_a_role, indexes)]
        in_a_role = np.union1d(in_a_role, indexes)
        reported_pairs = _pairs(indexes, slot)
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
    draft.update(
        slot,
        revision=max(member.revision, event.revision),
        epoch=max(member.epoch, event.epoch),
    )
    if _owes_nothing(draft, slot):
        draft.update(slot, state=MemberState.STABLE, revoke_revision=0, deadline_ms=None)
    if draft.member(slot).state is MemberState.UNREVOKED:
        draft.sessions.demand(slot)  # the earlier coordinator's demand; its time starts again
    else:
        draft.sessions.cancel_demand(slot)
    draft.touched.add(slot)
    draft.recovered(slot)


def _owes_nothing(draft: Draft, slot: int) -> bool:
    releasing_sets = [
        draft.owned.duplicate,
        *(draft.owned.copies[role].releasing for role in COPY_ROLES),
    ]
    return not draft.owned.revoking[draft.tasks_of(slot)].any() and not any(
        (slot_of(pairs) == slot).any() for pairs in releasing_sets
    )


def _adopt_timeout(draft: Draft, slot: int, *, has_read_it: bool) -> None:
    """Use the group's session timeout for a member that has read the newest record.

    An answer to a new coordinator's question does not prove that, because its revision is not new;
    such a member gets another record and is asked to report.
    """
    timeout_ms = draft.settings.session_timeout_ms
    if draft.member(slot).session_timeout_ms == timeout_ms:
        return
    if has_read_it:
        draft.update(slot, session_timeout_ms=timeout_ms)
        draft.sessions.set_timeout(slot, timeout_ms)
    else:
        draft.ask(slot)


def _copies_of(holding: Holding) -> tuple[tuple[Role, TaskSet], ...]:
    return ((Role.STANDBY, holding.standby), (Role.LEARNER, holding.learner))


def _pairs(tasks: IntArray, slot: int) -> Codes:
    return codes(tasks, np.full(len(tasks), slot, dtype=np.int32))
