"""`advance`: the only function that changes a group.

1. It is pure: equal arguments give equal steps, and it does not modify them.
2. It takes events in the order of (broker time, topic, partition, offset), each once, and decides
   the deadlines that an event's time has passed before it absorbs the event.
3. It absorbs all events, makes at most one placement, moves each affected member one step towards
   the target, then computes the wake-up. A batch of 5,000 joins costs one placement.
4. It absorbs consecutive heartbeats with one vectorised update, without reading members or tasks.
5. If anything but liveness changed, it publishes the whole `GroupSnapshot`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from muster.assignor import registry
from muster.protocol.events import (
    Drain,
    GroupConfig,
    GroupDeleted,
    Heartbeat,
    Join,
    LagReport,
    Leave,
    Refused,
    Report,
    Taken,
    Tick,
    TopicsFound,
)
from muster.protocol.records import Dictionary, GroupSnapshot, Record
from muster.state import (
    causes,
    config_events,
    deadlines,
    deletion,
    drains,
    fencing,
    found_topics,
    heartbeats,
    lag,
    lost_checkpoint,
    member_records,
    membership,
    new_generation,
    placement,
    placement_pauses,
    reconcile,
    refusal_answers,
    reports,
    session_clock,
    superseded,
    wake_ups,
)
from muster.state.assignor_outcome import Aside
from muster.state.draft import Draft, Lookup
from muster.state.group import Group
from muster.state.liveness import BROKERS_DIFFER_MS
from muster.state.session_clock import Times


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The result of `advance`.

    Attributes:
        group: the group after the events.
        records: to publish, in this order: the group's dictionary if the tasks changed, members'
            records by member id, the group's snapshot, the wake-up, dead letters.
        wake_at_ms: the latest time for the next `Tick`, epoch milliseconds; replaces earlier ones.
        changed: whether anything but liveness changed; then `records` has the new snapshot.
    """

    group: Group
    records: tuple[Record, ...]
    wake_at_ms: int | None
    changed: bool


def advance(
    group: Group,
    events: Sequence[Taken],
    *,
    coordinator_epoch: int,
    assignors: Lookup = registry.get,
    aside: Aside | None = None,
) -> Step:
    """Absorb events.

    Args:
        group: before the events.
        events: of this group, from any of the input topics, in any order.
        coordinator_epoch: offset of the coordinator's claim.
        assignors: name → assignor; raises `UnknownAssignor`.
        aside: computes large placements; None = they are computed here.
    """
    draft = Draft(group, coordinator_epoch, assignors, aside)
    fresh = _fresh(draft, events)
    later_epoch = superseded.later_epoch(group, fresh, coordinator_epoch)
    if later_epoch is not None:  # it takes the events; this coordinator decides nothing any more
        superseded_group = replace(group, recovery=replace(group.recovery, successor=later_epoch))
        return Step(superseded_group, (), None, changed=False)
    if draft.asks_members:
        lost_checkpoint.begin(draft)
    elif not fresh:
        return Step(group, (), wake_ups.wake_ms(draft), changed=False)
    completed = _take_deferred(draft)
    _absorb(draft, fresh)
    _settle(draft)
    wake_at_ms = wake_ups.wake_ms(draft)
    refusal_answers.add_tombstones(draft)
    records = [record for _, record in sorted(draft.replies, key=lambda reply: reply[0])]
    wake_up_records = wake_ups.publish(draft, wake_at_ms)
    changed = draft.changed
    next_group = draft.finished(changed=changed)
    dictionary = Dictionary.of(draft.id, draft.table) if draft.table != group.table else None
    if dictionary is not None:
        records.insert(0, dictionary)  # before the first record that refers to it
    if changed:
        # Otherwise the moves and reasons of the completed generation would never be published.
        if completed is not None and completed.generation != next_group.generation:
            records.append(completed)
        records.append(next_group.snapshot())
    records += [*wake_up_records, *draft.rejected]
    return Step(next_group, tuple(records), wake_at_ms, changed)


def _take_deferred(draft: Draft) -> GroupSnapshot | None:
    """Apply a deferred outcome; returns the snapshot of the generation it completes."""
    if not placement.take_deferred(draft) or placement_pauses.is_pending(draft) or draft.was_aside:
        return None
    return draft.finished(changed=True).snapshot()


def _fresh(draft: Draft, events: Sequence[Taken]) -> list[Taken]:
    """The events that are not absorbed yet, sorted, each once; updates the read offsets."""
    through = dict(draft.sessions.through)
    sorted_events = sorted(events, key=_sort_key)
    fresh: list[Taken] = []
    seen: set[tuple[str, int, int]] = set()
    for event in sorted_events:
        topic, partition, offset, _ = event.origin
        if offset >= 0:
            partition_key = (topic, partition)
            if (
                offset <= draft.group.sessions.through.get(partition_key, -1)
                or (*partition_key, offset) in seen
            ):
                continue
            seen.add((*partition_key, offset))
            if offset > through.get(partition_key, -1):
                through[partition_key] = offset
        fresh.append(event)
    draft.sessions.through = through
    return fresh


def _sort_key(event: Taken) -> tuple[int, str, int, int]:
    topic, partition, offset, at_ms = event.origin
    return at_ms, topic, partition, offset


def _absorb(draft: Draft, events: list[Taken]) -> None:
    """Absorb every event in order; consecutive heartbeats are one run."""
    run: list[Heartbeat] = []
    for event in events:
        if isinstance(event, Heartbeat):
            run.append(event)
            continue
        _beat(draft, run)
        run = []
        draft.newest = event.origin
        lost_checkpoint.raise_floor(draft)
        match event:
            case GroupConfig():
                config_events.configure(draft, event)
            case TopicsFound():
                found_topics.absorb(draft, event)
            case GroupDeleted():
                deletion.delete(draft, event)
            case LagReport():
                lag.absorb(draft, event.member, event.lags, event.origin)
            case Refused():
                fencing.note_refused(draft, event.member)
            case _:
                if isinstance(event, Tick):
                    heartbeats.absorb_cover(draft, event)
                deadlines.move_to(draft, event.origin.at_ms)
                _absorb_member_event(draft, event)
    _beat(draft, run)


