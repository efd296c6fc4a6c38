"""Drains: a member is to be empty until that is undone, whatever becomes of it meanwhile.

The order is with the member (`MemberEntry.draining`) while it is one. When it goes (it left, or it
expired) the order is kept, and whoever returns under the same member id or instance id is drained
from the start. A member that is fenced, or expires, before it is empty was *expelled*: its process
may still run what it had, so nobody may take it for empty. That is kept with the order, too, also
when the member is back, until the order is given again or undone.

Bounded: an order is kept for `KEPT_MS` after its member went, and for `KEPT_MAX` members that are
gone, those that went last. A group that is deleted keeps none.
"""

from __future__ import annotations

from muster.protocol.accepted import LONG_MAX
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Drain
from muster.protocol.records import KeptDrain
from muster.state import causes
from muster.state.causes import counted
from muster.state.draft import Draft
from muster.state.group import Member, slot_of

KEPT_MS = 7 * 24 * 3_600_000
"""For so long the drain of a member that is gone is kept, by the group's clock."""
KEPT_MAX = 1_000
"""Of so many members that are gone."""


def order(draft: Draft, event: Drain) -> None:
    """An operator wants a member empty, or takes that back."""
    slot = draft.by_id.get(event.member)
    if slot is None:
        kept = [each for each in draft.drains if each.member != event.member]
        if event.on or len(kept) == len(draft.drains):
            there = counted(len(draft.roster), "member")
            message = f"no member {event.member} to drain; the group has {there}"
            draft.reject(event.origin, DeadLetter.UNKNOWN_MEMBER_ID, message)
            return
        _set(draft, kept)
        return
    draft.changed = True  # the record says that the order was read, whoever waits for that
    _set(draft, _without(draft, draft.member(slot)))
    if draft.member(slot).draining == event.on:
        return
    draft.update(slot, draining=event.on)
    draft.causes.member(causes.DRAINING if event.on else causes.KEPT, event.member)
    set_deadline(draft, slot)


def set_deadline(draft: Draft, slot: int) -> None:
    """When a draining member is let go whatever its learners do (S2-F09)."""
    until = {s: at for s, at in draft.drain_until_ms.items() if s != slot}
    patience = draft.settings.scale_down_timeout_ms
    if draft.member(slot).draining and patience < LONG_MAX - draft.soft.clock_ms:
        until[slot] = draft.soft.clock_ms + patience
    draft.drain_until_ms = until


def expel(draft: Draft, slot: int) -> None:
    """A member is turned out, and may still run what it has."""
    if draft.member(slot).draining and _holds(draft, slot):
        _keep(draft, draft.member(slot), gone_ms=None, expelled=True)


def outlive(draft: Draft, slot: int, *, expelled: bool) -> None:
    """A member is about to go; `expelled`: nobody knows whether it has stopped what it has."""
    member = draft.member(slot)
    if member.draining:
        expelled = expelled and not member.away and _holds(draft, slot)
        _keep(draft, member, gone_ms=draft.soft.clock_ms, expelled=expelled)


def resume(draft: Draft, slot: int) -> None:
    """A member was let in: if it was being drained when it went, it still is."""
    member = draft.member(slot)
    kept = _of(draft, member)
    if kept is None:
        return
    if kept.expelled:
        _keep(draft, member, gone_ms=None, expelled=True)
    else:
        _set(draft, _without(draft, member))
    draft.update(slot, draining=True)
    draft.causes.member(causes.DRAINING, member.id)
    set_deadline(draft, slot)


def _of(draft: Draft, member: Member) -> KeptDrain | None:
    now = draft.soft.clock_ms
    mine = (each for each in draft.drains if _is_of(each, member) and not _is_over(each, now))
    return next(mine, None)


def _is_of(kept: KeptDrain, member: Member) -> bool:
    same_instance = kept.instance_id is not None and kept.instance_id == member.instance_id
    return kept.member == member.id or same_instance


def _is_over(kept: KeptDrain, now_ms: int) -> bool:
    return kept.gone_ms is not None and now_ms - kept.gone_ms >= KEPT_MS


def _without(draft: Draft, member: Member) -> list[KeptDrain]:
    return [each for each in draft.drains if not _is_of(each, member)]


def _keep(draft: Draft, member: Member, *, gone_ms: int | None, expelled: bool) -> None:
    known = _of(draft, member)
    expelled |= known is not None and known.expelled
    mine = KeptDrain(member.id, member.instance_id, gone_ms, expelled)
    _set(draft, [*_without(draft, member), mine])


def _set(draft: Draft, kept: list[KeptDrain]) -> None:
    """Keep these, but for those that are too old or too many."""
    now = draft.soft.clock_ms
    there = [each for each in kept if each.gone_ms is None]
    gone = [each for each in kept if each.gone_ms is not None and not _is_over(each, now)]
    gone.sort(key=lambda each: (each.gone_ms, each.member), reverse=True)
    found = tuple(sorted([*there, *gone[:KEPT_MAX]], key=lambda each: each.member))
    if found != draft.drains:
        draft.drains = found
        draft.changed = True


def _holds(draft: Draft, slot: int) -> bool:
    """Whether a member has anything, in any role, what it gives up included."""
    pairs = [draft.duplicate]
    for copies in draft.copies.values():
        pairs += [copies.kept, copies.going]
    return (
        bool((draft.holder == slot).any())
        or any(bool((slot_of(each) == slot).any()) for each in pairs)
        or any(orphan.slot == slot for orphan in draft.orphans)
    )
