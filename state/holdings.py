"""What members say they hold, against what the group gave them (contracts 3, 5 and recovery).

A report counts by its revision, the number of the newest record its sender acted on:

below one reported before → stale, a late or repeated one: nothing. At least the one that asked for
a release and without the tasks → the release is acknowledged. At the newest record → it must
agree: what it lacks is sent again, and an active beyond what it was given fences it. An active
beyond it at an older revision only makes the group ask.
"""

from __future__ import annotations

import numpy as np

from muster.protocol.digest import Holding
from muster.protocol.events import Report
from muster.protocol.ids import Role
from muster.protocol.records import Fault, MemberState
from muster.protocol.tasks import IntArray, TaskSet
from muster.state import fencing, lag, recovery
from muster.state.draft import Draft
from muster.state.group import COPY_ROLES, NOBODY, Codes, Orphan, codes, slot_of, task_of, union
from muster.state.liveness import ASKED, FENCED


def report(draft: Draft, event: Report) -> None:
    """A member says in full what it holds."""
    slot = draft.by_id.get(event.member)
    if slot is None:
        fencing.unknown(draft, event.member, event.incarnation)
        return
    member = draft.member(slot)
    if member.incarnation != event.incarnation:
        if member.instance_id is not None:
            message = f"instance id {member.instance_id} has been taken over by another process"
            draft.fault(event.member, event.incarnation, Fault.FENCED_INSTANCE_ID, message)
        else:
            fencing.unknown(draft, event.member, event.incarnation)
        return
    draft.soft.hear(slot)
    if draft.soft.flags[slot] & FENCED or event.revision < draft.soft.reported[slot]:
        return
    recovery.prove(draft, event.coordinator_epoch)
    was_lost = slot in draft.recovering
    if was_lost:
        if not recovery.is_answer(draft, slot, event):
            return
        _adopt(draft, slot, event)
    elif event.epoch > member.epoch or event.revision > member.revision:
        given = f"epoch {member.epoch}, revision {member.revision}"
        said = f"epoch {event.epoch}, revision {event.revision}"
        fencing.fence(draft, slot, f"reported {said}; the group gave {given}")
        return
    elif not _compare(draft, slot, event):
        return
    draft.soft.reported[slot] = event.revision
    draft.soft.misses[slot] = 0
    if event.revision >= draft.member(slot).revision:
        draft.soft.flags[slot] &= 0xFF & ~ASKED
        _keep_timeout(draft, slot, was_told=not was_lost)
    _mark_ready(draft, slot, event.holding.ready)
    lag.tell(draft, event.member, event.lags, event.origin)


def _compare(draft: Draft, slot: int, event: Report) -> bool:
    """Hold a report against what was given; False = it was not taken in."""
    member = draft.member(slot)
    newest = event.revision >= member.revision
    active, unknown = draft.table.indexes_of(event.holding.active)
    beyond = _beyond(draft, slot, active)
    orphaned = {(o.unit, o.number, o.connector) for o in draft.orphans if o.slot == slot}
    strangers = [task for task in unknown if tuple(task) not in orphaned]
    if len(beyond) or strangers:
        named = str(draft.table.task(int(beyond[0]))) if len(beyond) else str(strangers[0])
        if newest:
            draft.claim(slot, beyond, giving_up=True)
            fencing.fence(draft, slot, f"holds {named}, which it was not given")
        else:
            draft.ask(slot)
        return False
    released = _released(draft, slot, event.holding)
    newer_than_asked = event.revision >= member.revoke_revision
    if member.state is MemberState.UNREVOKED and released and newer_than_asked:
        acknowledge(draft, slot)
    if newest and _lacks(draft, slot, event.holding):
        draft.answer.add(slot)
    return True


def _beyond(draft: Draft, slot: int, active: IntArray) -> IntArray:
    """Actives that are neither the member's nor being given up by it."""
    others = active[draft.holder[active] != slot]
    mine = task_of(draft.duplicate[slot_of(draft.duplicate) == slot])
    return np.setdiff1d(others, mine, assume_unique=True)