def _absorb_member_event(draft: Draft, event: Join | Report | Leave | Drain | Tick) -> None:
    match event:
        case Join():
            membership.join(draft, event)
        case Report():
            reports.report(draft, event)
        case Leave():
            membership.leave(draft, event)
        case Drain():
            drains.order(draft, event)
        case Tick():
            deadlines.prove(draft, event)
            heartbeats.ask_to_write_apart(draft, event)
        case _:
            assert_never(event)


def _beat(draft: Draft, run: list[Heartbeat]) -> None:
    """Absorb a run of heartbeats; it is split where a heartbeat's time has passed a deadline."""
    if not run:
        return
    draft.newest = run[-1].origin
    at_ms = np.fromiter((b.origin.at_ms for b in run), dtype=np.int64, count=len(run))
    while run:
        sessions = draft.sessions
        session_clock.catch_up(sessions, session_clock.longest_step_ms(draft))
        clock_times = np.maximum.accumulate(np.maximum(at_ms, sessions.clock_ms))
        is_apart = sessions.is_apart
        session_times = session_clock.session_times(draft, clock_times, is_apart)
        sessions.reset_earliest()
        other_deadline_ms = deadlines.next_decided_ms(draft)
        run_length = int(np.searchsorted(session_times, sessions.earliest_ms))
        if other_deadline_ms is not None:
            run_length = min(run_length, int(np.searchsorted(clock_times, other_deadline_ms)))
        if run_length == 0:
            deadlines.move_to(draft, int(clock_times[0]))
            run_length = 1
            session_times = np.array([sessions.session_ms], dtype=np.int64)
        sign_advance_ms = (
            np.maximum(clock_times - sessions.covered_ms, 0) + BROKERS_DIFFER_MS if is_apart else 0
        )
        _beat_slots(draft, run[:run_length], (session_times + sign_advance_ms)[:run_length])
        if sessions.clock_ms < clock_times[run_length - 1]:
            sessions.clock_ms = int(clock_times[run_length - 1])
            sessions.session_ms = int(session_times[run_length - 1])
            sessions.covered_ms = sessions.covered_ms if is_apart else sessions.clock_ms
        run, at_ms = run[run_length:], at_ms[run_length:]


def _beat_slots(draft: Draft, run: list[Heartbeat], session_times: Times) -> None:
    by_id = draft.roster.by_id
    slots = np.fromiter((by_id.get(b.member, -1) for b in run), dtype=np.intp, count=len(run))
    is_known_slot = slots >= 0
    if not is_known_slot.all():
        for beat in run:
            if beat.member not in by_id:
                refusal_answers.answer_unknown(draft, beat.member, refusal_answers.ANY_INCARNATION)
        run = [beat for beat, is_known in zip(run, is_known_slot.tolist(), strict=True) if is_known]
        slots, session_times = slots[is_known_slot], session_times[is_known_slot]
    if not run:
        return
    epochs = np.fromiter((b.epoch for b in run), dtype=np.int64, count=len(run))
    digests = np.fromiter((b.digest for b in run), dtype=np.uint64, count=len(run))
    heartbeats.beat(draft, slots, epochs, digests, session_times)


def _settle(draft: Draft) -> None:
    """After all events: open a generation, place it, move each affected member one step."""
    draft.drop_gone()
    if draft.was_empty:
        placement.forget_rounds(draft)
    lost_checkpoint.verify_after_own_tick(draft)
    if lost_checkpoint.has_ended(draft):
        draft.due = True
        draft.touched |= set(draft.roster.slots)
    if draft.dead:
        deletion.wind_up(draft)
        return
    lag.mark_released_ready(draft)
    if draft.target.again and not deadlines.is_releasing(draft):
        draft.target.again = False
        draft.causes.add("all releases acknowledged")
    if deadlines.follow_up_is_due(draft):
        if placement_pauses.is_pending(draft):
            draft.due = True  # the assignor failed
        else:
            draft.possible_causes.add(causes.FOLLOW_UP)
            lag.ask_about_awaited(draft)
    if draft.possible_causes and (draft.causes or placement.could_change(draft)):
        draft.causes.absorb(draft.possible_causes)
    placement.follow_overtaken(draft)
    opens_generation = bool(draft.causes) and bool(draft.roster or draft.group.roster)
    if opens_generation:
        new_generation.begin(draft)
        draft.target.is_overtaken |= draft.target.asked_ms is not None
    if not draft.roster and placement_pauses.is_pending(draft):
        _place_nothing(draft)
    placement.ask_follow_up_again(draft)
    draft.due |= draft.target.asked_ms is not None or placement_pauses.has_ended(draft)
    if (opens_generation or draft.due) and placement.due(draft):
        draft.cause = new_generation.without_waits(draft)
        placement.place(draft)
    if not (draft.addressed or draft.touched or draft.acknowledged or draft.changed):
        return
    member_records.write(draft, reconcile.settle(draft))
    draft.acknowledged.clear()


def _place_nothing(draft: Draft) -> None:
    """A group without members has its placement at once: an empty one."""
    draft.target.generation = draft.generation
    draft.target.placed_ms = draft.sessions.clock_ms
    placement.forget_rounds(draft)
    draft.target.deferred, draft.target.asked_ms = None, None
    draft.target.is_overtaken = False
