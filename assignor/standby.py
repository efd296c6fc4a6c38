"""Where standbys belong in the end: balanced, as sticky as actives, never beside their active.

Every stateful task wants `num.standby.replicas` copies on distinct members, none of them the one
its active belongs to. A copy that exists is worth more than a new one: present standbys first,
then the former owner of a task that moves (S2-14), then whatever else is warm or on its way.

Tasks whose standbys can all stay are not looked at; the others go through one minimum-cost flow
with an arc per (task, member), or, where that would be millions of arcs, are dealt out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from muster.assignor.balance import dealt, held
from muster.assignor.copies import Copies, Longs, code, contains
from muster.assignor.copyflow import Choices, chosen
from muster.assignor.model import BoolArray, GroupView, Pairs, no_pairs
from muster.assignor.shares import Counts, bounded_shares
from muster.protocol.tasks import IntArray

MOST_ARCS = 1_500_000
"""Beyond this many (task, member) arcs copies are dealt out instead of optimised."""

NEW = 50
"""Price of a copy where there is none; the prices of others are far below."""
_PRICE_PRESENT, _PRICE_FORMER, _PRICE_STAGED, _PRICE_WARM, _PRICE_LEARNER, _PRICE_SOME = (
    0, 1, 2, 3, 4, 20,
)  # fmt: skip


Toll: TypeAlias = Callable[[IntArray, IntArray], Longs]
"""(tasks, members) -> cost of a copy of each task at the member beside it."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Wanted:
    """What standbys are asked for.

    Attributes:
        tasks: int32[K], tasks that want copies, ascending.
        target: int32[T], where actives belong.
        copies: copies per task.
        capacity: int64[M], 0 = takes nothing.
        may: bool[M, U], which units a member may take; None = all.
        toll: (tasks, members) -> cost of a copy there (racks); None = the same everywhere.
        leaving: cost of a copy that is not there yet, beside the toll.
        tolls_first: no number of new copies outweighs a toll, and `cost` is tolls alone; else the
            sum of both is minimised and told.
        loads: int64[M], actives each member has, stateless ones included if they are placed;
            None = those of `tasks`.
        taken: copies that stand already; no second one is placed on their members.
    """

    tasks: IntArray
    target: IntArray
    copies: int
    capacity: Counts
    may: BoolArray | None = None
    toll: Toll | None = None
    leaving: int = 0
    tolls_first: bool = False
    loads: Counts | None = None
    taken: Pairs = field(default_factory=no_pairs)

    def within(self, members: BoolArray) -> Wanted:
        """The same asked of some members only."""
        return replace(self, capacity=np.where(members, self.capacity, 0))

    def beside(self, pairs: Pairs) -> Wanted:
        """The same, with copies that are already placed and must not be placed again."""
        return replace(self, taken=pairs)

    def cost(self, view: GroupView, pairs: Pairs) -> int:
        """What some copies cost, as far as it is minimised."""
        if self.toll is None or len(pairs) == 0:
            return 0
        tolls = int(self.toll(pairs.task, pairs.member).sum())
        if self.tolls_first:
            return tolls
        return tolls + self.leaving * int(np.count_nonzero(~contains(view.standby, pairs.code)))

    def price(self, view: GroupView, task: IntArray, member: IntArray) -> Longs:
        """int64[K]: price of each copy, for comparison only."""
        if self.toll is None:
            return np.zeros(len(task), dtype=np.int64)
        new = ~contains(view.standby, code(task, member))
        heavy = len(self.tasks) * len(self.capacity) + 1 if self.tolls_first else 1
        return self.toll(task, member) * heavy + self.leaving * new


def standbys(view: GroupView, copies: Copies, wanted: Wanted) -> tuple[Pairs, int]:
    """Place the standbys.

    Returns:
        The pairs, and how many copies found no member (too few members: a warning, EX-H7).
    """
    need = np.zeros(len(view.tasks), dtype=np.int64)
    need[wanted.tasks] = wanted.copies
    return placed(view, copies, wanted, need)


