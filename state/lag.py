"""Lags: how far copies are behind, and which have caught up, as members or an exporter report.

The newest report of a lag or of "ready" counts. For a copy it is valid until the member loses the
copy. For other state (files on a disk, an active that restores) it is believed for
`probing.rebalance.interval.ms`; the report that gives a task up may say how far its files are. A
copy of a task that its member just released has caught up.

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
from muster.protocol.events import Lag, Origin, Report
from muster.protocol.ids import Role
from muster.protocol.tasks import EMPTY, IntArray, TaskSet
from muster.state import next_actives
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
    pairs_of,
    slot_of,
    task_of,
    union,
)
from muster.state.ownership import codes as codes_of
from muster.state.printable import cut

OFFSETS_MAX = 2**62
"""Larger lags are refused: no topic is this long."""
FEW_COPIES = 8
"""Up to so many copies, their members are looked up one by one."""
NAME_CHARS_MAX = 120
"""Messages quote at most this much of a task's name."""


def absorb(
    draft: Draft, member: str, lags: Sequence[Lag], origin: Origin, ready: TaskSet = EMPTY
) -> None:
    """Absorb an event's lags; invalid ones are refused with one dead letter for the event.

    The lags of tasks that the same event reports as `ready` are ignored.
    """
    if not lags:
        return
    slot = draft.roster.by_id.get(member)
    if slot is None:
        message = f"lags of {member}, which is not a member"
        draft.reject(origin, DeadLetter.UNKNOWN_MEMBER_ID, message)
        return
    new_lags: dict[int, int] = {}
    first_error = ""
    refused_count = 0
    for task, offsets in lags:
        index = draft.table.find(task)
        if index is None or not 0 <= offsets <= OFFSETS_MAX:
            refused_count += 1
            if not first_error:
                reason = "no such task" if index is None else f"expected 0 to {OFFSETS_MAX}"
                name = cut(str(task), NAME_CHARS_MAX)
                first_error = f"lag {offsets} of {name} on {member}: {reason}"
            continue
        if task not in ready:
            new_lags[index << 32 | slot] = offsets
    if first_error:
        if refused_count > 1:
            first_error += f"; so are {refused_count - 1} more lags of this event"
        draft.reject(origin, DeadLetter.INVALID_REQUEST, first_error)
    if new_lags:
        _merge(draft, new_lags, origin.at_ms if origin.offset >= 0 else draft.sessions.clock_ms)


def _merge(draft: Draft, new_lags: dict[int, int], at_ms: int) -> None:
    known_lags, lag_limit = draft.owned.lags, draft.settings.acceptable_recovery_lag
    half_interval_ms = draft.settings.probing_rebalance_interval_ms // 2
    if all(
        _is_repeated(known_lags, *new_lag, at_ms - half_interval_ms) for new_lag in new_lags.items()
    ):
        return
    pair = np.array(sorted(new_lags), dtype=np.int64)
    offsets = np.array([new_lags[p] for p in pair.tolist()], dtype=np.int64)
    has_known = contains(known_lags.pair, pair)
    known_index = np.searchsorted(known_lags.pair, pair[has_known])
    known_offsets, known_ms = np.full(len(pair), -1, np.int64), np.zeros(len(pair), np.int64)
    known_offsets[has_known] = known_lags.offsets[known_index]
    known_ms[has_known] = known_lags.reported_ms[known_index]
    expires = has_known.copy()  # a lag that is new counts in any case
    if has_known.any():
        for copies in draft.owned.copies.values():
            for part in copies:
                expires &= ~contains(part, pair)
    is_stale = expires & (at_ms - known_ms > half_interval_ms)
    differs_enough = (known_offsets > lag_limit) != (offsets > lag_limit)
    # Halves, because twice `OFFSETS_MAX` is more than an int64 holds.
    differs_enough |= np.maximum(offsets, known_offsets) // 2 >= np.maximum(
        np.minimum(offsets, known_offsets), 1
    )
    is_accepted = ~has_known | ((differs_enough | is_stale) & (at_ms >= known_ms))
    if not is_accepted.any():
        return
    newly_caught_up = pair[is_accepted & (offsets <= lag_limit)]
    newly_caught_up = newly_caught_up[~_are_caught_up(draft, newly_caught_up)]
    remains = np.ones(len(known_lags.pair), dtype=np.bool_)
    remains[known_index[is_accepted[has_known]]] = False
    new = Lags(pair, offsets, np.full(len(pair), at_ms)).where(is_accepted)
    merged = Lags(*map(np.concatenate, zip(known_lags.where(remains), new, strict=True)))
    draft.owned.lags = merged.where(np.argsort(merged.pair, kind="stable"))
    newly_behind = pair[
        is_accepted & (offsets > lag_limit) & ~(has_known & (known_offsets > lag_limit))
    ]
    _note_causes(draft, newly_caught_up, newly_behind)


