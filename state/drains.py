"""Drains: an operator's order to keep a member empty, in force until the operator undoes it.

The order is in the member's entry (`MemberEntry.draining`). When the member leaves or expires, the
group keeps the order, and a process that joins under the same member id or instance id is drained.

A draining member that is fenced or expires before it is empty is *expelled*: its process may still
run tasks, so tools must not report it as empty. This is kept too, until the order is given again or
undone. A deleted group keeps no drains.
"""

from __future__ import annotations

from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Drain
from muster.protocol.records import KeptDrain
from muster.state import causes
from muster.state.causes import count_of
from muster.state.draft import Draft
from muster.state.group import Member, drained_at_ms
from muster.state.ownership import slot_of


def order(draft: Draft, event: Drain) -> None:
    """Drain a member, or undo its drain."""
    slot = draft.roster.by_id.get(event.member)
    if slot is None:
        if event.on or not draft.kept_drains.has(event.member):
            members = count_of(len(draft.roster), "member")
            message = f"no member {event.member} to drain; the group has {members}"
            draft.reject(event.origin, DeadLetter.UNKNOWN_MEMBER_ID, message)
            return
        draft.kept_drains.drop(event.member)
        draft.kept_drains.drop_old(draft.sessions.clock_ms)
        return
    draft.publishes_again = True  # the operator sees that the order was read
    _forget(draft, draft.member(slot))
    if draft.member(slot).draining == event.on:
        return
    draft.update(slot, draining=event.on)
    draft.causes.member(causes.DRAINING if event.on else causes.UNDRAINED, event.member)
    set_deadline(draft, slot)


def set_deadline(draft: Draft, slot: int) -> None:
    """Set when placements leave a draining member out even if learners are not ready (S2-F09)."""
    drained_ms = drained_at_ms(draft.settings, draft.sessions.clock_ms)
    draft.set_drain_deadline(slot, drained_ms if draft.member(slot).draining else None)


def expel(draft: Draft, slot: int) -> None:
    """Note that a draining member was fenced before it was empty."""
    if draft.member(slot).draining and _holds(draft, slot):
        _keep(draft, draft.member(slot), gone_ms=None, expelled=True)


def outlive(draft: Draft, slot: int, *, expelled: bool) -> None:
    """Keep the drain of a member that is about to be removed.

    `expelled`: it may still run its tasks, because it expired.
    """
    member = draft.member(slot)
    if member.draining:
        expelled = expelled and not member.away and _holds(draft, slot)
        _keep(draft, member, gone_ms=draft.sessions.clock_ms, expelled=expelled)


def resume(draft: Draft, slot: int) -> None:
    """Drain a member that joined, if its drain was kept."""
    member = draft.member(slot)
    kept_drain = draft.kept_drains.of(member, draft.sessions.clock_ms)
    if kept_drain is None:
        return
    if kept_drain.expelled:
        _keep(draft, member, gone_ms=None, expelled=True)
    else:
        _forget(draft, member)
    draft.update(slot, draining=True)
    draft.causes.member(causes.DRAINING, member.id)
    set_deadline(draft, slot)


def _keep(draft: Draft, member: Member, *, gone_ms: int | None, expelled: bool) -> None:
    earlier = draft.kept_drains.of(member, draft.sessions.clock_ms)
    expelled |= earlier is not None and earlier.expelled
    draft.kept_drains.drop_of(member)
    draft.kept_drains.keep(KeptDrain(member.id, member.instance_id, gone_ms, expelled))
    draft.kept_drains.drop_old(draft.sessions.clock_ms)


def _forget(draft: Draft, member: Member) -> None:
    draft.kept_drains.drop_of(member)
    draft.kept_drains.drop_old(draft.sessions.clock_ms)


def _holds(draft: Draft, slot: int) -> bool:
    """Whether a member has any task in any role, including tasks that it is giving up."""
    slots_of_tasks = [draft.owned.holder, slot_of(draft.owned.duplicate)]
    for copies in draft.owned.copies.values():
        slots_of_tasks += [slot_of(copies.kept), slot_of(copies.releasing)]
    return any((slots == slot).any() for slots in slots_of_tasks) or bool(draft.orphans_of(slot))
