"""Lags: how far copies are behind, and which have caught up, as members or an exporter report.

The newest report of a lag or of "ready" counts. For a copy it is valid until the member loses the
copy. For other state (files on a disk, an active that restores) it is believed for
`probing.rebalance.interval.ms`. A copy of a task that its member just released has caught up.

A new lag replaces a known one only if it is on the other side of `acceptable.recovery.lag`, is at
most half or at least twice the known one, or if half the time for which that one is believed has
passed. So a fleet that reports every few seconds does not change the group's snapshot each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from muster.assignor.model import BoolArray
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Lag, Origin
from muster.protocol.ids import Role
from muster.protocol.tasks import EMPTY, IntArray, TaskSet
from muster.state import takeovers
from muster.state.causes import Causes
from muster.state.draft import Draft
from muster.state.group import Group
from muster.state.liveness import FENCED
from muster.state.ownership import (
    COPY_ROLES,
    NO_MEMBER,
    Codes,
    Lags,
    contains,
    slot_of,
    task_of,
    union,
)
from muster.state.ownership import codes as codes_of
from muster.state.printable import cut

OFFSETS_MAX = 2**62
"""Larger lags are refused: no topic is this long."""


FEW_COPIES = 8
NAME_CHARS_MAX = 120
"""Messages quote at most this much of a task's name."""


def absorb(
    draft: Draft, member: str, lags: Sequence[Lag], origin: Origin, ready: TaskSet = EMPTY
) -> None:
    """Absorb an event's lags; invalid ones are refused with one dead letter for the event.

    Args:
        draft: the group.
        member: the member that has the copies.
        lags: the lags.
        origin: where the event was read.
        ready: tasks that the same event reports as ready; their lags are ignored.
    """
    if not lags:
        return
    slot = draft.roster.by_id.get(member)
    if slot is None:
        message = f"lags of {member}, which is not a member"
        draft.reject(origin, DeadLetter.UNKNOWN_MEMBER_ID, message)
        return
    news: dict[int, int] = {}
    wrong = ""
    refused = 0
    for task, offsets in lags:
        index = draft.table.find(task)
        if index is None or not 0 <= offsets <= OFFSETS_MAX:
            refused += 1
            if not wrong:
                reason = "no such task" if index is None else f"expected 0 to {OFFSETS_MAX}"
                wrong = f"lag {offsets} of {cut(str(task), NAME_CHARS_MAX)} on {member}: {reason}"
            continue
        if task not in ready:
            news[index << 32 | slot] = offsets
    if wrong:
        more = f"; so are {refused - 1} more lags of this event" if refused > 1 else ""
        draft.reject(origin, DeadLetter.INVALID_REQUEST, f"{wrong}{more}")
    if news:
        _merge(draft, news, origin.at_ms if origin.offset >= 0 else draft.sessions.clock_ms)