def _is_repeated(known_lags: Lags, pair: int, offsets: int, since_ms: int) -> bool:
    """Whether the same lag of the pair has been reported since then."""
    index = int(np.searchsorted(known_lags.pair, pair))
    if index == len(known_lags.pair) or known_lags.pair[index] != pair:
        return False
    return bool(known_lags.offsets[index] == offsets and known_lags.reported_ms[index] >= since_ms)


def ready_again(draft: Draft, pairs: Codes, event: Report) -> Codes:
    """Those of these copies, which a report has as ready, that had a large lag before.

    Only those of which the report has a small lag, too: a member may repeat `ready` in every
    report and not know that an exporter has reported a lag since.
    """
    lags = draft.owned.lags
    is_older = lags.reported_ms <= event.origin.at_ms
    is_older &= lags.offsets > draft.settings.acceptable_recovery_lag
    again: Codes = np.intersect1d(pairs, lags.pair[is_older], assume_unique=True)
    if len(again):
        limit = draft.settings.acceptable_recovery_lag
        small = [draft.table.find(task) for task, offsets in event.lags if 0 <= offsets <= limit]
        again = again[np.isin(task_of(again), [index for index in small if index is not None])]
    return again


def absorb_ready(draft: Draft, pairs: Codes, again: Codes) -> None:
    """Absorb that a member reports these copies as ready, some of them `again`."""
    newly_ready = union(np.setdiff1d(pairs, draft.owned.ready, assume_unique=True), again)
    if len(newly_ready) == 0:
        return
    newly_caught_up = newly_ready[~_are_caught_up(draft, newly_ready)]
    draft.owned.ready = union(draft.owned.ready, newly_ready)
    is_outdated = np.isin(draft.owned.lags.pair, newly_ready, assume_unique=True)
    is_outdated &= draft.owned.lags.offsets > draft.settings.acceptable_recovery_lag
    draft.owned.lags = draft.owned.lags.where(~is_outdated)
    _note_causes(draft, newly_caught_up, newly_caught_up[:0])


def end(draft: Draft, given_up: Codes) -> None:
    """These copies were given up: what members reported of them ends with them."""
    draft.owned.ready = np.setdiff1d(draft.owned.ready, given_up, assume_unique=True)
    has_ended = np.isin(draft.owned.lags.pair, given_up, assume_unique=True)
    draft.owned.lags = draft.owned.lags.where(~has_ended)


def end_given_up(draft: Draft, slot: int, lags: Sequence[Lag]) -> None:
    """Replace the lags of tasks that a report released by the lags in the same report.

    These describe the files that are left on the member's disk.
    """
    if draft.table is not draft.group.table:
        return
    found = {index for task, _ in lags if (index := draft.table.find(task)) is not None}
    pairs = pairs_of(np.array(sorted(found), dtype=np.int32), slot)
    given_up = pairs[_is_held(draft.group, pairs) & ~_is_held(draft, pairs)]
    if len(given_up):
        end(draft, given_up)
        draft.on_disk.update(given_up.tolist())


def _is_held(group: Group | Draft, pairs: Codes) -> BoolArray:
    """bool[K]: which of these pairs are a running task, or a copy that exists or is wanted."""
    is_held: BoolArray = group.owned.holder[task_of(pairs)] == slot_of(pairs)
    for copies in group.owned.copies.values():
        for part in copies:
            is_held |= contains(part, pairs)
    return is_held


