"""How far copies are behind, and which have caught up: as told by members or by an exporter.

A member says so in two ways: a lag (in a join, a report or on `muster.lag`), or "ready" for a
learner or standby (in a report). The newest word counts. It stays true while the member keeps the
copy, and ends with it; what is told of anything else (state on a disk, a running task that
restores) is believed for `probing.rebalance.interval.ms`. Who gives up a running task and keeps a
copy of it has caught up.

Lags are kept as small arrays. A new value replaces a known one when it says something new: when it
crosses `acceptable.recovery.lag`, halves or doubles, or when the known one is half-way to being too
old. So a fleet that reports every few seconds does not make the group's record new each time.
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
from muster.state import nexts
from muster.state.causes import Causes
from muster.state.draft import Draft
from muster.state.group import COPY_ROLES, NO_MEMBER, Codes, Group, Lags, slot_of, task_of, union
from muster.state.group import codes as codes_of
from muster.state.liveness import FENCED
from muster.state.texts import cut

OFFSETS_MAX = 2**62
"""No topic is this long; more is a mistake of the member that says so."""


NAME_CHARS_MAX = 120
"""So much of a task's name is quoted."""


def tell(
    draft: Draft, member: str, told: Sequence[Lag], origin: Origin, ready: TaskSet = EMPTY
) -> None:
    """Take lags in; refuse what cannot be, with one letter for all of an event.

    Args:
        draft: the group.
        member: whose copies.
        told: the lags.
        origin: where they were read.
        ready: what the same event says is ready, which goes before a lag in it.
    """
    if not told:
        return
    slot = draft.by_id.get(member)
    if slot is None:
        message = f"lags of {member}, which is not a member"
        draft.reject(origin, DeadLetter.UNKNOWN_MEMBER_ID, message)
        return
    news: dict[int, int] = {}
    wrong = ""
    refused = 0
    for task, offsets in told:
        index = draft.table.find(task)
        if index is None or not 0 <= offsets <= OFFSETS_MAX:
            refused += 1
            if not wrong:
                what = "no such task" if index is None else f"expected 0 to {OFFSETS_MAX}"
                wrong = f"lag {offsets} of {cut(str(task), NAME_CHARS_MAX)} on {member}: {what}"
            continue
        if task not in ready:
            news[index << 32 | slot] = offsets
    if wrong:
        more = f"; so are {refused - 1} more lags of this event" if refused > 1 else ""
        draft.reject(origin, DeadLetter.INVALID_REQUEST, f"{wrong}{more}")
    if news:
        _merge(draft, news, origin.at_ms if origin.offset >= 0 else draft.soft.clock_ms)


