"""Heartbeats: those that the group reads itself, and those that its ticks carry.

A tick carries the newest heartbeat of each member that heartbeats apart, and vouches for a span of
broker time (`protocol.tick_covers`). The group absorbs these heartbeats before it moves the session
clock, so no member that wrote a heartbeat in that span expires.

A member offers to heartbeat apart when it joins. The coordinator asks it to once a tick has shown,
within the last two sessions, that a clock listens. So a job without the topic, or without the right
to read it, gets all heartbeats from `muster.membership`. The coordinator never asks a member to
stop, because no heartbeat of it would count until the member had read that.

The member's side: `worker/session_messages.py` chooses the topic of a heartbeat; `membership.py`
tells a member that joins to heartbeat apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import BoolArray
from muster.protocol.events import Tick
from muster.protocol.ids import MemberId
from muster.protocol.tick_covers import Cover
from muster.state import deafness, fencing, refusal_answers, session_clock
from muster.state.draft import Draft
from muster.state.liveness import (
    AGREED,
    APART,
    ASKED,
    BROKERS_DIFFER_MS,
    DEAF,
    FENCED,
    MISSES_OF_A_LOSS,
    MUTE,
    OFFERED,
    REFUSED,
    UNREAD,
)
from muster.state.roster import Roster

Numbers = NDArray[np.int64]
Slots = NDArray[np.intp]
_BITS = np.array([n.bit_length() for n in range(256)], dtype=np.uint8)
"""Bits of a number of misses in a row; they grow at the 2nd, 4th, 8th."""


def absorb_cover(draft: Draft, tick: Tick) -> None:
    """Absorb the heartbeats in a tick, and move the session clock by the time its cover spans."""
    if tick.cover is None:
        if draft.sessions.agreement is not None:
            draft.sessions.renew_wake_up()  # a clock that reads no heartbeats wrote the tick
        return
    sessions, cover = draft.sessions, tick.cover
    sessions.listened_ms = max(sessions.listened_ms, tick.origin.at_ms)
    session_before_ms = sessions.session_ms
    if sessions.is_apart:
        cover_span = (cover.from_ms, cover.through_ms, tick.origin.at_ms)
        session_clock.cover(sessions, *cover_span, session_clock.longest_step_ms(draft))
    if tick.refused:
        _note_refused(draft, cover)
    elif cover.heard:
        _hear(draft, cover, session_before_ms)


def _note_refused(draft: Draft, cover: Cover) -> None:
    """Note whose heartbeats are refused, but for those that were written before the member joined.

    The join counted, so such a heartbeat lengthens the lease of no process by more than the join.
    """
    find = draft.roster.by_id.get
    for heard in cover.heard:
        slot = find(MemberId(heard.member))
        newest_ms = cover.through_ms - 1_000 * heard.age_s + BROKERS_DIFFER_MS
        if slot is not None and newest_ms >= draft.member(slot).joined_ms:
            fencing.note_refused(draft, heard.member)


def ask_to_write_apart(draft: Draft, tick: Tick) -> None:
    """Ask the members that offered it to heartbeat apart from now on."""
    if tick.cover is None:
        return
    flags = draft.sessions.flags
    offering = np.flatnonzero((flags & (APART | OFFERED | FENCED)) == OFFERED).tolist()
    slots = [slot for slot in offering if not draft.member(slot).away]  # they get no record
    if slots:
        flags[slots] |= APART
        draft.addressed.update(slots)


def _hear(draft: Draft, cover: Cover, session_before_ms: int) -> None:
    members, ages, epochs, digests = zip(*cover.heard, strict=True)
    slots = _slots_of(draft.roster, members)
    age_ms = 1_000 * np.array(ages, dtype=np.int64)
    # An age above the interval is that of a heartbeat before a leave or an expiry.
    is_unknown = (slots < 0) & (age_ms <= draft.settings.heartbeat_interval_ms)
    unknown = np.flatnonzero(is_unknown).tolist()
    refusal_answers.answer_unknowns(draft, (members[index] for index in unknown))
    sessions = draft.sessions
    # A member that joined in this batch has no record yet: the heartbeat is of a session before.
    counts = (slots >= 0) & (slots == _slots_of(draft.group.roster, members))
    # A member that left for a while wrote its heartbeat before that.
    counts[counts] = ~draft.roster.columns.away[slots[counts]]
    slots = slots[counts]
    if not len(slots):
        return
    heard_ms = np.maximum(sessions.session_ms - age_ms[counts], session_before_ms)
    beat(
        draft,
        slots,
        np.array(epochs, dtype=np.int64)[counts],
        np.array(digests, dtype=np.uint64)[counts],
        np.maximum(heard_ms, sessions.last_ms[slots]),
    )
    sessions.reset_earliest()


def _slots_of(roster: Roster, members: tuple[str, ...]) -> Slots:
    """The slot of each member; -1 = it is no member."""
    find = roster.by_id.get
    return np.array([find(member, -1) for member in members], dtype=np.intp)


def beat(
    draft: Draft,
    slots: Slots,
    epochs: Numbers,
    digests: NDArray[np.uint64],
    session_ms: Numbers,
) -> None:
    """Absorb heartbeats of members, oldest first; `session_ms` is the session time of each.

    A heartbeat *misses* when its digest is not that of what the group granted, or when its member
    owes a report. A member that misses too often is asked to report (`_count_misses`).
    """
    sessions = draft.sessions
    flags = sessions.flags
    muted = (flags[slots] & MUTE) != 0
    sessions.last_ms[slots[~muted]] = session_ms[~muted]
    flags[slots[~muted]] &= 0xFFFF & ~REFUSED
    shows_reading = ((flags[slots] & (UNREAD | DEAF)) != 0) & ~muted
    is_miss = (digests != sessions.digest[slots]) | ((flags[slots] & ASKED) != 0) | muted
    claims_higher_epoch = (epochs > sessions.epoch[slots]) & ~muted
    newest_reversed = np.unique(slots[::-1], return_index=True)[1]
    newest = len(slots) - 1 - newest_reversed  # index of each sender's newest heartbeat
    agreeing = slots[newest][~is_miss[newest]]
    flags[slots[newest]] &= 0xFFFF & ~AGREED
    flags[agreeing] |= AGREED
    for slot in np.unique(slots[shows_reading]).tolist():
        deafness.note_reading(draft, slot)
    _count_misses(draft, slots, is_miss, agreeing)
    for slot in np.unique(slots[claims_higher_epoch]).tolist():
        if slot not in draft.recovery.asked:
            fencing.fence(draft, slot, "a heartbeat of an epoch the group never gave")


def _count_misses(draft: Draft, slots: Slots, is_miss: BoolArray, agreeing: Slots) -> None:
    """Count the misses of heartbeats, and ask members that have missed too often.

    A member is asked at the second miss in a row, then at the fourth, the eighth and so on: soon
    after a loss, and rarely while the coordinator works off a backlog.

    Args:
        draft: of the group.
        slots: who wrote each heartbeat, oldest first.
        is_miss: whether it misses.
        agreeing: the members whose newest heartbeat does not miss.
    """
    misses = draft.sessions.misses
    misses_before = misses.copy()
    misses[slots[~is_miss]] = 0
    missing_slots = np.unique(slots[is_miss])
    new_misses = np.bincount(slots[is_miss], minlength=len(misses))[missing_slots]
    total_misses = np.minimum(misses[missing_slots].astype(np.int64) + new_misses, 255)
    misses[missing_slots] = total_misses.astype(np.uint8)
    misses[agreeing] = 0
    is_asked = (misses >= MISSES_OF_A_LOSS) & (_BITS[misses] > np.maximum(_BITS[misses_before], 1))
    for slot in np.flatnonzero(is_asked).tolist():
        draft.ask(slot)