def forget(draft: Draft, slot: int) -> None:
    """Forget the lags of a member whose new process has joined and has reported no copies yet."""
    draft.owned.ready = draft.owned.ready[slot_of(draft.owned.ready) != slot]
    of_others = slot_of(draft.owned.lags.pair) != slot
    draft.owned.lags = draft.owned.lags.where(of_others)


def caught_up(draft: Draft) -> Codes:
    """Copies that have caught up: reported ready, or with a lag that is small enough."""
    pairs = union(draft.owned.ready, draft.owned.lags.pair)
    caught_up_pairs: Codes = pairs[_are_caught_up(draft, pairs)]
    return caught_up_pairs


def behind(draft: Draft) -> Codes:
    """Copies whose believed lag is too large to take over."""
    lags = draft.owned.lags
    is_behind = believed(draft) & (lags.offsets > draft.settings.acceptable_recovery_lag)
    pairs: Codes = lags.pair[is_behind]
    return pairs


def believed(draft: Draft) -> BoolArray:
    """bool[K]: lags of copies that members keep, and others that are not too old."""
    return _lags_of(draft, draft.owned.lags.pair)[1]


def _are_caught_up(draft: Draft, pairs: Codes) -> BoolArray:
    """bool[K]: which of these pairs have caught up; a lag above the limit is newer than "ready"."""
    offsets, is_believed = _lags_of(draft, pairs)
    lag_limit = draft.settings.acceptable_recovery_lag
    is_ready = contains(draft.owned.ready, pairs) & (offsets <= lag_limit)
    are_caught_up: BoolArray = is_ready | (is_believed & (offsets <= lag_limit))
    return are_caught_up


def _lags_of(draft: Draft, pairs: Codes) -> tuple[Codes, BoolArray]:
    """The lag of each pair (-1 = it has none), and which of these are among `believed`."""
    lags = draft.owned.lags
    has_lag = contains(lags.pair, pairs)
    offsets, is_believed = np.full(len(pairs), -1, dtype=np.int64), has_lag.copy()
    if has_lag.any():
        lag_index = np.searchsorted(lags.pair, pairs[has_lag])
        offsets[has_lag] = lags.offsets[lag_index]
        age_ms = draft.sessions.clock_ms - lags.reported_ms[lag_index]
        is_believed[has_lag] = age_ms <= draft.settings.probing_rebalance_interval_ms
    if not is_believed[has_lag].all():
        for copies in draft.owned.copies.values():
            for part in copies:
                is_believed |= has_lag & contains(part, pairs)
    return offsets, is_believed


def ask_about_awaited(draft: Draft) -> None:
    """Ask members about copies that are to become active, and by the last word have not caught up.

    Members do not repeat what they have said of a copy, and their last word may have been refused,
    in a batch that had no room for it. Then the copy would never take over.
    """
    kept = union(*(draft.owned.copies[role].kept for role in COPY_ROLES))
    coming = np.intersect1d(kept, union(_learners(draft), next_actives.awaited(draft)))
    for slot in np.unique(slot_of(np.setdiff1d(coming, caught_up(draft)))).tolist():
        if not (draft.sessions.flags[slot] & FENCED or draft.member(slot).away):
            draft.ask(slot)


def unstarted(draft: Draft) -> Codes:
    """Stateful actives moving to a member that has not reported on them.

    No member runs them, or the one that does has been asked to stop or is fenced.
    """
    holder = draft.owned.holder
    has_no_runner = (holder == NO_MEMBER) | draft.owned.revoking
    is_fenced = (draft.sessions.flags & FENCED) != 0
    if is_fenced.any():
        has_no_runner |= is_fenced[holder]  # `NO_MEMBER` has no runner anyway
    has_new_owner = (draft.target.active != NO_MEMBER) & (draft.target.active != holder)
    is_waiting = draft.table.stateful & has_no_runner & has_new_owner
    tasks = np.flatnonzero(is_waiting).astype(np.int32)
    if len(tasks) == 0:
        return codes_of(tasks, tasks)
    reported = union(draft.owned.ready, draft.owned.lags.pair[believed(draft)])
    return np.setdiff1d(codes_of(tasks, draft.target.active[tasks]), reported, assume_unique=True)


