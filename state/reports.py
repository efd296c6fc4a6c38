"""Reports: what members say they hold, compared with what the group granted.

A report's revision is that of the newest record its sender acted on:

- below a revision reported before: the report is late or repeated, and is ignored;
- at least that of the record that asked for a release: asked-for tasks that it lacks are released;
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
TOO_MANY_UNKNOWN = (
    f"holds more tasks that the group does not have than it can remember ({ORPHANS_MAX} of all"
    " its members); drop everything and join again"
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
    draft.sessions.hear(slot)
    deafness.heard(draft, slot)
    if draft.sessions.flags[slot] & FENCED or event.revision < draft.sessions.reported[slot]:
        return
    recovery.prove(draft, event.coordinator_epoch)
    was_lost = slot in draft.recovery.asked
    if was_lost:
        if not recovery.is_answer(draft, slot, event):
            return
        if not has_room(draft, event.holding, slot):
            fencing.fence(draft, slot, TOO_MANY_UNKNOWN)
            return
        _adopt(draft, slot, event)
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
        _adopt_timeout(draft, slot, has_read_it=not was_lost)
    _mark_ready(draft, slot, event.holding.ready)
    lag.absorb(draft, event.member, event.lags, event.origin, event.holding.ready)


def _compare(draft: Draft, slot: int, event: Report) -> bool:
    """Compare a report with what was granted and apply it; False = it was refused."""
    member = draft.member(slot)
    newest = event.revision >= member.revision
    active, unknown = draft.table.indexes_of(event.holding.active)
    beyond = _beyond(draft, slot, active)
    stranger = None
    if unknown:
        orphaned = {(o.unit, o.number, o.connector) for o in draft.orphans_of(slot)}
        stranger = next((task for task in unknown if tuple(task) not in orphaned), None)
    if len(beyond) or stranger is not None:
        named = cut(str(draft.table.task(int(beyond[0])) if len(beyond) else stranger), 120)
        if newest:
            draft.claim(slot, beyond, giving_up=True)
            fencing.fence(draft, slot, f"holds {named}, which it was not given")
        else:
            draft.ask(slot)
        return False
    if member.state is MemberState.UNREVOKED and event.revision >= member.revoke_revision:
        _release(draft, slot, event.holding, active, unknown)
    if newest and _lacks(draft, slot, event.holding, active):
        draft.answer.add(slot)
    return True


def _beyond(draft: Draft, slot: int, active: IntArray) -> IntArray:
    """The reported actives that the member was not granted and is not giving up."""
    others: IntArray = active[draft.owned.holder[active] != slot]
    if len(others) == 0:
        return others
    mine = task_of(draft.owned.duplicate[slot_of(draft.owned.duplicate) == slot])
    return np.setdiff1d(others, mine, assume_unique=True)


def _lacks(draft: Draft, slot: int, holding: Holding, active: IntArray) -> bool:
    """Whether the report lacks a task that the member's newest record grants."""
    mine = draft.tasks_of(slot)
    if not contains(active, mine[~draft.owned.revoking[mine]]).all():
        return True
    for role, tasks in _copies_of(holding):
        kept = draft.owned.copies[role].kept
        if len(kept) == 0:
            continue
        given = task_of(kept[slot_of(kept) == slot])
        if not contains(draft.table.indexes_of(tasks)[0], given).all():
            return True
    return False


def acknowledge(draft: Draft, slot: int) -> None:
    """Release everything that the member was asked to give up."""
    _release(draft, slot, Holding(), np.empty(0, dtype=np.int32), EMPTY)


