"""Where standbys belong in the end: balanced, as sticky as actives, never beside their active.

Every stateful task wants `num.standby.replicas` copies on distinct members, none of them the one
its active belongs to. A copy that exists is worth more than a new one: present standbys first,
then the former owner of a task that moves (S2-14), then whatever else is warm or on its way.

Tasks whose standbys can all stay are not looked at; the others go through one minimum-cost flow
with an arc per (task, member), or, where most choices are alike, are dealt out at the same cost.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.assignor.copies import Copies, Longs, code, contains
from muster.assignor.model import BoolArray, GroupView, Pairs, no_pairs
from muster.assignor.solvers.balance import held
from muster.assignor.solvers.copyflow import Choices, chosen
from muster.assignor.solvers.shares import Counts, bounded_shares, undecided
from muster.assignor.targets.dealing import by_classes, dealt_out
from muster.assignor.targets.wanted import NEW, Found, Near, Wanted, joined
from muster.protocol.tasks import IntArray

MOST_ARCS = 1_500_000
"""Beyond this many (task, member) arcs copies are dealt out, come what may."""
FEW_ARCS = 5_000
"""Up to this many a flow over all of them costs nothing worth saving."""
_FINEST = 1 << 26
"""Prices of copies are told apart by racks up to here; the solver multiplies them."""
_TOO_MANY = (
    "rack.aware.standby.strategy=reliability_then_traffic is not honoured: more than"
    f" {MOST_ARCS:,} choices of member for standbys; traffic alone is minimised"
)

_PRICE_LATE = NEW // 8 + 1
"""Of a further copy in a rack that has one: more than a copy there saves, less than traffic."""

_PRICE_PRESENT, _PRICE_FORMER, _PRICE_STAGED, _PRICE_WARM, _PRICE_LEARNER, _PRICE_SOME = (
    0, 1, 2, 3, 4, 20,
)  # fmt: skip


def standbys(view: GroupView, copies: Copies, wanted: Wanted) -> Found:
    """Place the standbys; too few members is a matter of a warning (EX-H7)."""
    need = np.zeros(len(view.tasks), dtype=np.int64)
    need[wanted.tasks] = wanted.copies
    return placed(view, copies, wanted, need)


def placed(view: GroupView, copies: Copies, wanted: Wanted, need: Counts) -> Found:
    """Place as many copies of each task as it needs on members with capacity.

    Args:
        view: the group.
        copies: its copies.
        wanted: tasks, actives and members; its number of copies is not used.
        need: int64[T].
    """
    usable = wanted.capacity > 0
    asked = int(need.sum())
    need = np.minimum(need, np.count_nonzero(usable) - np.append(usable, False)[wanted.target])
    short = asked - int(need.sum())
    tasks = wanted.tasks[need[wanted.tasks] > 0]
    if len(tasks) == 0:
        return Found(no_pairs(), short)
    present = _allowed(view, wanted, view.standby)
    actives = np.where(usable, held(wanted.target[tasks], len(usable)), 0)
    share = bounded_shares(
        int(need.sum()),
        wanted.capacity,
        np.bincount(present.member, minlength=len(usable)),
        actives if wanted.loads is None else np.where(usable, wanted.loads, 0),
        _takes(view, wanted, tasks) - actives,
    )
    keep = _uncontested(present, share, need)
    if wanted.toll is not None:
        keep[:] = False
    kept = present.only(keep)
    done = np.bincount(kept.task, minlength=len(need)) == need
    open_ = tasks[~done[tasks]]
    if len(open_) == 0:
        return Found(kept, short)
    room = share - np.bincount(kept.member, minlength=len(share))
    arcs = len(open_) * np.count_nonzero(room > 0)
    if arcs > MOST_ARCS and wanted.toll is not None:
        found = by_classes(view, wanted, need, present, room)
        return found._replace(warning=_TOO_MANY) if wanted.apart else found
    near = _candidates(view, copies, wanted, open_)
    if arcs > MOST_ARCS or (arcs > FEW_ARCS and _mostly_alike(wanted, need, room)):
        placed_, missing = dealt_out(view, wanted, near, open_, need, room)
        if missing == 0 or arcs > MOST_ARCS:
            return Found(joined(kept, placed_), short + missing)
    placed_, missing = _flow(view, wanted, near, open_, need, room)
    if missing and len(tasks) * np.count_nonzero(usable) <= MOST_ARCS:
        kept = no_pairs()  # rather an uneven copy than none
        near = _candidates(view, copies, wanted, tasks)
        placed_, missing = _flow(view, wanted, near, tasks, need, share, overfull=True)
    pairs = joined(kept, placed_)
    return Found(pairs, short + missing, wanted.cost(view, pairs))


def _takes(view: GroupView, wanted: Wanted, tasks: IntArray) -> Counts:
    """int64[M]: of how many tasks each member may have a copy."""
    if wanted.may is None:
        return np.full(len(wanted.capacity), len(tasks), dtype=np.int64)
    unit = np.bincount(view.tasks.unit_of[tasks], minlength=wanted.may.shape[1])
    number: Counts = wanted.may @ unit
    return number


def _mostly_alike(wanted: Wanted, need: Counts, room: Counts) -> bool:
    """Whether a deal will do: all members alike, and so many that copies rarely clash."""
    rare = bool(8 * need.max() <= np.count_nonzero(room > 0))
    return rare and wanted.toll is None and wanted.may is None


def _allowed(view: GroupView, wanted: Wanted, pairs: Pairs) -> Pairs:
    """Those of some pairs that may be standbys under the new actives."""
    asked = np.zeros(len(view.tasks), dtype=np.bool_)
    asked[wanted.tasks] = True
    keep = asked.take(pairs.task) & (wanted.capacity > 0).take(pairs.member)
    keep &= wanted.target.take(pairs.task) != pairs.member
    if len(wanted.taken):
        keep &= ~contains(wanted.taken, pairs.code)
    if wanted.may is not None:
        keep &= wanted.may[pairs.member, view.tasks.unit_of[pairs.task]]
    return pairs if keep.all() else pairs.only(keep)


def _uncontested(present: Pairs, share: Counts, need: Counts) -> BoolArray:
    """Present standbys of tasks that have exactly enough, none on an overfull member."""
    over = np.bincount(present.member, minlength=len(share)) > share
    exact = np.bincount(present.task, minlength=len(need)) == need
    exact[present.task[over.take(present.member)]] = False
    answer: BoolArray = exact.take(present.task)
    return answer


def _candidates(view: GroupView, copies: Copies, wanted: Wanted, open_: IntArray) -> Near:
    pairs = _allowed(view, wanted, copies.of(open_))
    codes = code(pairs.task, pairs.member)
    price = np.where(copies.told_warm(pairs.task, pairs.member), _PRICE_WARM, _PRICE_SOME)
    learning = contains(view.learner, codes)
    price[learning] = np.minimum(price[learning], _PRICE_LEARNER)
    owner = view.active[pairs.task] == pairs.member
    at_once = copies.warm(pairs.task, wanted.target[pairs.task])
    price[owner & at_once] = _PRICE_FORMER
    price[owner & ~at_once] = _PRICE_STAGED
    price[contains(view.standby, codes)] = _PRICE_PRESENT
    return Near(pairs, price.astype(np.int64))


def _flow(
    view: GroupView,
    wanted: Wanted,
    near: Near,
    tasks: IntArray,
    need: Counts,
    room: Counts,
    *,
    overfull: bool = False,
) -> tuple[Pairs, int]:
    """Cheapest distinct copies for some tasks within the members' room; beyond it if asked.

    Returns:
        The pairs, and how many copies could not be placed.
    """
    takers = wanted.capacity > 0 if overfull or wanted.toll is not None else room > 0
    task, member = choices(view, wanted, tasks, np.flatnonzero(takers).astype(np.int32))
    real = tasks[task]
    price = np.full(len(task), NEW, dtype=np.int64)
    at, known = _places(near.pairs, real, member)
    price[known] = near.price[at[known]]
    if wanted.toll is not None:
        copies = int(need[tasks].sum())
        heavy = copies * NEW // (8 if _all_apart(wanted) else 2) + 1
        price = price // 8 + heavy * wanted.price(view, copies, real, member)
    asked = Choices(need=need[tasks], room=room, task=task, member=member, price=price)
    if wanted.toll is not None:
        beside = held(wanted.target, len(room)) if wanted.loads is None else wanted.loads
        base, pool, pools = undecided(room, wanted.capacity, beside)
        asked = replace(asked, room=base, pool=pool, pools=pools)
    if wanted.apart and wanted.toll is not None:
        rack = wanted.toll.rack
        first = np.minimum(need[tasks], wanted.apart)
        asked = replace(
            asked,
            value=rack,
            taken=rack[wanted.target[tasks]],
            late=need[tasks] - first,
            late_price=_PRICE_LATE,
            repeats=first,
            repeat_price=(int(price.max(initial=0)) + _PRICE_LATE) * int(need[tasks].sum()),
        )
    else:
        asked = _in_other_racks(wanted, tasks, asked)
    picked, missing = chosen(asked)
    return Pairs(tasks[picked.task], picked.member), missing


def _in_other_racks(wanted: Wanted, tasks: IntArray, asked: Choices) -> Choices:
    """The same, where of equally dear choices copies go to racks that have none (S4-29)."""
    if wanted.rack is None:
        return asked
    scale = 2 * int(asked.need.sum()) + 1
    if int(asked.price.max(initial=0)) * scale > _FINEST:
        return asked
    rack = np.where(wanted.rack < 0, wanted.rack.max() + 1, wanted.rack).astype(np.int32)
    return replace(
        asked,
        price=asked.price * scale,
        value=rack,
        taken=rack[wanted.target[tasks]],
        late=asked.need,
        late_price=1,
        repeats=np.zeros_like(asked.need),
    )


def _all_apart(wanted: Wanted) -> bool:
    """Whether all copies of a task are treated alike in how they should part."""
    return wanted.apart in (0, wanted.copies)


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
