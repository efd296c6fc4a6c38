"""Standbys that differ in client tags (KIP-708): zones first, then members within each zone.

Members with the same values of the configured keys form a *zone*. Copy by copy, every task may
use the zones that share no value with a copy it has (its active included); a key whose values
are all used up, by as many copies as it has values, no longer counts (T-02). Zones are filled
evenly by capacity with as few copies changing zone as that allows; within a zone placement is that
of `muster.assignor.targets.standby`. What finds no zone goes wherever there is room.
"""

from __future__ import annotations

import numpy as np

from muster.assignor.copies import Copies
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, no_pairs
from muster.assignor.solvers.balance import held, settle
from muster.assignor.solvers.shares import Counts
from muster.assignor.targets.partial import Takers, counts
from muster.assignor.targets.standby import placed
from muster.assignor.targets.wanted import Found, Wanted, joined
from muster.protocol.tasks import IntArray


class Zones:
    """Members by the values of their tags.

    Attributes:
        of: int32[M], zone of each member.
        value: int32[Z, K], value number of each zone under each key; the same word under two
            keys is two values (EX-T6).
        values: int64[K], how many values each key has in the group.
    """

    def __init__(self, view: GroupView) -> None:
        keys = view.settings.rack_aware_assignment_tags
        rows: dict[tuple[str | None, ...], int] = {}
        words = [tuple(tags.get(key) for key in keys) for tags in view.tags]
        self.of = np.array([rows.setdefault(w, len(rows)) for w in words], dtype=np.int32)
        columns = []
        for place in range(len(keys)):
            seen: dict[str | None, int] = {}
            columns.append([seen.setdefault(row[place], len(seen)) for row in rows])
        self.value = np.array(columns, dtype=np.int32).reshape(len(keys), len(rows)).T
        self.values = np.array([len(set(c)) for c in columns], dtype=np.int64)

    @property
    def tags(self) -> IntArray:
        """int32[M, K]: value number of each member under each key."""
        answer: IntArray = self.value[self.of]
        return answer

    def allowed(self, used: list[int]) -> BoolArray:
        """bool[Z]: zones that share no live value with the zones used."""
        live = self.values > len(used)
        shared = (self.value[None, :, live] == self.value[used][:, None, live]).any(axis=(0, 2))
        answer: BoolArray = ~shared
        return answer


def tagged_standbys(view: GroupView, copies: Copies, wanted: Wanted) -> Found:
    """Place standbys so that the copies of a task differ in their tags as far as possible."""
    zones = Zones(view)
    usable = int(np.count_nonzero(wanted.capacity))
    each = min(wanted.copies, usable - 1)
    short = (wanted.copies - max(each, 0)) * len(wanted.tasks)
    found = no_pairs()
    warning = _untold(view)
    if each <= 0 or len(wanted.tasks) == 0:
        return Found(found, short, warning=warning)
    need, left = _zones_of_copies(view, zones, wanted, each)
    for zone in range(len(zones.value)):
        part = wanted.within(zones.of == zone)
        pairs, missing, *_ = placed(view, copies, part, need[:, zone])
        found = joined(found, pairs)
        left += _lacking(need[:, zone], pairs) if missing else 0
    if left.any():
        pairs, missing, *_ = placed(view, copies, wanted.beside(found), left)
        found, short = joined(found, pairs), short + missing
    bound = 0 if wanted.toll is None else wanted.toll.least(need.sum(axis=1))
    return Found(found, short, bound, warning)


def _untold(view: GroupView) -> str:
    """A warning if a member lacks a tag that counts; Kafka's client would not start (T-01)."""
    for name, tags in zip(view.members, view.tags, strict=True):
        for key in view.settings.rack_aware_assignment_tags:
            if key not in tags:
                return f"member {name} has no tag {key!r}: it counts as one more value"
    return ""


def _lacking(need: Counts, pairs: Pairs) -> Counts:
    return need - np.bincount(pairs.task, minlength=len(need))


def _zones_of_copies(
    view: GroupView, zones: Zones, wanted: Wanted, each: int
) -> tuple[Counts, Counts]:
    """int64[T, Z] copies of each task per zone, and int64[T] copies without a zone."""
    number = len(zones.value)
    members = held(zones.of[wanted.capacity > 0], number)
    capacity = np.bincount(zones.of, weights=wanted.capacity, minlength=number).astype(np.int64)
    need = np.zeros((len(view.tasks), number), dtype=np.int64)
    left = np.zeros(len(view.tasks), dtype=np.int64)
    filled = held(zones.of[wanted.target[wanted.tasks]], number)
    used = zones.of[wanted.target[wanted.tasks]][:, None]
    at = _present_zones(view, zones, wanted, number)
    for _ in range(each):
        pattern, of = np.unique(np.sort(used, axis=1), axis=0, return_inverse=True)
        can = np.array([zones.allowed(row[row >= 0].tolist()) for row in pattern])
        can &= np.array([held(row, number) for row in pattern]) < members
        chosen = _fill(of.ravel().astype(np.int32), can, at, capacity, filled)
        placed_ = chosen != NO_MEMBER
        need[wanted.tasks[placed_], chosen[placed_]] += 1
        left[wanted.tasks[~placed_]] += 1
        filled += held(chosen, number)
        at[np.flatnonzero(placed_), chosen[placed_]] = False
        used = np.concatenate((used, chosen[:, None]), axis=1)
    return need, left


def _present_zones(view: GroupView, zones: Zones, wanted: Wanted, number: int) -> BoolArray:
    """bool[K, Z]: zones where a standby of each task stands now."""
    at = np.zeros((len(view.tasks), number), dtype=np.bool_)
    fits = (wanted.capacity[view.standby.member] > 0) & (
        wanted.target[view.standby.task] != view.standby.member
    )
    at[view.standby.task[fits], zones.of[view.standby.member[fits]]] = True
    owned = np.flatnonzero((view.active != NO_MEMBER) & (view.active != wanted.target))
    owned = owned[wanted.capacity[view.active[owned]] > 0]
    at[owned, zones.of[view.active[owned]]] = True
    answer: BoolArray = at[wanted.tasks]
    return answer


def _fill(
    group: IntArray, can: BoolArray, at: BoolArray, capacity: Counts, filled: Counts
) -> IntArray:
    """int32[K]: a zone for one more copy of each task, `NO_MEMBER` where no zone is allowed."""
    stay = at & can[group]
    home = np.where(stay.any(axis=1), stay.argmax(axis=1), NO_MEMBER).astype(np.int32)
    size = np.where(can.any(axis=1), np.bincount(group, minlength=len(can)), 0)
    own = np.zeros(can.shape, dtype=np.int64)
    np.add.at(own, (group[home != NO_MEMBER], home[home != NO_MEMBER]), 1)
    zones = np.arange(len(capacity), dtype=np.int32)
    alone = Takers(capacity, filled, np.ones_like(capacity), zones, own.sum(axis=0))
    share = counts(size, can, own, alone)
    chosen = np.full(len(group), NO_MEMBER, dtype=np.int32)
    for number, row in enumerate(share):
        tasks = np.flatnonzero(group == number)
        if row.sum():
            chosen[tasks] = settle(home[tasks], row)
    return chosen