def _release(
    draft: Draft, slot: int, holding: Holding, active: IntArray, strangers: TaskSet
) -> None:
    """Free the tasks that the member was asked to give up and no longer holds.

    While it still holds others of them, it keeps state and epoch, and its timeout runs on.

    Args:
        draft: the group.
        slot: the member's.
        holding: what it holds.
        active: the actives among that.
        strangers: the actives among that which the table does not have.
    """
    mine = draft.tasks_of(slot)
    owed = mine[draft.owned.revoking[mine]]
    stays = contains(active, owed)
    owes_more, frees = bool(stays.any()), not stays.all()
    copies = _released_copies(draft, slot, holding, active)
    lost: set[Orphan] = set()
    orphans = draft.orphans_of(slot)
    if orphans:
        held = {Role.ACTIVE: strangers}
        held |= {role: draft.table.indexes_of(tasks)[1] for role, tasks in _copies_of(holding)}
        lost = {o for o in orphans if o.task not in held[Role(o.role)]}
    owes_more |= copies.owes_more or len(lost) < len(orphans)
    if frees or copies.frees or lost:
        draft.free(owed[~stays])
        if copies.frees:
            for role, gone in copies.gone.items():
                lag.end(draft, gone)
                draft.owned.set_copies(role, going=copies.going[role])
            draft.owned.duplicate = copies.duplicate
        draft.promote_duplicates()
        if lost:
            draft.owned.orphans = tuple(o for o in draft.owned.orphans if o not in lost)
        draft.touched.add(slot)
    if not owes_more:
        owes_nothing(draft, slot)


class _Copies(NamedTuple):
    """What a report means for the copies and duplicates that its member gives up.

    Attributes:
        owes_more: whether it still holds some of them.
        frees: whether it has given some of them up.
        going: role → all members' copies that are still to be given up.
        gone: role → the copies that the member has given up and does not have in another role.
        duplicate: all members' duplicates that are still to be given up.
    """

    owes_more: bool
    frees: bool
    going: dict[Role, Codes]
    gone: dict[Role, Codes]
    duplicate: Codes


def _released_copies(draft: Draft, slot: int, holding: Holding, active: IntArray) -> _Copies:
    given_up = {role: draft.owned.copies[role].going for role in COPY_ROLES}
    given_up[Role.ACTIVE] = draft.owned.duplicate
    owes_more = frees = False
    if not any(map(len, given_up.values())):  # the common case
        return _Copies(owes_more, frees, {}, {}, draft.owned.duplicate)
    pairs = {role: _pairs(draft.table.indexes_of(t)[0], slot) for role, t in _copies_of(holding)}
    pairs[Role.ACTIVE] = _pairs(active, slot)
    left: dict[Role, Codes] = {}
    for role, going in given_up.items():
        mine = slot_of(going) == slot
        stays = mine & contains(pairs[role], going)
        owes_more, frees = owes_more or bool(stays.any()), frees or bool((mine & ~stays).any())
        left[role] = going[~mine | stays]
    held = union(*(pairs[role] for role in COPY_ROLES))
    gone: dict[Role, Codes] = {}
    for role in COPY_ROLES:
        ended = np.setdiff1d(given_up[role], left[role], assume_unique=True)
        ended = np.setdiff1d(ended, held, assume_unique=True)
        gone[role] = np.setdiff1d(ended, pairs[Role.ACTIVE], assume_unique=True)
    return _Copies(owes_more, frees, left, gone, left[Role.ACTIVE])


def owes_nothing(draft: Draft, slot: int) -> None:
    """Note that a member has given up everything it was asked to give up."""
    draft.acknowledged.add(slot)
    if slot not in draft.recovery.asked:
        draft.sessions.cancel_demand(
            slot
        )  # now: a later event of this batch could pass the deadline


def owing(draft: Draft) -> BoolArray:
    """bool[slots + 1]: members that hold something they must give up."""
    owes = np.zeros(len(draft.roster.by_slot) + 1, dtype=np.bool_)
    owes[draft.owned.holder[draft.owned.revoking]] = True
    for role in COPY_ROLES:
        owes[slot_of(draft.owned.copies[role].going)] = True
    owes[slot_of(draft.owned.duplicate)] = True
    owes[[o.slot for o in draft.owned.orphans]] = True
    owes[-1] = False
    return owes