def _released(draft: Draft, slot: int, holding: Holding) -> bool:
    """Whether nothing of what the member was told to give up is held any more, in any role."""
    active, gone = draft.table.indexes_of(holding.active)
    mine = task_of(draft.duplicate[slot_of(draft.duplicate) == slot])
    if (draft.revoking[active] & (draft.holder[active] == slot)).any() or np.isin(
        active, mine
    ).any():
        return False
    held = {Role.ACTIVE: gone}
    for role, tasks in _copies_of(holding):
        indexes, held[role] = draft.table.indexes_of(tasks)
        going = draft.copies[role].going
        if np.isin(_pairs(indexes, slot), going, assume_unique=True).any():
            return False
    return not any(o.slot == slot and o.task in held[Role(o.role)] for o in draft.orphans)


def _lacks(draft: Draft, slot: int, holding: Holding) -> bool:
    """Whether the member does not hold what its newest record gave it."""
    active, _ = draft.table.indexes_of(holding.active)
    if np.isin(np.flatnonzero((draft.holder == slot) & ~draft.revoking), active, invert=True).any():
        return True
    for role, tasks in _copies_of(holding):
        kept = draft.copies[role].kept
        given = task_of(kept[slot_of(kept) == slot])
        if np.isin(given, draft.table.indexes_of(tasks)[0], invert=True).any():
            return True
    return False


def acknowledge(draft: Draft, slot: int) -> None:
    """The member has let go of everything it was told to."""
    freed = (draft.holder == slot) & draft.revoking
    draft.holder = np.where(freed, np.int32(NOBODY), draft.holder)
    draft.revoking = draft.revoking & ~freed
    for role in COPY_ROLES:
        going = draft.copies[role].going
        draft.set_copies(role, going=going[slot_of(going) != slot])
    draft.duplicate = draft.duplicate[slot_of(draft.duplicate) != slot]
    draft.promote_duplicates()
    draft.orphans = tuple(o for o in draft.orphans if o.slot != slot)
    draft.acknowledged.add(slot)
    if slot not in draft.recovering:
        draft.soft.acquit(slot)  # whatever else this batch is behind, it has answered in time
    draft.changed = True


def keep_all(draft: Draft, slot: int) -> None:
    """What the member was told to give up is its own again, until the next step says otherwise."""
    draft.revoking = draft.revoking & (draft.holder != slot)
    for role in COPY_ROLES:
        copies = draft.copies[role]
        mine = slot_of(copies.going) == slot
        kept = union(copies.kept, copies.going[mine])
        draft.set_copies(role, kept=kept, going=copies.going[~mine])
    draft.changed = True


def claim(draft: Draft, slot: int, holding: Holding) -> None:
    """A member joins with what it holds already: taken as given where nobody else has it."""
    active, unknown = draft.table.indexes_of(holding.active)
    lost = {Role.ACTIVE: unknown}
    if len(active):
        draft.claim(slot, active)
    for role, tasks in _copies_of(holding):
        indexes, lost[role] = draft.table.indexes_of(tasks)
        copies = draft.copies[role]
        claimed = _pairs(np.setdiff1d(indexes, active, assume_unique=True), slot)
        new = np.setdiff1d(claimed, copies.going, assume_unique=True)
        draft.set_copies(role, kept=union(copies.kept, new))
    _remember_strangers(draft, slot, lost)
    _mark_ready(draft, slot, holding.ready)
    if len(holding):
        draft.changed = True


def _remember_strangers(draft: Draft, slot: int, lost: dict[Role, TaskSet]) -> None:
    """What a member has of tasks the group does not know is to be released as well."""
    known = {orphan._replace(told=False) for orphan in draft.orphans}
    strangers = {Orphan(slot, int(role), *task) for role, tasks in lost.items() for task in tasks}
    draft.orphans = tuple(sorted((strangers - known).union(draft.orphans)))