def _merge(draft: Draft, news: dict[int, int], at_ms: int) -> None:
    known, limit = draft.lags, draft.settings.acceptable_recovery_lag
    pair = np.array(sorted(news), dtype=np.int64)
    offsets = np.array([news[p] for p in pair.tolist()], dtype=np.int64)
    place = np.minimum(np.searchsorted(known.pair, pair), max(len(known.pair) - 1, 0))
    found = known.pair[place] == pair if len(known.pair) else np.zeros(len(pair), dtype=np.bool_)
    old = np.where(found, known.offsets[place] if len(known.pair) else 0, -1)
    old_ms = np.where(found, known.told_ms[place] if len(known.pair) else 0, 0)
    ages = ~np.isin(pair, _copies(draft), assume_unique=True)
    stale = ages & (at_ms - old_ms > draft.settings.probing_rebalance_interval_ms // 2)
    differs = (old > limit) != (offsets > limit)
    differs |= np.maximum(offsets, old) >= 2 * np.maximum(np.minimum(offsets, old), 1)
    new = ~found | ((differs | stale) & (at_ms >= old_ms))
    if not new.any():
        return
    before = caught_up(draft)
    stays = ~np.isin(known.pair, pair[new], assume_unique=True)
    merged = np.concatenate((known.pair[stays], pair[new]))
    order = np.argsort(merged, kind="stable")
    draft.lags = Lags(
        merged[order],
        np.concatenate((known.offsets[stays], offsets[new]))[order],
        np.concatenate((known.told_ms[stays], np.full(int(new.sum()), at_ms)))[order],
    )
    draft.changed = True
    near = np.setdiff1d(pair[new & (offsets <= limit)], before, assume_unique=True)
    late = pair[new & (offsets > limit) & ~(found & (old > limit))]
    _promote(draft, near, late)


def say_ready(draft: Draft, pairs: Codes) -> None:
    """A member says that these copies of its own have caught up."""
    news = np.setdiff1d(pairs, draft.ready, assume_unique=True)
    if len(news) == 0:
        return
    before = caught_up(draft)
    draft.ready = union(draft.ready, news)
    overtaken = np.isin(draft.lags.pair, news, assume_unique=True)
    overtaken &= draft.lags.offsets > draft.settings.acceptable_recovery_lag
    draft.lags = Lags(*(part[~overtaken] for part in draft.lags))
    draft.changed = True
    near = np.setdiff1d(news, before, assume_unique=True)
    _promote(draft, near, near[:0])


def caught_up(draft: Draft) -> Codes:
    """Copies that have caught up, by their member's own word or by their lag."""
    limit = draft.settings.acceptable_recovery_lag
    near = believed(draft) & (draft.lags.offsets <= limit)
    late = draft.lags.pair[draft.lags.offsets > limit]  # told since the member said that it is
    return union(np.setdiff1d(draft.ready, late, assume_unique=True), draft.lags.pair[near])


def believed(draft: Draft) -> BoolArray:
    """bool[K]: lags of copies that members keep, and others that are not too old."""
    lags = draft.lags
    young = draft.soft.clock_ms - lags.told_ms <= draft.settings.probing_rebalance_interval_ms
    answer: BoolArray = young
    if not young.all():
        answer = young | np.isin(lags.pair, _copies(draft), assume_unique=True)
    return answer


def unstarted(draft: Draft) -> Codes:
    """Stateful actives that no member runs, on their way to a member that never said a lag of them.

    That member is no owner yet: its copy is as far behind as any that has not caught up.
    """
    waits = draft.table.stateful & (draft.target != NO_MEMBER) & (draft.holder == NO_MEMBER)
    tasks = np.flatnonzero(waits).astype(np.int32)
    if len(tasks) == 0:
        return codes_of(tasks, tasks)
    said = union(draft.ready, draft.lags.pair[believed(draft)])
    return np.setdiff1d(codes_of(tasks, draft.target[tasks]), said, assume_unique=True)


def _copies(group: Group | Draft) -> Codes:
    """Copies that members have, or are to get."""
    copies = group.copies.values() if isinstance(group, Draft) else (group.standby, group.learner)
    return reduce(union, (part for each in copies for part in each))


# ------------------------------------------------------------------------------ what follows


def _promote(draft: Draft, near: Codes, late: Codes) -> None:
    """Open a generation if some copy may take over that could not before.

    Args:
        draft: the group.
        near: copies that have just caught up.
        late: copies of which it was just told that they have not.
    """
    learners = np.intersect1d(near, draft.copies[Role.LEARNER].kept, assume_unique=True)
    aims = nexts.awaited(draft)
    awaited = np.setdiff1d(np.intersect1d(near, aims, assume_unique=True), learners)
    _note(draft, draft.causes, union(_released_together(draft, learners), awaited))
    found = union(_rescues(draft, near, late), _finds(draft, near, aims))
    _note(draft, draft.chances, found)


def _note(draft: Draft, causes: Causes, pairs: Codes) -> None:
    for pair in pairs.tolist():
        what = "copy"
        for role in COPY_ROLES:
            what = str(role) if pair in draft.copies[role].kept else what
        task, slot = pair >> 32, pair & 0xFFFFFFFF
        causes.ready(what, str(draft.table.task(task)), draft.member(slot).id)


def _released_together(draft: Draft, learners: Codes) -> Codes:
    """Learners that may take over now: with `learner.partial.rebalance` off all of a member."""
    if draft.settings.learner_partial_rebalance or len(learners) == 0:
        return learners
    waiting = np.setdiff1d(draft.copies[Role.LEARNER].kept, caught_up(draft))
    return learners[~np.isin(slot_of(learners), slot_of(waiting))]


def _rescues(draft: Draft, near: Codes, late: Codes) -> Codes:
    """Caught-up copies of tasks whose owner says that it is restoring, or has not started yet."""
    owned = np.flatnonzero(draft.target != NO_MEMBER).astype(np.int32)
    owners = codes_of(owned, draft.target[owned])
    limit = draft.settings.acceptable_recovery_lag
    behind = draft.lags.pair[believed(draft) & (draft.lags.offsets > limit)]
    restoring = union(np.intersect1d(behind, owners, assume_unique=True), unstarted(draft))
    if len(restoring) == 0:
        return restoring
    news = np.intersect1d(late, restoring, assume_unique=True)
    asked = union(near, usable(draft, caught_up(draft), task_of(news)) if len(news) else near[:0])
    found = usable(draft, asked, task_of(restoring))
    return np.setdiff1d(found, owners, assume_unique=True)


def usable(draft: Draft, pairs: Codes, tasks: IntArray) -> Codes:
    """Those of some copies that are of some tasks, on members that may be given something."""
    free = ~draft.columns.draining & ~draft.columns.away
    found: Codes = pairs[np.isin(task_of(pairs), tasks) & free[slot_of(pairs)]]
    return found


def _finds(draft: Draft, near: Codes, aims: Codes) -> Codes:
    """State found on the disk of a member that restores something else meanwhile."""
    if len(aims) == 0 or len(near) == 0:
        return near[:0]
    found: Codes = near[np.isin(slot_of(near), slot_of(aims))]
    found = np.setdiff1d(found, _copies(draft), assume_unique=True)
    elsewhere: Codes = found[draft.target[task_of(found)] != slot_of(found)]
    return elsewhere


# ------------------------------------------------------------------------- after every batch


def settle(draft: Draft) -> None:
    """Carry what is known through what this batch changed; drop what is known of nothing."""
    copies = _copies(draft)
    draft.ready = np.intersect1d(draft.ready, copies, assume_unique=True)
    if len(draft.lags.pair) == 0:
        return
    if draft.table is draft.group.table:
        _pass_on(draft, copies)
    if draft.changed:
        stays = believed(draft)
        draft.lags = Lags(*(part[stays] for part in draft.lags))


def _pass_on(draft: Draft, copies: Codes) -> None:
    """What was said of a copy ends with it: no copy follows the task there any more.

    Of one that runs the task now it ages from now on.
    """
    before, runs = draft.group, _running(draft)
    gone = np.setdiff1d(union(_copies(before), _running(before)), copies, assume_unique=True)
    freed = np.isin(draft.lags.pair, gone, assume_unique=True)
    if not freed.any():
        return
    begun = freed & np.isin(draft.lags.pair, np.setdiff1d(runs, _running(before)))
    told_ms = np.where(begun, draft.soft.clock_ms, draft.lags.told_ms)
    stays = ~freed | np.isin(draft.lags.pair, runs, assume_unique=True)
    draft.lags = Lags(*(part[stays] for part in draft.lags._replace(told_ms=told_ms)))
    draft.changed |= bool(begun.any() or not stays.all())


def _running(group: Group | Draft) -> Codes:
    """Actives and who has them."""
    owned = np.flatnonzero(group.holder != NO_MEMBER).astype(np.int32)
    return codes_of(owned, group.holder[owned])


def keep_warm(draft: Draft) -> None:
    """Who gave up a running task in this batch and is to keep a copy of it has caught up."""
    before = draft.group
    if draft.table is not before.table:
        return
    gone = np.flatnonzero(before.revoking & (draft.holder != before.holder)).astype(np.int32)
    if len(gone) == 0:
        return
    fenced = (before.soft.flags & FENCED) != 0
    gone = gone[~fenced[before.holder[gone]]]
    wanted = union(*(draft.copies[role].wanted for role in COPY_ROLES))
    warm = np.intersect1d(codes_of(gone, before.holder[gone]), wanted, assume_unique=True)
    late = draft.lags.offsets > draft.settings.acceptable_recovery_lag
    late &= believed(draft)
    warm = np.setdiff1d(warm, draft.lags.pair[late], assume_unique=True)
    draft.ready = union(draft.ready, warm)