def _merge(draft: Draft, news: dict[int, int], at_ms: int) -> None:
    known, limit = draft.owned.lags, draft.settings.acceptable_recovery_lag
    young_ms = draft.settings.probing_rebalance_interval_ms // 2
    if all(_is_repeated(known, *each, at_ms - young_ms) for each in news.items()):
        return
    pair = np.array(sorted(news), dtype=np.int64)
    offsets = np.array([news[p] for p in pair.tolist()], dtype=np.int64)
    place = np.minimum(np.searchsorted(known.pair, pair), max(len(known.pair) - 1, 0))
    has_old = known.pair[place] == pair if len(known.pair) else np.zeros(len(pair), dtype=np.bool_)
    old = np.where(has_old, known.offsets[place] if len(known.pair) else 0, -1)
    old_ms = np.where(has_old, known.reported_ms[place] if len(known.pair) else 0, 0)
    ages = has_old.copy()  # a lag that is new counts in any case
    if has_old.any():
        for copies in draft.owned.copies.values():
            for part in copies:
                ages &= ~contains(part, pair)
    stale = ages & (at_ms - old_ms > draft.settings.probing_rebalance_interval_ms // 2)
    differs = (old > limit) != (offsets > limit)
    # Halves, because twice `OFFSETS_MAX` is more than an int64 holds.
    differs |= np.maximum(offsets, old) // 2 >= np.maximum(np.minimum(offsets, old), 1)
    new = ~has_old | ((differs | stale) & (at_ms >= old_ms))
    if not new.any():
        return
    near = pair[new & (offsets <= limit)]
    near = near[~_are_caught_up(draft, near)]
    stays = np.ones(len(known.pair), dtype=np.bool_)
    stays[place[new & has_old]] = False
    merged = np.concatenate((known.pair[stays], pair[new]))
    order = np.argsort(merged, kind="stable")
    draft.owned.lags = Lags(
        merged[order],
        np.concatenate((known.offsets[stays], offsets[new]))[order],
        np.concatenate((known.reported_ms[stays], np.full(int(new.sum()), at_ms)))[order],
    )
    late = pair[new & (offsets > limit) & ~(has_old & (old > limit))]
    _promote(draft, near, late)


def _is_repeated(known: Lags, pair: int, offsets: int, since_ms: int) -> bool:
    """Whether the same lag of the pair has been reported since then."""
    place = int(np.searchsorted(known.pair, pair))
    if place == len(known.pair) or known.pair[place] != pair:
        return False
    return bool(known.offsets[place] == offsets and known.reported_ms[place] >= since_ms)


def absorb_ready(draft: Draft, pairs: Codes) -> None:
    """Absorb that a member reports these copies as ready."""
    news = np.setdiff1d(pairs, draft.owned.ready, assume_unique=True)
    if len(news) == 0:
        return
    before = caught_up(draft)
    draft.owned.ready = union(draft.owned.ready, news)
    overtaken = np.isin(draft.owned.lags.pair, news, assume_unique=True)
    overtaken &= draft.owned.lags.offsets > draft.settings.acceptable_recovery_lag
    draft.owned.lags = draft.owned.lags.where(~overtaken)
    near = np.setdiff1d(news, before, assume_unique=True)
    _promote(draft, near, near[:0])


def end(draft: Draft, gone: Codes) -> None:
    """These copies were given up: what members reported of them ends with them."""
    draft.owned.ready = np.setdiff1d(draft.owned.ready, gone, assume_unique=True)
    ended = np.isin(draft.owned.lags.pair, gone, assume_unique=True)
    draft.owned.lags = draft.owned.lags.where(~ended)


def forget(draft: Draft, slot: int) -> None:
    """A new process stands for a member: it has not reported anything of its copies yet."""
    draft.owned.ready = draft.owned.ready[slot_of(draft.owned.ready) != slot]
    others = slot_of(draft.owned.lags.pair) != slot
    draft.owned.lags = draft.owned.lags.where(others)


def caught_up(draft: Draft) -> Codes:
    """Copies that have caught up: reported ready, or with a lag that is small enough."""
    limit = draft.settings.acceptable_recovery_lag
    near = believed(draft) & (draft.owned.lags.offsets <= limit)
    late = draft.owned.lags.pair[
        draft.owned.lags.offsets > limit
    ]  # reported after the copy was ready
    return union(
        np.setdiff1d(draft.owned.ready, late, assume_unique=True),
        draft.owned.lags.pair[near],
    )


def believed(draft: Draft) -> BoolArray:
    """bool[K]: lags of copies that members keep, and others that are not too old."""
    lags = draft.owned.lags
    young = (
        draft.sessions.clock_ms - lags.reported_ms <= draft.settings.probing_rebalance_interval_ms
    )
    valid: BoolArray = young
    if not young.all():
        valid = young | np.isin(lags.pair, _copies(draft), assume_unique=True)
    return valid


def _are_caught_up(draft: Draft, asked: Codes) -> BoolArray:
    """bool[K]: which of the asked pairs are among `caught_up`, for few of them."""
    offsets, are_believed = _lags_of(draft, asked)
    limit = draft.settings.acceptable_recovery_lag
    ready = contains(draft.owned.ready, asked) & (offsets <= limit)
    caught_up: BoolArray = ready | (are_believed & (offsets <= limit))
    return caught_up


def _lags_of(draft: Draft, asked: Codes) -> tuple[Codes, BoolArray]:
    """The lag of each asked pair (-1 = it has none), and which of these are among `believed`."""
    lags = draft.owned.lags
    has = contains(lags.pair, asked)
    offsets, valid = np.full(len(asked), -1, dtype=np.int64), has.copy()
    if has.any():
        place = np.searchsorted(lags.pair, asked[has])
        offsets[has] = lags.offsets[place]
        age_ms = draft.sessions.clock_ms - lags.reported_ms[place]
        valid[has] = age_ms <= draft.settings.probing_rebalance_interval_ms
    if not valid[has].all():
        for copies in draft.owned.copies.values():
            for part in copies:
                valid |= has & contains(part, asked)
    return offsets, valid


def unstarted(draft: Draft) -> Codes:
    """Stateful actives moving to a member that has not reported on them.

    No member runs them, or the one that does has been asked to stop.
    """
    leaves = (draft.owned.holder == NO_MEMBER) | draft.owned.revoking
    aims = (draft.target.active != NO_MEMBER) & (draft.target.active != draft.owned.holder)
    waits = draft.table.stateful & leaves & aims
    tasks = np.flatnonzero(waits).astype(np.int32)
    if len(tasks) == 0:
        return codes_of(tasks, tasks)
    reported = union(draft.owned.ready, draft.owned.lags.pair[believed(draft)])
    return np.setdiff1d(codes_of(tasks, draft.target.active[tasks]), reported, assume_unique=True)


def _copies(group: Group | Draft) -> Codes:
    """Copies that members have, or have in the target."""
    return reduce(union, (part for copies in group.owned.copies.values() for part in copies))


# ------------------------------------------------------------------- generations that lags open


def _promote(draft: Draft, near: Codes, late: Codes) -> None:
    """Open a generation if a copy may take over now that could not before.

    Args:
        draft: the group.
        near: copies that have just caught up.
        late: copies that were just reported to be behind.
    """
    learners = np.intersect1d(near, draft.owned.copies[Role.LEARNER].kept, assume_unique=True)
    aims = takeovers.awaited(draft)
    awaited = np.setdiff1d(np.intersect1d(near, aims, assume_unique=True), learners)
    _add_ready(draft, draft.causes, union(_promotable(draft, learners), awaited))
    candidates = union(_rescues(draft, near, late), _disk_states(draft, near, aims))
    _add_ready(draft, draft.possible_causes, candidates)


def _add_ready(draft: Draft, causes: Causes, pairs: Codes) -> None:
    for pair in pairs.tolist():
        kind = "copy"
        for role in COPY_ROLES:
            kind = str(role) if pair in draft.owned.copies[role].kept else kind
        task, slot = pair >> 32, pair & 0xFFFFFFFF
        causes.ready(kind, str(draft.table.task(task)), draft.member(slot).id)


def _promotable(draft: Draft, learners: Codes) -> Codes:
    """Learners that may take over now.

    Without `learner.partial.rebalance` all learners of a member must have caught up.
    """
    if draft.settings.learner_partial_rebalance or len(learners) == 0:
        return learners
    waiting = np.setdiff1d(draft.owned.copies[Role.LEARNER].kept, caught_up(draft))
    return learners[~np.isin(slot_of(learners), slot_of(waiting))]


def _rescues(draft: Draft, near: Codes, late: Codes) -> Codes:
    """Caught-up copies of tasks whose owner is restoring or has not started yet."""
    owned = np.flatnonzero(draft.target.active != NO_MEMBER).astype(np.int32)
    owners = codes_of(owned, draft.target.active[owned])
    offsets, are_believed = _lags_of(draft, owners)
    behind = are_believed & (offsets > draft.settings.acceptable_recovery_lag)
    restoring = union(owners[behind], unstarted(draft))
    if len(restoring) == 0:
        return restoring
    news = np.intersect1d(late, restoring, assume_unique=True)
    warm = union(near, usable(draft, caught_up(draft), task_of(news)) if len(news) else near[:0])
    return np.setdiff1d(usable(draft, warm, task_of(restoring)), owners, assume_unique=True)


def usable(draft: Draft, pairs: Codes, tasks: IntArray) -> Codes:
    """The copies of these tasks on members that are neither draining nor away."""
    selected: Codes = pairs[np.isin(task_of(pairs), tasks)]
    slots = slot_of(selected)
    if len(slots) <= FEW_COPIES:
        # Not by `columns`: to renew them for each of thousands of joins would cost more.
        members = [draft.roster.by_slot[slot] for slot in slots.tolist()]
        accepts = [member is None or not (member.draining or member.away) for member in members]
        return selected[np.array(accepts, dtype=np.bool_)]
    columns = draft.roster.columns
    return selected[~columns.draining[slots] & ~columns.away[slots]]


def _disk_states(draft: Draft, near: Codes, aims: Codes) -> Codes:
    """Caught-up state on the disk of a member that restores another task for a takeover."""
    if len(aims) == 0 or len(near) == 0:
        return near[:0]
    pairs: Codes = near[np.isin(slot_of(near), slot_of(aims))]
    pairs = np.setdiff1d(pairs, _copies(draft), assume_unique=True)
    elsewhere: Codes = pairs[draft.target.active[task_of(pairs)] != slot_of(pairs)]
    return elsewhere


# ------------------------------------------------------------------------- after every batch


def settle(draft: Draft) -> None:
    """Carry ready copies and lags over this batch's changes; drop those that lost their copy."""
    copies = _copies(draft)
    draft.owned.ready = np.intersect1d(draft.owned.ready, copies, assume_unique=True)
    if len(draft.owned.lags.pair) == 0:
        return
    if draft.table is draft.group.table:
        _pass_on(draft, copies)
    if draft.changed:
        stays = believed(draft)
        draft.owned.lags = draft.owned.lags.where(stays)


def _pass_on(draft: Draft, copies: Codes) -> None:
    """Drop the lags of copies that are gone.

    If the member runs the task now, the lag stays and is believed for a limited time from now.
    """
    before, runs = draft.group, _running(draft)
    gone = np.setdiff1d(union(_copies(before), _running(before)), copies, assume_unique=True)
    freed = np.isin(draft.owned.lags.pair, gone, assume_unique=True)
    if not freed.any():
        return
    begun = freed & np.isin(draft.owned.lags.pair, np.setdiff1d(runs, _running(before)))
    reported_ms = np.where(begun, draft.sessions.clock_ms, draft.owned.lags.reported_ms)
    stays = ~freed | np.isin(draft.owned.lags.pair, runs, assume_unique=True)
    draft.owned.lags = draft.owned.lags._replace(reported_ms=reported_ms).where(stays)


def _running(group: Group | Draft) -> Codes:
    """(task, slot) of all actives and their holders."""
    owned = np.flatnonzero(group.owned.holder != NO_MEMBER).astype(np.int32)
    return codes_of(owned, group.owned.holder[owned])


def mark_released_ready(draft: Draft) -> None:
    """Mark copies as ready whose member released the running task in this batch.

    Where such a copy is a learner the task belongs back to the member (its successor is drained,
    say): the copy may become active at once.
    """
    before = draft.group
    if draft.table is not before.table:
        return
    gone = np.flatnonzero(
        before.owned.revoking & (draft.owned.holder != before.owned.holder)
    ).astype(np.int32)
    if len(gone) == 0:
        return
    fenced = (before.sessions.flags & FENCED) != 0
    gone = gone[~fenced[before.owned.holder[gone]]]
    wanted = union(*(draft.owned.copies[role].wanted for role in COPY_ROLES))
    warm = np.intersect1d(codes_of(gone, before.owned.holder[gone]), wanted, assume_unique=True)
    late = draft.owned.lags.offsets > draft.settings.acceptable_recovery_lag
    late &= believed(draft)
    warm = np.setdiff1d(warm, draft.owned.lags.pair[late], assume_unique=True)
    news = np.setdiff1d(warm, draft.owned.ready, assume_unique=True)
    draft.owned.ready = union(draft.owned.ready, warm)
    learners = np.intersect1d(news, draft.owned.copies[Role.LEARNER].wanted, assume_unique=True)
    _add_ready(draft, draft.causes, _promotable(draft, learners))