def keep_all(draft: Draft, slot: int) -> None:
    """Withdraw all releases asked of a member; its next step may ask for them again."""
    draft.hand(draft.tasks_of(slot), slot)
    for role in COPY_ROLES:
        copies = draft.owned.copies[role]
        mine = slot_of(copies.going) == slot
        kept = union(copies.kept, copies.going[mine])
        draft.owned.set_copies(role, kept=kept, going=copies.going[~mine])


def claim(draft: Draft, slot: int, holding: Holding) -> None:
    """Record what a joining member holds already; tasks that another has become duplicates.

    A copy of a task that the group has given it in another role does not count: the join is older
    than that record, and the answer repeats it.
    """
    active, unknown = draft.table.indexes_of(holding.active)
    lost = {Role.ACTIVE: unknown}
    if len(active):
        draft.claim(slot, active)
    for role, tasks in _copies_of(holding):
        indexes, lost[role] = draft.table.indexes_of(tasks)
        if len(indexes) == 0:
            continue
        copies = draft.owned.copies[role]
        held = indexes[draft.owned.holder[indexes] != slot]
        held = held[~contains(active, held)]
        claimed = _pairs(held, slot)
        other = draft.owned.copies[Role.LEARNER if role is Role.STANDBY else Role.STANDBY]
        given = [contains(part, claimed) for part in (copies.going, other.kept, other.going)]
        new = claimed[~np.logical_or.reduce([contains(copies.kept, claimed), *given])]
        if len(new):
            draft.owned.set_copies(role, kept=union(copies.kept, new))
    _add_orphans(draft, slot, lost)
    _mark_ready(draft, slot, holding.ready)


def has_room(draft: Draft, holding: Holding, slot: int | None = None) -> bool:
    """Whether the group has room to remember the holding's tasks that its table does not have.

    A few bytes of an event can name millions of tasks. The tasks of the member in `slot` that are
    remembered already take no new room.
    """
    room = max(ORPHANS_MAX - len(draft.owned.orphans), 0)
    if len(holding) <= room:
        return True
    room += 0 if slot is None else len(draft.orphans_of(slot))
    sets = (holding.active, holding.standby, holding.learner)
    return sum(len(draft.table.indexes_of(tasks)[1]) for tasks in sets) <= room


def _add_orphans(draft: Draft, slot: int, lost: dict[Role, TaskSet]) -> None:
    """Make the member's tasks that are not in the table orphans, to be released too."""
    if not any(lost.values()):
        return
    known = {o._replace(notified=False) for o in draft.orphans_of(slot)}
    strangers = {Orphan(slot, int(role), *task) for role, tasks in lost.items() for task in tasks}
    draft.owned.orphans = tuple(sorted((strangers - known).union(draft.owned.orphans)))


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
    active, strangers = draft.table.indexes_of(event.holding.active)
    lost = {Role.ACTIVE: strangers}
    mine = draft.tasks_of(slot)
    draft.free(mine[~contains(active, mine)])
    draft.claim(slot, active)
    draft.promote_duplicates()
    for role, tasks in _copies_of(event.holding):
        copies = draft.owned.copies[role]
        indexes, lost[role] = draft.table.indexes_of(tasks)
        held = _pairs(indexes, slot)
        going = copies.going[(slot_of(copies.going) != slot) | np.isin(copies.going, held)]
        others = copies.kept[slot_of(copies.kept) != slot]
        kept = union(others, np.setdiff1d(held, going, assume_unique=True))
        draft.owned.set_copies(role, kept=kept, going=going)
    draft.owned.orphans = tuple(
        o for o in draft.owned.orphans if o.slot != slot or o.task in lost[Role(o.role)]
    )
    _add_orphans(draft, slot, lost)
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
    owed = [draft.owned.duplicate, *(draft.owned.copies[role].going for role in COPY_ROLES)]
    return not draft.owned.revoking[draft.tasks_of(slot)].any() and not any(
        (slot_of(pairs) == slot).any() for pairs in owed
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