def _mark_ready(draft: Draft, slot: int, ready: TaskSet) -> None:
    """Learners that have caught up may take over, one by one or all of a member together."""
    pairs = _pairs(draft.table.indexes_of(ready)[0], slot)
    kept = draft.copies[Role.LEARNER].kept
    new = np.setdiff1d(np.intersect1d(pairs, kept, assume_unique=True), draft.ready)
    if len(new) == 0:
        return
    draft.ready = union(draft.ready, new)
    draft.changed = True
    lag.promote(draft, new)


def _adopt(draft: Draft, slot: int, event: Report) -> None:
    """After a lost checkpoint the report is the truth.

    Nothing on its way can change the holding any more: the member has seen the new coordinator
    epoch, and all that was written under it is the question it answers.
    """
    member = draft.member(slot)
    active, strangers = draft.table.indexes_of(event.holding.active)
    lost = {Role.ACTIVE: strangers}
    let_go = draft.holder == slot
    let_go[active] = False
    draft.holder = np.where(let_go, np.int32(NOBODY), draft.holder)
    draft.revoking = draft.revoking & ~let_go
    draft.claim(slot, active)
    draft.promote_duplicates()
    for role, tasks in _copies_of(event.holding):
        copies = draft.copies[role]
        indexes, lost[role] = draft.table.indexes_of(tasks)
        held = _pairs(indexes, slot)
        going = copies.going[(slot_of(copies.going) != slot) | np.isin(copies.going, held)]
        others = copies.kept[slot_of(copies.kept) != slot]
        kept = union(others, np.setdiff1d(held, going, assume_unique=True))
        draft.set_copies(role, kept=kept, going=going)
        draft.ready = np.setdiff1d(draft.ready, copies.kept[slot_of(copies.kept) == slot])
    draft.orphans = tuple(
        o for o in draft.orphans if o.slot != slot or o.task in lost[Role(o.role)]
    )
    _remember_strangers(draft, slot, lost)
    draft.generation = max(draft.generation, event.epoch)
    draft.update(
        slot,
        revision=max(member.revision, event.revision),
        epoch=max(member.epoch, event.epoch),
    )
    if _owes_nothing(draft, slot):
        draft.update(slot, state=MemberState.STABLE, revoke_revision=0, deadline_ms=None)
    if draft.member(slot).state is MemberState.UNREVOKED:
        draft.soft.demand(slot)  # of the coordinator before; it has its whole time once more
    else:
        draft.soft.acquit(slot)
    draft.touched.add(slot)
    draft.recovered(slot)


def _owes_nothing(draft: Draft, slot: int) -> bool:
    owed = [draft.duplicate, *(draft.copies[role].going for role in COPY_ROLES)]
    return not (draft.revoking & (draft.holder == slot)).any() and not any(
        (slot_of(pairs) == slot).any() for pairs in owed
    )


def _keep_timeout(draft: Draft, slot: int, *, was_told: bool) -> None:
    """The member has read the newest record, so it keeps the session timeout of the group.

    Unless that was a new coordinator's question: a member that has seen the revision before reads
    nothing but the question, so it is told now.
    """
    timeout_ms = draft.settings.session_timeout_ms
    if draft.member(slot).session_timeout_ms == timeout_ms:
        return
    if was_told:
        draft.update(slot, session_timeout_ms=timeout_ms)
        draft.soft.set_timeout(slot, timeout_ms)
    else:
        draft.ask(slot)


def _copies_of(holding: Holding) -> tuple[tuple[Role, TaskSet], ...]:
    return ((Role.STANDBY, holding.standby), (Role.LEARNER, holding.learner))


def _pairs(tasks: IntArray, slot: int) -> Codes:
    return codes(tasks, np.full(len(tasks), slot, dtype=np.int32))
