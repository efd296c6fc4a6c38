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

KEPT_MS = 7 * 24 * 3_600_000
"""How long the drain of a member that has gone is kept, in ms of the group clock."""
KEPT_MAX = 1_000
"""The drains of at most this many members that have gone are kept."""


def order(draft: Draft, event: Drain) -> None:
    """Drain a member, or undo its drain."""
    slot = draft.roster.by_id.get(event.member)
    if slot is None:
        other_drains = [drain for drain in draft.drains if drain.member != event.member]
        if event.on or len(other_drains) == len(draft.drains):
            members = count_of(len(draft.roster), "member")
            message = f"no member {event.member} to drain; the group has {members}"
            draft.reject(event.origin, DeadLetter.UNKNOWN_MEMBER_ID, message)
            return
        _set(draft, other_drains)
        return
    draft.publishes_again = True  # the operator sees that the order was read
    _set(draft, _without(draft, draft.member(slot)))
    if draft.member(slot).draining == event.on:
        return
    draft.update(slot, draining=event.on)
    draft.causes.member(causes.DRAINING if event.on else causes.UNDRAINED, event.member)
    set_deadline(draft, slot)


def set_deadline(draft: Draft, slot: int) -> None:
    """Set when placements leave a draining member out even if learners are not ready (S2-F09)."""
    deadlines_ms = {s: at for s, at in draft.timers.drain_until_ms.items() if s != slot}
    drained_ms = drained_at_ms(draft.settings, draft.sessions.clock_ms)
    if draft.member(slot).draining and drained_ms is not None:
        deadlines_ms[slot] = drained_ms
    draft.timers.drain_until_ms = deadlines_ms


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
    kept_drain = _of(draft, member)
    if kept_drain is None:
        return
    if kept_drain.expelled:
        _keep(draft, member, gone_ms=None, expelled=True)
    else:
        _set(draft, _without(draft, member))
    draft.update(slot, draining=True)
    draft.causes.member(causes.DRAINING, member.id)
    set_deadline(draft, slot)


def _of(draft: Draft, member: Member) -> KeptDrain | None:
    now_ms = draft.sessions.clock_ms
    kept = (drain for drain in draft.drains if not _is_over(drain, now_ms))
    return next((drain for drain in kept if _is_of(drain, member)), None)


def _is_of(drain: KeptDrain, member: Member) -> bool:
    same_instance = drain.instance_id is not None and drain.instance_id == member.instance_id
    return drain.member == member.id or same_instance


def _is_over(drain: KeptDrain, now_ms: int) -> bool:
    return drain.gone_ms is not None and now_ms - drain.gone_ms >= KEPT_MS


def _without(draft: Draft, member: Member) -> list[KeptDrain]:
    return [drain for drain in draft.drains if not _is_of(drain, member)]


def _keep(draft: Draft, member: Member, *, gone_ms: int | None, expelled: bool) -> None:
    earlier = _of(draft, member)
    expelled |= earlier is not None and earlier.expelled
    drain = KeptDrain(member.id, member.instance_id, gone_ms, expelled)
    _set(draft, [*_without(draft, member), drain])


def _set(draft: Draft, drains: list[KeptDrain]) -> None:
    """Keep these drains, without those that are too old or too many."""
    now_ms = draft.sessions.clock_ms
    of_present = [drain for drain in drains if drain.gone_ms is None]
    of_departed = [
        drain for drain in drains if drain.gone_ms is not None and not _is_over(drain, now_ms)
    ]
    of_departed.sort(key=lambda drain: (drain.gone_ms, drain.member), reverse=True)
    remaining = sorted([*of_present, *of_departed[:KEPT_MAX]], key=lambda drain: drain.member)
    draft.drains = tuple(remaining)


def _holds(draft: Draft, slot: int) -> bool:
    """Whether a member has any task in any role, including tasks that it is giving up."""
    slots_of_tasks = [draft.owned.holder, slot_of(draft.owned.duplicate)]
    for copies in draft.owned.copies.values():
        slots_of_tasks += [slot_of(copies.kept), slot_of(copies.releasing)]
    return any((slots == slot).any() for slots in slots_of_tasks) or bool(draft.orphans_of(slot))
