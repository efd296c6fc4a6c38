"""Every deadline of a group, and the one wake-up that follows from them.

=====================  =============  ============================================================
deadline               clock          when it is reached
=====================  =============  ============================================================
session                session clock  the member has expired
rebalance timeout      session clock  a member that did not answer a demand is fenced
fenced for a session   session clock  a fenced member is gone
initial delay          clock          a fleet that starts is placed: joining has paused, or lasts
assignment interval    clock          a generation that had to wait is placed
delay                  clock          the assignor decides what becomes of lost work (Connect)
follow-up              clock          the assignor runs again, once the group has settled
scale-down             clock          a draining member is let go, learners ready or not
=====================  =============  ============================================================

A deadline is decided only by a record *behind* it, so everything appended before it has been seen.
A wake-up that comes early is harmless, a late one only delays. While a group has members it is
woken at most two heartbeat intervals after its newest record: the session clock counts no more.

The two in which a member must do as it was told run from a *proof* that it could have read so. A
coordinator that is behind takes in records that are older than its own demand; time in them is no
time of the member's. So a wake-up says what of the group's records Kafka has acknowledged: all that
followed from the batches before, for a batch begins when the one before is written. The tick that
it brings repeats that. Whatever the log has behind such a tick is younger than the demand.
"""

from __future__ import annotations

from muster.protocol.events import Mark, Tick
from muster.protocol.records import MemberState, Record, WakeUp
from muster.protocol.settings import Settings
from muster.state import causes, fencing, membership, recovery
from muster.state.draft import Draft
from muster.state.group import Group, places
from muster.state.liveness import FENCED, MUTE, NEVER, REFUSED

PAUSES = 12
"""Joining has paused when no member came for this part of `initial.rebalance.delay.ms`."""
LONG_AGO = 0
"""A wake-up that has passed, so that another is published."""


def step_ms(draft: Draft) -> int:
    """What a jump of the clock counts for at most, and how far apart ticks are."""
    return step_of(draft.settings)