def placed(view: GroupView, copies: Copies, wanted: Wanted, need: Counts) -> tuple[Pairs, int]:
    """Place as many copies of each task as it needs on members with capacity.

    Args:
        view: the group.
        copies: its copies.
        wanted: tasks, actives and members; its number of copies is not used.
        need: int64[T].

    Returns:
        The pairs, and how many copies found no member.
    """
    usable = wanted.capacity > 0
    asked = int(need.sum())
    need = np.minimum(need, np.count_nonzero(usable) - np.append(usable, False)[wanted.target])
    short = asked - int(need.sum())
    tasks = wanted.tasks[need[wanted.tasks] > 0]
    if len(tasks) == 0:
        return no_pairs(), short
    present = _allowed(view, wanted, view.standby)
    actives = np.where(usable, held(wanted.target[tasks], len(usable)), 0)
    share = bounded_shares(
        int(need.sum()),
        wanted.capacity,
        np.bincount(present.member, minlength=len(usable)),
        actives if wanted.loads is None else np.where(usable, wanted.loads, 0),
        len(tasks) - actives,
    )
    keep = _uncontested(present, share, need)
    if wanted.toll is not None:
        keep[:] = False
    kept = Pairs(present.task[keep], present.member[keep])
    done = np.bincount(kept.task, minlength=len(need)) == need
    open_ = tasks[~done[tasks]]
    if len(open_) == 0:
        return kept, short
    room = share - np.bincount(kept.member, minlength=len(share))
    near = _candidates(view, copies, wanted, open_)
    if len(open_) * np.count_nonzero(room > 0) > MOST_ARCS:
        return _dealt(wanted, kept, near, open_, need, room), short
    found, missing = _flow(view, wanted, near, open_, need, room)
    if missing and len(kept) and len(tasks) * np.count_nonzero(usable) <= MOST_ARCS:
        kept = no_pairs()
        near = _candidates(view, copies, wanted, tasks)
        found, missing = _flow(view, wanted, near, tasks, need, share)
    return joined(kept, found), short + missing


@dataclass(frozen=True, slots=True, eq=False)
class _Near:
    """Copies that exist, and what it costs to use each."""

    pairs: Pairs
    price: Longs


def joined(one: Pairs, other: Pairs) -> Pairs:
    """Two sets of pairs as one."""
    return Pairs.of(
        np.concatenate((one.task, other.task)), np.concatenate((one.member, other.member))
    )


def _allowed(view: GroupView, wanted: Wanted, pairs: Pairs) -> Pairs:
    """Those of some pairs that may be standbys under the new actives."""
    asked = np.zeros(len(view.tasks), dtype=np.bool_)
    asked[wanted.tasks] = True
    keep = asked[pairs.task] & (wanted.capacity[pairs.member] > 0)
    keep &= wanted.target[pairs.task] != pairs.member
    keep &= ~contains(wanted.taken, pairs.code)
    if wanted.may is not None:
        keep &= wanted.may[pairs.member, view.tasks.unit_of[pairs.task]]
    return pairs if keep.all() else Pairs(pairs.task[keep], pairs.member[keep])


def _uncontested(present: Pairs, share: Counts, need: Counts) -> BoolArray:
    """Present standbys of tasks that have exactly enough, none on an overfull member."""
    over = np.bincount(present.member, minlength=len(share)) > share
    exact = np.bincount(present.task, minlength=len(need)) == need
    exact[present.task[over[present.member]]] = False
    answer: BoolArray = exact[present.task]
    return answer


def _candidates(view: GroupView, copies: Copies, wanted: Wanted, open_: IntArray) -> _Near:
    mask = np.zeros(len(view.tasks), dtype=np.bool_)
    mask[open_] = True
    pairs = _allowed(view, wanted, copies.of(mask))
    codes = code(pairs.task, pairs.member)
    price = np.where(copies.told_warm(pairs.task, pairs.member), _PRICE_WARM, _PRICE_SOME)
    learning = contains(view.learner, codes)
    price[learning] = np.minimum(price[learning], _PRICE_LEARNER)
    owner = view.active[pairs.task] == pairs.member
    at_once = copies.warm(pairs.task, wanted.target[pairs.task])
    price[owner & at_once] = _PRICE_FORMER
    price[owner & ~at_once] = _PRICE_STAGED
    price[contains(view.standby, codes)] = _PRICE_PRESENT
    return _Near(pairs, price.astype(np.int64))


