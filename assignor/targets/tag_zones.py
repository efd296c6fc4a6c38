"""Standbys that differ in client tags (KIP-708): zones first, then members within each zone.

Members with the same values of the configured keys form a *zone*. For each further copy, a task may
use the zones that share no value with one of its copies, its active included. A key with no more
values than the task has copies no longer counts (T-02). Zones are filled evenly by capacity, with
as few copies changing zone as that allows, and `muster.assignor.targets.standby` places the copies
within a zone. Copies without a zone go to any member with room.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.assignor.copy_lags import Copies
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, no_pairs
from muster.assignor.solvers.fewest_moves import held, settle
from muster.assignor.solvers.shares import Counts
from muster.assignor.targets.restricted import Takers, counts
from muster.assignor.targets.standby import placed
from muster.assignor.targets.standby_request import PlacedStandbys, StandbyRequest, joined
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
        tag_values = [tuple(tags.get(key) for key in keys) for tags in view.tags]
        self.of = np.array([rows.setdefault(w, len(rows)) for w in tag_values], dtype=np.int32)
        columns = []
        for place in range(len(keys)):
            value_index: dict[str | None, int] = {}
            columns.append([value_index.setdefault(row[place], len(value_index)) for row in rows])
        self.value = np.array(columns, dtype=np.int32).reshape(len(keys), len(rows)).T
        self.values = np.array([len(set(c)) for c in columns], dtype=np.int64)

    @property
    def tags(self) -> IntArray:
        """int32[M, K]: value number of each member under each key."""
        values: IntArray = self.value[self.of]
        return values

    def allowed(self, used: list[int]) -> BoolArray:
        """bool[Z]: zones that share no value, under keys that still count, with the zones used."""
        counting = self.values > len(used)
        shared = (self.value[None, :, counting] == self.value[used][:, None, counting]).any(
            axis=(0, 2)
        )
        allowed: BoolArray = ~shared
        return allowed


def tagged_standbys(copies: Copies, request: StandbyRequest) -> PlacedStandbys:
    """Place standbys so that the copies of a task differ in their tags as far as possible."""
    zones = Zones(request.view)
    usable = request.capacity > 0
    # A draining owner may keep its task (a plug-in decides); then every other member is free.
    most = np.count_nonzero(usable) - usable[request.target[request.tasks]].astype(np.int64)
    most = np.minimum(most, request.copies)
    short = request.copies * len(most) - int(most.sum())
    pairs_placed = no_pairs()
    warning = _missing_tag(request.view)
    if not most.any():
        return PlacedStandbys(pairs_placed, short, warning=warning)
    need, unplaced = _zones_of_copies(copies, zones, request, most)
    for zone in range(len(zones.value)):
        part = replace(request, capacity=np.where(zones.of == zone, request.capacity, 0))
        pairs, missing, *_ = placed(copies, part, need[:, zone])
        pairs_placed = joined(pairs_placed, pairs)
        if missing:
            unplaced += need[:, zone] - np.bincount(pairs.task, minlength=len(need))
    if unplaced.any():
        rest = replace(request, taken=joined(request.taken, pairs_placed))
        pairs, missing, *_ = placed(copies, rest, unplaced)
        pairs_placed, short = joined(pairs_placed, pairs), short + missing
    bound = 0 if request.toll is None else request.toll.least(need.sum(axis=1))
    return PlacedStandbys(pairs_placed, short, bound, warning)


def _missing_tag(view: GroupView) -> str:
    """A warning if a member lacks a configured tag; Kafka's client would not start (T-01)."""
    for name, tags in zip(view.members, view.tags, strict=True):
        for key in view.settings.rack_aware_assignment_tags:
            if key not in tags:
                return f"member {name} has no tag {key!r}: it counts as one more value"
    return ""


def _zones_of_copies(
    copies: Copies, zones: Zones, request: StandbyRequest, most: Counts
) -> tuple[Counts, Counts]:
    """int64[T, Z] copies of each task per zone, and int64[T] copies without a zone.

    `most` (int64[K]) is how many copies each task gets.
    """
    zone_count = len(zones.value)
    members = held(zones.of[request.capacity > 0], zone_count)
    capacity = np.bincount(zones.of, request.capacity, zone_count).astype(np.int64)
    need = np.zeros((len(request.target), zone_count), dtype=np.int64)
    zoneless = np.zeros(len(request.target), dtype=np.int64)
    filled = held(zones.of[request.target[request.tasks]], zone_count)
    used = zones.of[request.target[request.tasks]][:, None]
    present = _present_zones(copies, zones, request, zone_count)
    for copy in range(int(most.max())):
        open_tasks = np.flatnonzero(most > copy)
        pattern, of = np.unique(np.sort(used[open_tasks], axis=1), axis=0, return_inverse=True)
        allowed = np.array([zones.allowed(row[row >= 0].tolist()) for row in pattern])
        allowed &= np.array([held(row, zone_count) for row in pattern]) < members
        chosen = np.full(len(most), NO_MEMBER, dtype=np.int32)
        group = of.ravel().astype(np.int32)
        chosen[open_tasks] = _fill(group, allowed, present[open_tasks], capacity, filled)
        has_zone = chosen != NO_MEMBER
        need[request.tasks[has_zone], chosen[has_zone]] += 1
        zoneless[request.tasks[~has_zone & (most > copy)]] += 1
        filled += held(chosen, zone_count)
        present[np.flatnonzero(has_zone), chosen[has_zone]] = 0
        used = np.concatenate((used, chosen[:, None]), axis=1)
    return need, zoneless


def _present_zones(copies: Copies, zones: Zones, request: StandbyRequest, number: int) -> Counts:
    """int64[K, Z]: where each task has copies that may stay.

    2: a standby that has caught up; 1: another standby, or an owner that the task leaves.
    """
    view = request.view
    at = np.zeros((len(view.tasks), number), dtype=np.int64)
    owned = np.flatnonzero((view.active != NO_MEMBER) & (view.active != request.target))
    owned = owned[request.capacity[view.active[owned]] > 0]
    at[owned, zones.of[view.active[owned]]] = 1
    task, member = view.standby.task, view.standby.member
    fits = (request.capacity[member] > 0) & (request.target[task] != member)
    worth = 1 + copies.reported_warm(task, member).astype(np.int64)
    np.maximum.at(at, (task[fits], zones.of[member[fits]]), worth[fits])
    zones_of_tasks: Counts = at[request.tasks]
    return zones_of_tasks


def _fill(
    group: IntArray, allowed: BoolArray, present: Counts, capacity: Counts, filled: Counts
) -> IntArray:
    """int32[K]: a zone for one more copy of each task, `NO_MEMBER` where no zone is allowed."""
    stay = np.where(allowed[group], present, 0)
    home = np.where(stay.any(axis=1), stay.argmax(axis=1), NO_MEMBER).astype(np.int32)
    size = np.where(allowed.any(axis=1), np.bincount(group, minlength=len(allowed)), 0)
    own = np.zeros(allowed.shape, dtype=np.int64)
    np.add.at(own, (group[home != NO_MEMBER], home[home != NO_MEMBER]), 1)
    zones = np.arange(len(capacity), dtype=np.int32)
    takers = Takers(capacity, filled, np.ones_like(capacity), zones, own.sum(axis=0))
    share = counts(size, allowed, own, takers)
    chosen = np.full(len(group), NO_MEMBER, dtype=np.int32)
    for number, row in enumerate(share):
        tasks = np.flatnonzero(group == number)
        if row.sum():
            chosen[tasks] = settle(home[tasks], row)
    return chosen
