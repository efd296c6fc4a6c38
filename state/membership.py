"""How joins, leaves and expiries change the group's members.

These functions place and grant nothing. A faulty event never raises: the process gets a record with
a `Fault`, or the event becomes a dead letter.

In doubt, no second member gets a task. A member that breaks the rules is *fenced*: its record tells
it to drop everything, its heartbeats no longer count, and its tasks stay its own until it leaves,
or a session has passed. An active that a process claims and another member holds is a
*duplicate*, which the process must give up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from muster.protocol.events import PROFILE, Join, Leave
from muster.protocol.records import Fault, MemberState
from muster.protocol.settings import CONNECT_ASSIGNORS
from muster.state import (
    causes,
    deafness,
    drains,
    held_tasks,
    lag,
    lost_checkpoint,
    refusal_answers,
    releases,
)
from muster.state.draft import Draft
from muster.state.group import Member
from muster.state.liveness import DEAF, FENCED, MUTE, UNREAD


def join(draft: Draft, event: Join) -> None:
    """Admit a new process, take back a member that was away, repeat a join, or refuse."""
    slot = draft.roster.by_id.get(event.member)
    if not held_tasks.has_room(draft, event.holding, slot):
        refusal_answers.answer(draft, event, Fault.INVALID_REQUEST, held_tasks.TOO_MANY_UNKNOWN)
        return
    if slot is not None and draft.member(slot).incarnation == event.incarnation:
        _rejoin(draft, slot, event)
        return
    slot_in_use = (
        slot if event.instance_id is None else draft.roster.by_instance.get(event.instance_id, slot)
    )
    if slot_in_use is None and draft.dead:
        refusal_answers.answer(draft, event, Fault.GROUP_ID_NOT_FOUND, draft.cause)
        return
    if slot_in_use is None:
        _admit(draft, event)
        return
    occupant = draft.member(slot_in_use)
    if occupant.away and occupant.instance_id == event.instance_id:
        _return(draft, occupant, event)
        return
    fault = Fault.MEMBER_ID_IN_USE
    name = f"member id {event.member}"
    if event.instance_id is not None and occupant.instance_id == event.instance_id:
        fault, name = Fault.UNRELEASED_INSTANCE_ID, f"instance id {event.instance_id}"
    message = f"{name} is in use by a live process; try again when it has left or expired"
    refusal_answers.answer(draft, event, fault, message)


def _admit(draft: Draft, event: Join) -> None:
    if len(draft.roster) >= draft.settings.group_max_size:
        message = f"the group has its {draft.settings.group_max_size} members (group.max.size)"
        refusal_answers.answer(draft, event, Fault.GROUP_MAX_SIZE_REACHED, message)
        return
    member = Member(
        id=event.member,
        slot=draft.free_slot(),
        incarnation=event.incarnation,
        instance_id=event.instance_id,
        joined_ms=draft.sessions.clock_ms,
        session_timeout_ms=draft.settings.session_timeout_ms,
        **_profile_of(event),
    )
    draft.add_member(member)
    _answer_join(draft, member.slot, event)
    draft.causes.member(causes.JOINED, member.id)
    drains.resume(draft, member.slot)


def _return(draft: Draft, absent: Member, event: Join) -> None:
    """Take back a member that was away, with its tasks; a static one may be another process now.

    After a lost checkpoint the tasks become free instead: another coordinator may have granted them
    to a member that has not answered, or not joined here, yet.
    """
    if absent.id != event.member and event.member in draft.roster.by_id:
        message = f"member id {event.member} is in use by another member"
        refusal_answers.answer(draft, event, Fault.MEMBER_ID_IN_USE, message)
        return
    if absent.id != event.member:
        draft.tombstone(absent.id)
    profile = _profile_of(event)
    if any(getattr(absent, name) != profile[name] for name in PROFILE):
        draft.causes.member(causes.RETURNED, event.member)
    if absent.state is MemberState.UNREVOKED:  # it was fenced while it was away
        releases.keep_all(draft, absent.slot)
        absent = replace(absent, state=MemberState.STABLE, revoke_revision=0, deadline_ms=None)
    member = replace(absent, id=event.member, incarnation=event.incarnation, away=False, **profile)
    draft.roster.rename(member)
    draft.sessions.flags[absent.slot] = 0
    draft.sessions.cancel_demand(absent.slot)
    if absent.incarnation != event.incarnation:
        lag.forget(draft, absent.slot)
    if lost_checkpoint.is_halted(draft):
        draft.free(draft.tasks_of(absent.slot))
    _answer_join(draft, absent.slot, event)


def _rejoin(draft: Draft, slot: int, event: Join) -> None:
    """Reset a member whose process joins again: a release it was asked for is withdrawn.

    A join of a fenced member frees nothing. A process that has read that it is fenced joins under
    another incarnation, so this join is older than the fence, or its process reads no answers.

    A member that has sent no heartbeat or report since its last repeated join gets the answer to
    that join once more, unless the group has changed. A worker whose reader hangs repeats its join
    for ever; the group need not be published for it each time.
    """
    member = draft.member(slot)
    if draft.sessions.flags[slot] & FENCED:
        draft.addressed.add(slot)
        return
    if draft.sessions.flags[slot] & UNREAD:
        draft.unread_again.add(slot)
    profile = _profile_of(event)
    if any(getattr(member, name) != profile[name] for name in PROFILE):
        draft.causes.member(causes.CHANGED, member.id)
    elif draft.assignor in CONNECT_ASSIGNORS:
        draft.causes.member(causes.REJOINED, member.id)  # every join opens a round (S3-F08)
    if member.state is MemberState.UNREVOKED:
        releases.keep_all(draft, slot)
        draft.ask(slot)
    if slot not in draft.recovery.asked:
        draft.sessions.cancel_demand(slot)
    rejoined = replace(
        member,
        state=MemberState.STABLE,
        revoke_revision=0,
        deadline_ms=None,
        away=False,
        **profile,
    )
    if rejoined != member:
        draft.roster.put(rejoined)
    deafness.note_repeated_join(draft, slot)
    _answer_join(draft, slot, event)


def _answer_join(draft: Draft, slot: int, event: Join) -> None:
    is_apart = event.apart and draft.sessions.is_listened_to(draft.settings.session_timeout_ms)
    draft.sessions.offer(slot, event.apart, is_apart)
    draft.sessions.hear(slot)
    lost_checkpoint.ask_newcomer(draft, slot)
    draft.free_gone()
    held_tasks.claim(draft, slot, event.holding)
    lag.absorb(draft, event.member, event.lags, event.origin, event.holding.ready)
    draft.addressed.add(slot)


def _profile_of(event: Join) -> dict[str, Any]:
    profile: dict[str, Any] = {name: getattr(event, name) for name in PROFILE}
    profile["capacity"] = max(1, event.capacity)
    return profile


def leave(draft: Draft, event: Leave) -> None:
    """Remove a member that has stopped everything, or mark it away if the leave is temporary."""
    slot = draft.roster.by_id.get(event.member)
    if slot is None or draft.member(slot).incarnation != event.incarnation:
        return  # the leave of another process, or of a member that is gone
    has_lost_its_tasks = draft.sessions.flags[slot] & (FENCED | DEAF)  # they are placed elsewhere
    if event.temporary and not has_lost_its_tasks:
        draft.sessions.hear(slot)
        draft.sessions.flags[slot] = MUTE
        draft.sessions.cancel_demand(slot)
        releases.acknowledge(draft, slot)
        draft.recovered(slot)
        draft.update(slot, away=True)
        return
    remove(draft, slot, causes.LEFT)


def remove(draft: Draft, slot: int, why: str) -> None:
    """Remove a member; `why` is a word of `causes`."""
    drains.outlive(draft, slot, expelled=why == causes.EXPIRED)
    member = draft.remove_member(slot)
    draft.departed.note(slot, member.id, why)
    draft.tombstone(member.id)
    draft.causes.member(why, member.id)
