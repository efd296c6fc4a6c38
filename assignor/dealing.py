"""Placing very many copies at once, where a flow with an arc per (task, member) is too much.

Without racks: existing copies are used greedily, best first, the rest is dealt like cards. With
racks: one flow over classes of tasks (`muster.assignor.transport`), which does not know that copies
of a task must be apart; its cost is a proven bound, and the few clashes are exchanged
between neighbours, who cost the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.balance import dealt
from muster.assignor.copies import Longs, code, contains
from muster.assignor.model import NOBODY, BoolArray, GroupView, Pairs, no_pairs
from muster.assignor.shares import Counts
from muster.assignor.transport import Freight, Room, place
from muster.assignor.wanted import Found, Wanted, joined
from muster.protocol.tasks import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Copies that stand already, and copies that exist, with what it costs to use each."""

    kept: Pairs
    pairs: Pairs
    price: Longs


def dealt_out(
    view: GroupView, wanted: Wanted, offer: Offer, tasks: IntArray, need: Counts, room: Counts
) -> Found:
    """Existing copies greedily by price, the rest dealt like cards.

    Args:
        view: the group.
        wanted: what is asked for.
        offer: copies to use.
        tasks: tasks that lack copies.
        need: int64[T], copies each needs.
        room: int64[M], copies each member takes.
    """
    room = room.copy()
    left = np.zeros(len(need), dtype=np.int64)
    left[tasks] = need[tasks]
    found = [_greedy(offer, price, left, room) for price in np.unique(offer.price)]
    pairs = Pairs.of(
        np.concatenate([offer.kept.task, *(f.task for f in found)]),
        np.concatenate([offer.kept.member, *(f.member for f in found)]),
    )
    slots = np.roll(dealt(room, -room), -1)
    rows = np.arange(int(left.max()))[:, None] < left[None, tasks]
    asked = np.concatenate([tasks[row] for row in rows] or [tasks[:0]])
    number = min(len(asked), len(slots))
    pairs = _without_clashes(view, wanted, pairs, asked[:number], slots[:number], stride=7)
    return Found(pairs, int(need.sum()) - len(pairs))


def by_classes(
    view: GroupView, wanted: Wanted, need: Counts, present: Pairs, room: Counts
) -> Found:
    """Cheapest racks for every copy by one flow over classes.

    Args:
        view: the group.
        wanted: what is asked for, with a toll.
        need: int64[T], copies each task needs.
        present: copies that may stay.
        room: int64[M], copies each member takes.
    """
    toll = wanted.toll
    assert toll is not None
    tasks = np.flatnonzero(need).astype(np.int32)
    start = np.cumsum(need) - need
    copy = np.repeat(tasks, need[tasks])
    nth = np.arange(len(present)) - np.searchsorted(present.task, present.task)
    stays = nth < need[present.task]
    home = np.full(len(copy), NOBODY, dtype=np.int32)
    home[start[present.task[stays]] + nth[stays]] = present.member[stays]
    none = np.empty(0, dtype=np.int32)
    freight = Freight(
        home=home,
        kind=toll.class_of[copy],
        unit=np.zeros(len(toll.across), dtype=np.int32),
        toll=toll.across * wanted.heavy(len(copy)),
        zone=toll.rack,
        leaving=wanted.leaving,
        task=none,
        member=none,
        rank=np.empty(0, dtype=np.int64),
    )
    owner, _ = place(freight, Room(room, 0, np.zeros_like(room)))
    bound = int(toll(copy, owner).sum())
    if not wanted.tolls_first:
        bound += wanted.leaving * int(np.count_nonzero((home != NOBODY) & (owner != home)))
    order = np.lexsort((copy, toll.class_of[copy], toll.rack[owner]))
    pairs = _without_clashes(view, wanted, no_pairs(), copy[order], owner[order], stride=1)
    return Found(pairs, int(need.sum()) - len(pairs), bound)


def _greedy(offer: Offer, price: int, need: Longs, room: Counts) -> Pairs:
    """Use the copies of one price: the first of each member, then the first of each task."""
    take = np.flatnonzero(offer.price == price)
    task, member = offer.pairs.task[take], offer.pairs.member[take]
    order = np.argsort(member, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(member[order], member[order])
    fits = rank < room[member]
    task, member = task[fits], member[fits]
    rank = np.arange(len(task)) - np.searchsorted(task, task)
    fits = rank < need[task]
    task, member = task[fits], member[fits]
    np.subtract.at(need, task, 1)
    np.subtract.at(room, member, 1)
    return Pairs(task, member)


def _without_clashes(
    view: GroupView, wanted: Wanted, pairs: Pairs, task: IntArray, slot: IntArray, *, stride: int
) -> Pairs:
    """Exchange slots until nobody gets a task twice; what cannot be exchanged is left out.

    Partners are looked for in steps of `stride`: 1 where neighbours cost the same, more where
    neighbours clash alike.
    """
    count = len(task)
    unit = view.tasks.unit_of

    def clashes(tasks: IntArray, slots: IntArray) -> BoolArray:
        bad = wanted.target[tasks] == slots
        codes = code(tasks, slots)
        bad |= contains(pairs, codes) | contains(wanted.taken, codes)
        if wanted.may is not None:
            bad |= ~wanted.may[slots, unit[tasks]]
        answer: BoolArray = bad
        return answer

    slot = slot.copy()
    for step in range(1, min(count, 64)):
        codes = code(task, slot)
        _, first = np.unique(codes, return_index=True)
        bad = clashes(task, slot)
        repeated = np.ones(count, dtype=np.bool_)
        repeated[first] = False
        wrong = np.flatnonzero(bad | repeated)
        if len(wrong) == 0:
            break
        for here in wrong.tolist():
            other = (here + step * stride) % count
            mine, theirs = slot[[other]], slot[[here]]
            if not (clashes(task[[here]], mine)[0] or clashes(task[[other]], theirs)[0]):
                slot[here], slot[other] = slot[other], slot[here]
    good = ~clashes(task, slot)
    return joined(pairs, Pairs.of(task[good], slot[good]))
