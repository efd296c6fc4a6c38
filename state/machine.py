"""`advance`: the only way a group changes.

Rules of this file.

1. Pure: the group given stays as it is; the same group and events give the same step.
2. Events are taken in the order of (broker time, topic, partition, offset), each once.
3. An event is absorbed after everything it is behind was decided: expiries, timeouts, delays.
4. All events are absorbed, then at most one placement is made, then each touched member takes one
   step, then the wake-up follows. A storm of 5,000 joins costs one placement.
5. Heartbeats are taken in runs, one vectorised update each; a batch of nothing but heartbeats never
   looks at a member or a task.
6. What changed is published whole: `GroupSnapshot` says what it was up to these events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

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
)
from muster.protocol.records import Dictionary, GroupSnapshot, Record, no_tasks
from muster.state import (
    addressed,
    causes,
    config,
    deadlines,
    deletion,
    drains,
    fencing,
    holdings,
    lag,
    membership,
    reconcile,
    target,
)
from muster.state.draft import Draft, Lookup
from muster.state.group import Group, places
from muster.state.texts import cut

CAUSE_CHARS_MAX = 2_000
Times: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What events did to a group.

    Attributes:
        group: as it is now.
        records: what is to be published: members' by member id, the group's, the clock's, letters.
        wake_at_ms: when a `Tick` is wanted at the latest; it replaces every earlier wish.
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
) -> Step:
    """Take events in.

    Args:
        group: the group before.
        events: of this group, from any of the input topics, in any order.
        coordinator_epoch: offset of the coordinator's claim.
        assignors: name → assignor; raises `UnknownAssignor`.
    """
    draft = Draft(group, coordinator_epoch, assignors)
    fresh = _fresh(draft, events)
    if not fresh and not draft.changed:  # a recovered group asks even so, and says that it did
        return Step(group, (), deadlines.wake_ms(draft), changed=False)
    if draft.changed and group.recovering:
        for slot in group.recovering:
            draft.ask(slot)
            draft.soft.demand(slot)
    answered = _take_kept(draft)
    _absorb(draft, fresh)
    _settle(draft)
    wake_at_ms = deadlines.wake_ms(draft)
    fencing.take_back(draft)
    records = [record for _, record in sorted(draft.replies, key=lambda reply: reply[0])]
    clock = deadlines.publish(draft, wake_at_ms)
    done = draft.finished()
    names = Dictionary.of(draft.id, draft.table) if draft.table != group.table else None
    if names is not None:
        records.insert(0, names)  # before the first record that refers to it
    if draft.changed:
        if answered is not None and answered.generation != done.generation:
            records.append(answered)  # or its moves and reasons would never be seen
        records.append(done.snapshot())
    records += [*clock, *draft.rejected]
    return Step(done, tuple(records), wake_at_ms, draft.changed)


def _take_kept(draft: Draft) -> GroupSnapshot | None:
    """Take what a plug-in answered; returns the record of the generation that it completes."""
    if not target.take_kept(draft) or deadlines.is_pending(draft):
        return None
    return draft.finished().snapshot()


def _fresh(draft: Draft, events: Sequence[Taken]) -> list[Taken]:
    """Events not taken in before, sorted, each once; their offsets are noted."""
    through = dict(draft.soft.through)
    ordered = sorted(events, key=_sort_key)
    found: list[Taken] = []
    seen: set[tuple[str, int, int]] = set()
    for event in ordered:
        topic, partition, offset, _ = event.origin
        if offset >= 0:
            place = (topic, partition)
            if offset <= draft.group.soft.through.get(place, -1) or (*place, offset) in seen:
                continue
            seen.add((*place, offset))
            if offset > through.get(place, -1):
                through[place] = offset
        found.append(event)
    draft.soft.through = through
    return found


def _sort_key(event: Taken) -> tuple[int, str, int, int]:
    topic, partition, offset, at_ms = event.origin
    return at_ms, topic, partition, offset


def _absorb(draft: Draft, events: list[Taken]) -> None:
    """Take every event in."""
    run: list[Heartbeat] = []
    for event in events:
        if isinstance(event, Heartbeat):
            run.append(event)
            continue
        _beat(draft, run)
        run = []
        draft.newest = event.origin
        match event:
            case GroupConfig():
                config.configure(draft, event)
            case GroupDeleted():
                deletion.delete(draft, event)
            case LagReport():
                membership.lag_report(draft, event)
            case Refused():
                fencing.refused(draft, event.member)
            case _:
                deadlines.move_to(draft, event.origin.at_ms)
                _take(draft, event)
    _beat(draft, run)


def _take(draft: Draft, event: Join | Report | Leave | Drain | Tick) -> None:
    match event:
        case Join():
            membership.join(draft, event)
        case Report():
            holdings.report(draft, event)
        case Leave():
            membership.leave(draft, event)
        case Drain():
            drains.order(draft, event)
        case Tick():
            deadlines.prove(draft, event)
        case _:
            assert_never(event)


def _beat(draft: Draft, run: list[Heartbeat]) -> None:
    """Take a run of heartbeats in, cut where one of them is behind a deadline."""
    while run:
        soft = draft.soft
        draft.newest = run[-1].origin
        step = deadlines.step_ms(draft)
        at_ms = np.fromiter((b.origin.at_ms for b in run), dtype=np.int64, count=len(run))
        clock = np.maximum.accumulate(np.maximum(at_ms, soft.clock_ms))
        before = soft.clock_ms or int(at_ms[0])
        jumps = np.minimum(np.diff(clock, prepend=before), step)
        session = (soft.session_ms or before) + np.cumsum(jumps)
        soft.recount()
        bound = min(soft.earliest_ms, _session_of(draft, session, clock))
        cut = int(np.searchsorted(session, bound))
        if cut == 0:
            deadlines.move_to(draft, int(clock[0]))
            cut = 1
            session = np.array([soft.session_ms], dtype=np.int64)
        _beat_slots(draft, run[:cut], session[:cut])
        if soft.clock_ms < clock[cut - 1]:
            soft.clock_ms, soft.session_ms = int(clock[cut - 1]), int(session[cut - 1])
        run = run[cut:]


def _session_of(draft: Draft, session: Times, clock: Times) -> int:
    """Session time of the first heartbeat behind a deadline in clock time."""
    other = deadlines.next_ms(draft)
    if other is None or other > clock[-1]:
        return int(session[-1]) + 1
    return int(session[int(np.searchsorted(clock, other))])


def _beat_slots(draft: Draft, run: list[Heartbeat], session: Times) -> None:
    by_id = draft.by_id
    slots = np.fromiter((by_id.get(b.member, -1) for b in run), dtype=np.intp, count=len(run))
    known = slots >= 0
    if not known.all():
        for beat in run:
            if beat.member not in by_id:
                fencing.unknown(draft, beat.member, fencing.ANYBODY)
        run = [beat for beat, there in zip(run, known.tolist(), strict=True) if there]
        slots, session = slots[known], session[known]
    if not run:
        return
    again, above = draft.soft.beat(slots, run, session)
    for slot in again:
        draft.ask(slot)
    for slot in above:
        if slot not in draft.recovering:
            fencing.fence(draft, slot, "a heartbeat of an epoch the group never gave")


def _settle(draft: Draft) -> None:
    """After all events: generation, placement, one step of every touched member."""
    draft.drop_gone()
    if draft.dead:
        deletion.wind_up(draft)
        return
    lag.keep_warm(draft)
    if draft.again and not deadlines.is_releasing(draft):
        draft.again = False
        draft.causes.add("all releases acknowledged")
    if deadlines.follow_up_is_due(draft):
        if deadlines.is_pending(draft):
            draft.due = True  # a retriable failure of the assignor
        else:
            draft.chances.add("follow-up")
    if draft.chances and (draft.causes or target.could_change(draft)):
        draft.causes.absorb(draft.chances)
    fresh = bool(draft.causes) and bool(draft.roster or draft.group.roster)
    if fresh:
        _open_generation(draft)
    if not draft.roster and deadlines.is_pending(draft):
        _place_nothing(draft)
    if (fresh or draft.due or _gate_opened(draft)) and target.due(draft):
        target.place(draft)
        draft.changed = True
    if not (draft.changed or draft.answer or draft.touched or draft.acknowledged):
        return
    addressed.write(draft, reconcile.settle(draft))
    draft.acknowledged.clear()


def _open_generation(draft: Draft) -> None:
    waits = no_tasks(draft.id)
    if not places(draft.table, draft.assignor):
        parts = [str(draft.causes), waits]  # nothing was decided of what happened before
    elif deadlines.is_pending(draft):
        # It may be pending for ever, with new causes in every batch: the first are kept.
        before = cut(draft.cause.removesuffix(waits).removesuffix("; "), CAUSE_CHARS_MAX)
        if draft.causes.tell_who(causes.JOINED) and deadlines.is_starting(draft):
            # One list of all who came, not one for each batch.
            before = causes.without(before, causes.JOINED)
            for slot in draft.roster:
                draft.causes.member(causes.JOINED, draft.member(slot).id)
        parts = [before, str(draft.causes)]
    else:
        parts = [str(draft.causes)]
    if not deadlines.is_pending(draft):
        draft.generation += 1
        draft.moves = ()
    draft.cause = "; ".join(filter(None, parts))
    draft.followup_ms = None
    draft.changed = True


def _place_nothing(draft: Draft) -> None:
    """Without members there is nothing to decide, and nothing to wait for."""
    draft.target_generation = draft.generation
    draft.generation_ms = draft.soft.clock_ms
    draft.memory, draft.again, draft.delay_until_ms = None, False, None


def _gate_opened(draft: Draft) -> bool:
    """Whether a generation that had to wait may be placed since this batch."""
    return deadlines.is_shut(draft.group) and not deadlines.is_shut(draft)