def step_of(settings: Settings) -> int:
    """Two heartbeat intervals, or a fortieth of the session where that is more.

    Short intervals beside a long session would have the group ticked all the time to no end.
    """
    return max(2 * settings.heartbeat_interval_ms, settings.session_timeout_ms // 40)


def move_to(draft: Draft, at_ms: int) -> None:
    """Move the clocks, and decide what an event of this time is behind."""
    soft = draft.soft
    if at_ms <= soft.clock_ms:
        return
    before_ms = soft.clock_ms
    soft.move_to(at_ms, step_ms(draft))
    silent, slow = soft.overdue()
    for slot in silent:
        if soft.flags[slot] & (REFUSED | MUTE) == REFUSED:
            fencing.fence(draft, slot, "its events are refused: see the dead letters")
        else:
            membership.remove(draft, slot, causes.EXPIRED)
    for slot in slow:
        if soft.flags[slot] & FENCED:
            membership.remove(draft, slot, causes.EXPIRED)
        else:
            fencing.fence_late(draft, slot)
    _decide_clock(draft, before_ms)


def prove(draft: Draft, tick: Tick) -> None:
    """Let the time run of members that can have read by now what they were told.

    A tick of an older coordinator than the one whose decisions the group has proves nothing: that
    one may have come further, with other decisions. It may also have written last, and readers of
    the compacted topics would take its word for the group's: they are told again.
    """
    if tick.published is None:
        return
    recovery.prove(draft, tick.published.coordinator_epoch)
    if tick.published.coordinator_epoch < draft.group.coordinator_epoch:
        draft.changed = True
        draft.soft.wake_ms = LONG_AGO
        return
    before = min(tick.published.taken, draft.group.soft.taken)  # not what this very batch demands
    for slot in draft.soft.unproved(before):
        member = draft.member(slot)
        patience_ms = member.rebalance_timeout_ms or draft.settings.rebalance_timeout_ms
        if draft.soft.flags[slot] & FENCED:
            patience_ms = int(draft.soft.timeout_ms[slot])
        draft.soft.give_time(slot, patience_ms)


def _decide_clock(draft: Draft, before_ms: int) -> None:
    now = draft.soft.clock_ms
    if draft.delay_until_ms is not None and draft.delay_until_ms <= now:
        draft.delay_until_ms = None
        draft.causes.add("delay ended")
    for slot, at_ms in draft.drain_until_ms.items():
        if before_ms < at_ms <= now:
            draft.causes.add(f"{draft.member(slot).id} drained for scale.down.timeout.ms")


def let_go(draft: Draft) -> list[int]:
    """Slots of draining members that had their time."""
    now = draft.soft.clock_ms
    return sorted(slot for slot, at_ms in draft.drain_until_ms.items() if at_ms <= now)


def is_settled(draft: Draft) -> bool:
    """Whether no member waits for anything."""
    return not draft.columns.unsettled.any()


def is_pending(group: Draft | Group) -> bool:
    """Whether a generation waits for its target."""
    return group.generation > group.target_generation


def is_releasing(draft: Draft) -> bool:
    """Whether a member, fenced ones aside, still holds what it was told to give up."""
    return any(
        draft.member(slot).state is MemberState.UNREVOKED
        and slot not in draft.acknowledged
        and not draft.soft.flags[slot] & FENCED
        for slot in draft.roster
    )


def gate_ms(group: Draft | Group) -> int:
    """Before this time nothing is placed: assignment interval, and a start that is under way."""
    gate = 0
    if group.settings.assignment_interval_ms and group.target_generation:
        gate = group.generation_ms + group.settings.assignment_interval_ms
    delay_ms = group.settings.initial_rebalance_delay_ms
    if delay_ms and is_starting(group):
        joined = _joined_ms(group)
        gate = max(gate, min(joined[-1] + delay_ms // PAUSES, joined[0] + delay_ms))
    return gate


def is_starting(group: Draft | Group) -> bool:
    """Whether there are members, and all of them came after the newest placement.

    A fleet that starts, for the first time or after all of it was stopped: nothing would be moved,
    so nothing is lost by waiting for those who come a moment later.
    """
    joined = _joined_ms(group)
    return bool(joined) and joined[0] > group.generation_ms


def _joined_ms(group: Draft | Group) -> list[int]:
    """When the members came, ascending."""
    found = (group.members[slot] for slot in group.roster)
    return sorted(member.joined_ms for member in found if member is not None)


def is_shut(group: Draft | Group) -> bool:
    """Whether a generation waits for nothing but its time."""
    return is_pending(group) and gate_ms(group) > group.soft.clock_ms


def follow_up_is_due(draft: Draft) -> bool:
    """Never before the present generation has been carried out (S1-F06).

    What a plug-in answered is not, in the batch that takes it: no member has heard of it yet.
    """
    at_ms = draft.followup_ms
    is_over = at_ms is not None and at_ms <= draft.soft.clock_ms
    return is_over and is_settled(draft) and not draft.answered


def next_ms(draft: Draft) -> int | None:
    """The earliest deadline that is no session's, in clock time; None = none."""
    wanted: list[int] = []
    if draft.delay_until_ms is not None:
        wanted.append(draft.delay_until_ms)
    if draft.followup_ms is not None and is_settled(draft):
        wanted.append(draft.followup_ms)
    if draft.kept is not None or (draft.again and not is_releasing(draft)):
        wanted.append(draft.soft.clock_ms)
    wanted += [at for at in draft.drain_until_ms.values() if at > draft.soft.clock_ms]
    if draft.roster and places(draft.table, draft.assignor) and is_shut(draft):
        wanted.append(gate_ms(draft))
    return min(wanted, default=None)


def wake_ms(draft: Draft) -> int | None:
    """When the group wants a tick at the latest."""
    if not draft.roster:
        return None
    soft = draft.soft
    soft.recount()
    wanted = [soft.clock_ms + step_ms(draft)]
    if soft.earliest_ms < NEVER:
        wanted.append(soft.clock_ms + soft.earliest_ms - soft.session_ms)
    other = next_ms(draft)
    if other is not None:
        wanted.append(max(other, soft.clock_ms))
    return min(wanted)


def publish(draft: Draft, wanted_ms: int | None) -> list[Record]:
    """A `WakeUp` only if the published one has passed, is too late, or vouches for too little."""
    soft = draft.soft
    shown_ms = soft.wake_ms
    written = Mark(draft.coordinator_epoch, draft.group.soft.taken)
    enough = written == soft.shown or not _would_prove(draft, written)
    fits = shown_ms is not None and wanted_ms is not None and soft.clock_ms < shown_ms <= wanted_ms
    if enough and (fits or wanted_ms == shown_ms):
        return []
    soft.wake_ms = wanted_ms
    soft.shown = written
    published = None if wanted_ms is None else written
    return [WakeUp(group=draft.id, at_ms=wanted_ms, published=published)]


def _would_prove(draft: Draft, written: Mark) -> bool:
    """Whether a member's time waits for this mark, and for no older one."""
    shown = draft.soft.shown
    waiting = set(draft.soft.unproved(written.taken))
    if shown.coordinator_epoch == written.coordinator_epoch:
        waiting -= set(draft.soft.unproved(shown.taken))
    return bool(waiting)