def _flow(
    view: GroupView, wanted: Wanted, near: _Near, tasks: IntArray, need: Counts, room: Counts
) -> tuple[Pairs, int]:
    """Cheapest distinct copies for some tasks within the members' room.

    Returns:
        The pairs, and how many copies could not be placed.
    """
    task, member = choices(view, wanted, tasks, np.flatnonzero(room > 0).astype(np.int32))
    real = tasks[task]
    price = np.full(len(task), NEW, dtype=np.int64)
    at, known = _places(near.pairs, real, member)
    price[known] = near.price[at[known]]
    if wanted.toll is not None:
        price += (int(need[tasks].sum()) * NEW + 1) * wanted.price(view, real, member)
    picked, missing = chosen(
        Choices(
            need=need[tasks],
            room=room,
            task=task,
            member=member,
            price=price,
        )
    )
    return Pairs(tasks[picked.task], picked.member), missing


def choices(
    view: GroupView, wanted: Wanted, tasks: IntArray, members: IntArray
) -> tuple[IntArray, IntArray]:
    """Every (place in `tasks`, member) where a copy may stand."""
    task = np.repeat(np.arange(len(tasks), dtype=np.int32), len(members))
    member = np.tile(members, len(tasks))
    fits = wanted.target[tasks[task]] != member
    fits &= ~contains(wanted.taken, code(tasks[task], member))
    if wanted.may is not None:
        fits &= wanted.may[member, view.tasks.unit_of[tasks[task]]]
    return task[fits], member[fits]


def _places(pairs: Pairs, task: IntArray, member: IntArray) -> tuple[Longs, BoolArray]:
    """Where (task, member) stand among some pairs, and whether they do."""
    codes, asked = pairs.code, code(task, member)
    if len(codes) == 0:
        return np.zeros(len(asked), dtype=np.int64), np.zeros(len(asked), dtype=np.bool_)
    at = np.minimum(np.searchsorted(codes, asked), len(codes) - 1)
    return at.astype(np.int64), codes[at] == asked


def _dealt(
    wanted: Wanted, kept: Pairs, near: _Near, tasks: IntArray, need: Counts, room: Counts
) -> Pairs:
    """Very many copies at once: existing ones greedily by price, the rest dealt like cards."""
    room = room.copy()
    left = np.zeros(len(wanted.target), dtype=np.int64)
    left[tasks] = need[tasks]
    found = [_greedy(near, price, left, room) for price in np.unique(near.price)]
    pairs = Pairs.of(
        np.concatenate([kept.task, *(f.task for f in found)]),
        np.concatenate([kept.member, *(f.member for f in found)]),
    )
    slots = dealt(room, -room)
    copy = np.arange(left.max())[:, None] < left[None, tasks]
    asked = np.concatenate([tasks[row] for row in copy])
    slots = np.roll(slots, -1)[: len(asked)]
    return _without_clashes(wanted, pairs, asked[: len(slots)], slots)


def _greedy(near: _Near, price: int, need: Longs, room: Counts) -> Pairs:
    """Use the copies of one price: the first of each member, then the first of each task."""
    take = np.flatnonzero(near.price == price)
    task, member = near.pairs.task[take], near.pairs.member[take]
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


def _without_clashes(wanted: Wanted, pairs: Pairs, task: IntArray, slot: IntArray) -> Pairs:
    """Exchange slots until nobody gets a task twice; what cannot be exchanged is left out."""
    taken = pairs.code
    count = len(task)

    def clashes(tasks: IntArray, slots: IntArray) -> BoolArray:
        bad = wanted.target[tasks] == slots
        if len(taken):
            codes = code(tasks, slots)
            at = np.minimum(np.searchsorted(taken, codes), len(taken) - 1)
            bad |= taken[at] == codes
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
        for place in wrong.tolist():
            other = (place + step * 7) % count
            mine, theirs = slot[[other]], slot[[place]]
            if not (clashes(task[[place]], mine)[0] or clashes(task[[other]], theirs)[0]):
                slot[place], slot[other] = slot[other], slot[place]
    good = ~clashes(task, slot)
    return joined(pairs, Pairs.of(task[good], slot[good]))
