"""How far copies are behind, as told by members or by any exporter (`muster.lag`).

Kept as small arrays. A new value replaces a known one when it says something new: when it crosses
`acceptable.recovery.lag`, halves or doubles, or when the known one is half-way to being too old.
So a fleet that reports every few seconds does not make the group's record new each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.assignor.model import BoolArray
from muster.protocol.events import Lag, Origin
from muster.protocol.ids import Role
from muster.protocol.records import Fault
from muster.state.draft import Draft
from muster.state.group import Codes, Group, Lags, slot_of, union
from muster.state.group import codes as codes_of

OFFSETS_MAX = 2**62
"""No topic is this long; more is a mistake of whoever says so."""


def tell(draft: Draft, member: str, told: Sequence[Lag], origin: Origin) -> None:
    """Take lags in; refuse what cannot be."""
    if not told:
        return
    slot = draft.by_id.get(member)
    if slot is None:
        message = f"lags of {member}, which is not a member"
        draft.reject(origin, Fault.UNKNOWN_MEMBER_ID.value, message)
        return
    news: dict[int, int] = {}
    for task, offsets in told:
        index = draft.table.find(task)
        if index is None or not 0 <= offsets <= OFFSETS_MAX:
            wrong = "no such task" if index is None else f"expected 0 to {OFFSETS_MAX}"
            message = f"lag {offsets} of {task} on {member}: {wrong}"
            draft.reject(origin, Fault.INVALID_REQUEST.value, message)
            continue
        news[index << 32 | slot] = offsets
    if news:
        _merge(draft, news)


def _merge(draft: Draft, news: dict[int, int]) -> None:
    now, known = draft.soft.clock_ms, draft.lags
    pair = np.array(sorted(news), dtype=np.int64)
    offsets = np.array([news[p] for p in pair.tolist()], dtype=np.int64)
    place = np.minimum(np.searchsorted(known.pair, pair), max(len(known.pair) - 1, 0))
    found = known.pair[place] == pair if len(known.pair) else np.zeros(len(pair), dtype=np.bool_)
    old = np.where(found, known.offsets[place] if len(known.pair) else 0, -1)
    old_ms = np.where(found, known.told_ms[place] if len(known.pair) else 0, 0)
    limit = draft.settings.acceptable_recovery_lag
    stale = now - old_ms > draft.settings.probing_rebalance_interval_ms // 2
    differs = (old > limit) != (offsets > limit)
    differs |= np.maximum(offsets, old) >= 2 * np.maximum(np.minimum(offsets, old), 1)
    new = ~found | differs | stale
    if not new.any():
        return
    stays = ~np.isin(known.pair, pair[new], assume_unique=True)
    merged = np.concatenate((known.pair[stays], pair[new]))
    order = np.argsort(merged, kind="stable")
    draft.lags = Lags(
        merged[order],
        np.concatenate((known.offsets[stays], offsets[new]))[order],
        np.concatenate((known.told_ms[stays], np.full(int(new.sum()), now)))[order],
    )
    draft.changed = True
    near = pair[(offsets <= limit) & (~found | (old > limit))]
    _caught_up(draft, near)


def _caught_up(draft: Draft, near: Codes) -> None:
    """Copies that just came near enough, where somebody waits for them."""
    learners = np.intersect1d(near, draft.copies[Role.LEARNER].kept, assume_unique=True)
    staged = np.flatnonzero(draft.destination != draft.target).astype(np.int32)
    awaited = np.intersect1d(near, codes_of(staged, draft.destination[staged]), assume_unique=True)
    promote(draft, union(learners, awaited))


def promote(draft: Draft, pairs: Codes) -> None:
    """Note that these learners have caught up, unless a member's others are waited for (S2-32)."""
    for pair in pairs.tolist():
        task, slot = pair >> 32, pair & 0xFFFFFFFF
        if not draft.settings.learner_partial_rebalance:
            kept = draft.copies[Role.LEARNER].kept
            waiting = np.setdiff1d(kept[slot_of(kept) == slot], caught_up(draft))
            if len(waiting):
                continue
        draft.causes.learner(str(draft.table.task(task)), draft.member(slot).id)


def fresh(group: Group | Draft, clock_ms: int) -> BoolArray:
    """bool[K]: lags that are not too old to be believed."""
    young: BoolArray = clock_ms - group.lags.told_ms <= group.settings.probing_rebalance_interval_ms
    return young


def caught_up(draft: Draft) -> Codes:
    """Learners that are ready, by their own word or by their lag."""
    near = draft.lags.offsets <= draft.settings.acceptable_recovery_lag
    near &= fresh(draft, draft.soft.clock_ms)
    return union(draft.ready, draft.lags.pair[near])
