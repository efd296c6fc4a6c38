"""Placing very many copies at once, where a flow with an arc per (task, member) is too much.

Without racks: a flow over tasks that are alike (`muster.assignor.targets.alike`) says which
existing copies to use and how many new ones each member takes; those are dealt like cards. With
racks: one flow over classes of tasks (`muster.assignor.solvers.transport`). Neither knows that
copies of a task must be apart, so their costs are proven bounds, and the few clashes are exchanged
between neighbours, who cost the same.
"""

from __future__ import annotations

import numpy as np

from muster.assignor.copies import Longs, code, contains
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, no_pairs
from muster.assignor.solvers.balance import dealt
from muster.assignor.solvers.shares import Counts
from muster.assignor.solvers.transport import Freight, Room, place
from muster.assignor.targets.alike import used
from muster.assignor.targets.wanted import Found, Near, Wanted, joined
from muster.protocol.tasks import IntArray


def dealt_out(
    view: GroupView, wanted: Wanted, near: Near, tasks: IntArray, need: Counts, room: Counts
) -> tuple[Pairs, int]:
    """Existing copies where they are worth most, the rest dealt like cards.

    Args:
        view: the group.
        wanted: what is asked for; tolls are not looked at.
        near: copies to use.
        tasks: tasks that lack copies.
        need: int64[T], copies each needs.
        room: int64[M], copies each member takes.

    Returns:
        The pairs, and how many copies could not be placed.
    """
    standing, free = used(wanted, near, tasks, need, room)
    left = need[tasks] - np.bincount(standing.task, minlength=len(need))[tasks]
    slots = np.roll(dealt(free, -free), -1)  # actives were dealt alike: beside them, not upon them
    asked = np.repeat(tasks, left)[: len(slots)]  # neighbours in a deal are different members
    slots = slots[: len(asked)]
    pairs = _without_clashes(view, wanted, standing, asked, slots, stride=7, racks=True)
    return pairs, int(need[tasks].sum()) - len(pairs)


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
    home = np.full(len(copy), NO_MEMBER, dtype=np.int32)
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
        bound += wanted.leaving * int(np.count_nonzero((home != NO_MEMBER) & (owner != home)))
    order = np.lexsort((copy, toll.class_of[copy], toll.rack[owner]))
    pairs = _without_clashes(view, wanted, no_pairs(), copy[order], owner[order], stride=1)
    return Found(pairs, int(need.sum()) - len(pairs), bound)


def _without_clashes(
    view: GroupView,
    wanted: Wanted,
    pairs: Pairs,
    task: IntArray,
    slot: IntArray,
    *,
    stride: int,
    racks: bool = False,
) -> Pairs:
    """Exchange slots until no member gets a task twice; what cannot be exchanged is left out.

    Partners are looked for in steps of `stride`: 1 where neighbours cost the same, more where
    neighbours clash alike. With `racks`, slots in the rack of a task's active are exchanged too,
    where that clashes with nothing (S4-29).
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
        wrong = np.flatnonzero(clashes(task, slot) | _repeated(code(task, slot)))
        if len(wrong) == 0:
            break
        here, there = _apart(wrong, (wrong + step * stride) % count)
        fits = ~(clashes(task[here], slot[there]) | clashes(task[there], slot[here]))
        here, there = here[fits], there[fits]
        slot[here], slot[there] = slot[there], slot[here]
    for step in range(1, min(count, 64) if racks and wanted.rack is not None else 1):
        near = wanted.beside_active(task, slot)
        here = np.flatnonzero(near)
        if len(here) == 0:
            break
        here, there = _apart(here, (here + step * stride) % count)
        before = 1 + near[there].astype(np.int8)
        after = wanted.beside_active(task[here], slot[there]).astype(np.int8)
        after += wanted.beside_active(task[there], slot[here])
        fits = ~(clashes(task[here], slot[there]) | clashes(task[there], slot[here]))
        fits &= after < before
        here, there = here[fits], there[fits]
        slot[here], slot[there] = slot[there], slot[here]
    good = ~(clashes(task, slot) | _repeated(code(task, slot)))
    return joined(pairs, Pairs.of(task[good], slot[good]))


def _repeated(codes: Longs) -> BoolArray:
    """bool[K]: which codes were there before."""
    again = np.ones(len(codes), dtype=np.bool_)
    again[np.unique(codes, return_index=True)[1]] = False
    return again


def _apart(here: Longs, there: Longs) -> tuple[Longs, Longs]:
    """The exchanges that share no place with an earlier one."""
    first = ~_repeated(np.column_stack((here, there)).ravel()).reshape(-1, 2)
    alone = first.all(axis=1)
    return here[alone], there[alone]