def _copies(group: Group | Draft) -> Codes:
    """Copies that members have, or have in the target."""
    return reduce(union, (part for copies in group.owned.copies.values() for part in copies))


# ------------------------------------------------------------------- generations that lags open


def _note_causes(draft: Draft, newly_caught_up: Codes, newly_behind: Codes) -> None:
    """Open a generation if a copy may take over now that could not before."""
    awaited_pairs = next_actives.awaited(draft)
    _note_awaited(draft, newly_caught_up, awaited_pairs)
    candidates = union(
        _rescues(draft, newly_caught_up, newly_behind),
        _disk_states(draft, newly_caught_up, awaited_pairs),
    )
    _add_ready(draft, draft.possible_causes, candidates)


def note_reported_since(draft: Draft, caught_up_before: Codes, behind_before: Codes) -> None:
    """Note what was reported since the group was placed whose target applies now.

    Copies may have caught up, and owners may be behind. Of the others the assignor knew: it may
    leave a copy that had caught up a learner, and is not asked again for it.
    """
    newly_caught_up = np.setdiff1d(caught_up(draft), caught_up_before, assume_unique=True)
    newly_behind = np.setdiff1d(behind(draft), behind_before, assume_unique=True)
    _note_causes(draft, newly_caught_up, newly_behind)


def _learners(draft: Draft) -> Codes:
    """Learners that members have, or have in the target, as an assignor sees them.

    A member whose copy becomes a learner may report that it has caught up before it is told so.
    """
    copies = draft.owned.copies[Role.LEARNER]
    return union(copies.kept, copies.wanted)


def _add_ready(draft: Draft, causes: Causes, pairs: Codes) -> None:
    for pair in pairs.tolist():
        kind = "copy"
        for role in COPY_ROLES:
            kind = str(role) if pair in draft.owned.copies[role].kept else kind
        task, slot = pair >> 32, pair & 0xFFFFFFFF
        causes.ready(kind, str(draft.table.task(task)), draft.member(slot).id)


def _note_awaited(draft: Draft, newly_ready: Codes, awaited_pairs: Codes) -> None:
    """Open a generation for learners that may take over, and for other copies that are awaited."""
    learners = np.intersect1d(newly_ready, _learners(draft), assume_unique=True)
    awaited_ready = np.setdiff1d(
        np.intersect1d(newly_ready, awaited_pairs, assume_unique=True), learners
    )
    _add_ready(draft, draft.causes, union(_promotable(draft, learners), awaited_ready))


def _promotable(draft: Draft, learners: Codes) -> Codes:
    """Learners that may take over now.

    Without `learner.partial.rebalance` all learners of a member must have caught up.
    """
    if draft.settings.learner_partial_rebalance or len(learners) == 0:
        return learners
    still_restoring = np.setdiff1d(_learners(draft), caught_up(draft))
    return learners[~np.isin(slot_of(learners), slot_of(still_restoring))]


def _rescues(draft: Draft, newly_caught_up: Codes, newly_behind: Codes) -> Codes:
    """Caught-up copies of tasks whose owner is restoring or has not started yet."""
    reported_tasks = task_of(union(newly_caught_up, newly_behind))
    owned_tasks = reported_tasks[draft.target.active[reported_tasks] != NO_MEMBER]
    owners = codes_of(owned_tasks, draft.target.active[owned_tasks])
    offsets, is_believed = _lags_of(draft, owners)
    is_behind = is_believed & (offsets > draft.settings.acceptable_recovery_lag)
    restoring = union(owners[is_behind], unstarted(draft))
    if len(restoring) == 0:
        return restoring
    newly_restoring = np.intersect1d(newly_behind, restoring, assume_unique=True)
    candidates = newly_caught_up
    if len(newly_restoring):
        others = usable(draft, caught_up(draft), task_of(newly_restoring))
        candidates = union(newly_caught_up, others)
    return np.setdiff1d(usable(draft, candidates, task_of(restoring)), owners, assume_unique=True)


