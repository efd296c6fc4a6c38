"""What each event does to the group: one function for each class (`kafka.md` 4.5 to 4.7).

Events only note what they change: who is a member, who holds what by its own account, why a new
generation is due. Nothing is placed or granted here. Outside faults are answered with a record to
the process (`Fault`) or become a dead letter; they never raise.

Exclusive ownership decides every doubt. A member that breaks the rules is *fenced*: it is told to
drop everything, its heartbeats count no more, and what it holds stays its own until it rejoins,
leaves, or its session is over. A process that claims an active which another holds has it as a
*duplicate*, which must be given up like any other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from muster.protocol.events import PROFILE, Join, LagReport, Leave
from muster.protocol.records import Fault, MemberState
from muster.protocol.settings import CONNECT_ASSIGNORS
from muster.state import causes, drains, holdings, lag, recovery
from muster.state.draft import Draft
from muster.state.group import NO_MEMBER, Member
from muster.state.liveness import FENCED, MUTE


def join(draft: Draft, event: Join) -> None:
    """A member says who it is: new, returning, the same again, or in somebody's place."""
    slot = draft.by_id.get(event.member)
    if not holdings.has_room(draft, event.holding, slot):
        draft.fault(event.member, event.incarnation, Fault.INVALID_REQUEST, holdings.TOO_STRANGE)
        return
    if slot is not None and draft.member(slot).incarnation == event.incarnation:
        _rejoin(draft, slot, event)
        return
    seat = slot if event.instance_id is None else draft.by_instance.get(event.instance_id, slot)
    if seat is None and draft.dead:
        draft.fault(event.member, event.incarnation, Fault.GROUP_ID_NOT_FOUND, draft.cause)
        return
    if seat is None:
        _admit(draft, event)
        return
    there = draft.member(seat)
    if there.away and there.instance_id == event.instance_id:
        _return(draft, there, event)
        return
    fault = Fault.MEMBER_ID_IN_USE
    held = f"member id {event.member}"
    if event.instance_id is not None and there.instance_id == event.instance_id:
        fault, held = Fault.UNRELEASED_INSTANCE_ID, f"instance id {event.instance_id}"
    message = f"{held} is in use by a live process; try again when it has left or expired"
    draft.fault(event.member, event.incarnation, fault, message)


def _admit(draft: Draft, event: Join) -> None:
    if len(draft.roster) >= draft.settings.group_max_size:
        message = f"the group has its {draft.settings.group_max_size} members (group.max.size)"
        draft.fault(event.member, event.incarnation, Fault.GROUP_MAX_SIZE_REACHED, message)
        return
    member = Member(
        id=event.member,
        slot=draft.free_slot(),
        incarnation=event.incarnation,
        instance_id=event.instance_id,
        joined_ms=draft.soft.clock_ms,
        session_timeout_ms=draft.settings.session_timeout_ms,
        **_told(event),
    )
    draft.seat(member)
    _answer_join(draft, member.slot, event)
    draft.causes.member(causes.JOINED, member.id)
    drains.resume(draft, member.slot)


def _return(draft: Draft, there: Member, event: Join) -> None:
    """A member is back, a static one perhaps as another process: it gets what waited for it.

    While the group asks its members what they hold, the tasks become free instead: another
    coordinator may have given them to a member that has not answered yet.
    """
    if there.id != event.member and event.member in draft.by_id:
        message = f"member id {event.member} is in use by another member"
        draft.fault(event.member, event.incarnation, Fault.MEMBER_ID_IN_USE, message)
        return
    if there.id != event.member:
        draft.tombstone(there.id)
    told = _told(event)
    if any(getattr(there, name) != told[name] for name in PROFILE):
        draft.causes.member(causes.RETURNED, event.member)
    member = replace(
        there,
        id=event.member,
        incarnation=event.incarnation,
        away=False,
        **told,
    )
    draft.rename(there.slot, member)
    draft.soft.flags[there.slot] = 0
    if draft.recovering:  # their last grants may be newer than the snapshot
        waits = draft.holder == there.slot
        draft.holder = np.where(waits, np.int32(NO_MEMBER), draft.holder)
        draft.revoking = draft.revoking & ~waits
    _answer_join(draft, there.slot, event)


def _rejoin(draft: Draft, slot: int, event: Join) -> None:
    """The same process says it again: a full reset of what it was asked to release."""
    member = draft.member(slot)
    told = _told(event)
    if any(getattr(member, name) != told[name] for name in PROFILE):
        draft.causes.member(causes.CHANGED, member.id)
    elif draft.assignor in CONNECT_ASSIGNORS:
        draft.causes.member(causes.REJOINED, member.id)  # every join opens a round (S3-F08)
    if draft.soft.flags[slot] & FENCED:
        draft.release([slot])
        draft.soft.flags[slot] &= 0xFF & ~(FENCED | MUTE)
        draft.recovered(slot)
        draft.update(slot, epoch=0, previous_epoch=0)
        draft.causes.member(causes.REJOINED, member.id)
    elif member.state is MemberState.UNREVOKED:
        holdings.keep_all(draft, slot)
        draft.ask(slot)
    if slot not in draft.recovering:
        draft.soft.acquit(slot)
    draft.update(
        slot, state=MemberState.STABLE, revoke_revision=0, deadline_ms=None, away=False, **told
    )
    _answer_join(draft, slot, event)


def _answer_join(draft: Draft, slot: int, event: Join) -> None:
    draft.soft.hear(slot)
    recovery.ask_newcomer(draft, slot)
    draft.drop_gone()
    holdings.claim(draft, slot, event.holding)
    lag.tell(draft, event.member, event.lags, event.origin, event.holding.ready)
    draft.answer.add(slot)


def _told(event: Join) -> dict[str, Any]:
    told: dict[str, Any] = {name: getattr(event, name) for name in PROFILE}
    told["capacity"] = max(1, event.capacity)
    return told


def leave(draft: Draft, event: Leave) -> None:
    """A member has stopped everything and goes, for good or for a while."""
    slot = draft.by_id.get(event.member)
    if slot is None or draft.member(slot).incarnation != event.incarnation:
        return  # of another process, or gone already
    is_fenced = bool(draft.soft.flags[slot] & FENCED)  # what it had is placed elsewhere already
    if event.temporary and not is_fenced:
        draft.soft.hear(slot)
        draft.soft.flags[slot] = MUTE
        draft.soft.acquit(slot)
        holdings.acknowledge(draft, slot)
        draft.recovered(slot)
        draft.update(slot, away=True)
        return
    remove(draft, slot, causes.LEFT)


def remove(draft: Draft, slot: int, why: str) -> None:
    """A member is not one any more."""
    drains.outlive(draft, slot, expelled=why == causes.EXPIRED)
    member = draft.unseat(slot)
    draft.departed.note(slot, member.id, why)
    draft.tombstone(member.id)
    draft.causes.member(why, member.id)


def lag_report(draft: Draft, event: LagReport) -> None:
    """A client says how far a member's copies are behind."""
    lag.tell(draft, event.member, event.lags, event.origin)