def usable(draft: Draft, pairs: Codes, tasks: IntArray) -> Codes:
    """The copies of these tasks on members that are neither draining, away nor leaving."""
    copies: Codes = pairs[np.isin(task_of(pairs), tasks)]
    if draft.freed_slots:  # what these members had is dropped at the end of the batch
        copies = copies[~draft.mask(draft.freed_slots)[slot_of(copies)]]
    slots = slot_of(copies)
    if len(slots) <= FEW_COPIES:
        # Not by `columns`: to renew them for each of thousands of joins would cost more.
        members = map(draft.member, slots.tolist())
        accepts_tasks = [not (member.draining or member.away) for member in members]
        return copies[np.array(accepts_tasks, dtype=np.bool_)]
    columns = draft.roster.columns
    return copies[~columns.draining[slots] & ~columns.away[slots]]


def _disk_states(draft: Draft, newly_caught_up: Codes, awaited_pairs: Codes) -> Codes:
    """Caught-up state on the disk of a member that restores another task for a takeover."""
    if len(awaited_pairs) == 0 or len(newly_caught_up) == 0:
        return newly_caught_up[:0]
    pairs: Codes = newly_caught_up[np.isin(slot_of(newly_caught_up), slot_of(awaited_pairs))]
    pairs = np.setdiff1d(pairs, _copies(draft), assume_unique=True)
    not_placed_there: Codes = pairs[draft.target.active[task_of(pairs)] != slot_of(pairs)]
    return not_placed_there


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
        is_believed = believed(draft)
        draft.owned.lags = draft.owned.lags.where(is_believed)


def _pass_on(draft: Draft, copies: Codes) -> None:
    """Drop the lags of copies that are gone.

    If the member runs the task now, the lag stays and is believed for a limited time from now. A
    lag of what a released task left on a disk stays, too.
    """
    group_before, running = draft.group, _running(draft)
    lost_copies = np.setdiff1d(
        union(_copies(group_before), _running(group_before)), copies, assume_unique=True
    )
    lost_copy = np.isin(draft.owned.lags.pair, lost_copies, assume_unique=True)
    if not lost_copy.any():
        return
    started_running = lost_copy & np.isin(
        draft.owned.lags.pair, np.setdiff1d(running, _running(group_before))
    )
    reported_ms = np.where(started_running, draft.sessions.clock_ms, draft.owned.lags.reported_ms)
    remains = ~lost_copy | np.isin(draft.owned.lags.pair, running, assume_unique=True)
    if draft.on_disk:
        remains |= np.isin(draft.owned.lags.pair, list(draft.on_disk), assume_unique=True)
    draft.owned.lags = draft.owned.lags._replace(reported_ms=reported_ms).where(remains)


def _running(group: Group | Draft) -> Codes:
    """(task, slot) of all actives and their holders."""
    owned_tasks = np.flatnonzero(group.owned.holder != NO_MEMBER).astype(np.int32)
    return codes_of(owned_tasks, group.owned.holder[owned_tasks])


def mark_released_ready(draft: Draft) -> None:
    """Mark copies as ready whose member released the running task in this batch.

    Where such a copy is a learner, or the task's destination, the task belongs back to the member
    (its successor is drained, say; or the placement was computed aside, from an earlier owner): the
    copy may become active at once.
    """
    group_before = draft.group
    if draft.table is not group_before.table:
        return
    released_tasks = np.flatnonzero(
        group_before.owned.revoking & (draft.owned.holder != group_before.owned.holder)
    ).astype(np.int32)
    if len(released_tasks) == 0:
        return
    is_fenced = (group_before.sessions.flags & FENCED) != 0
    released_tasks = released_tasks[~is_fenced[group_before.owned.holder[released_tasks]]]
    wanted_copies = union(*(draft.owned.copies[role].wanted for role in COPY_ROLES))
    warm_copies = np.intersect1d(
        codes_of(released_tasks, group_before.owned.holder[released_tasks]),
        wanted_copies,
        assume_unique=True,
    )
    is_behind = draft.owned.lags.offsets > draft.settings.acceptable_recovery_lag
    is_behind &= believed(draft)
    warm_copies = np.setdiff1d(warm_copies, draft.owned.lags.pair[is_behind], assume_unique=True)
    newly_ready = np.setdiff1d(warm_copies, draft.owned.ready, assume_unique=True)
    draft.owned.ready = union(draft.owned.ready, warm_copies)
    _note_awaited(draft, newly_ready, next_actives.awaited(draft))
