"""Final members of standbys: balanced, as sticky as actives, never on their active's member.

Every stateful task needs `num.standby.replicas` copies on distinct members. An existing copy is
worth more than a new one: present standbys first, then the former owner of a task that moves
(S2-14), then other warm copies and learners. A task with more standbys than it needs keeps those
that have caught up.

Tasks whose standbys can all stay keep them. One minimum-cost flow with an arc per (task, member)
places the copies of the others; where most choices are alike, they are dealt out at the same cost.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.assignor.copy_lags import Copies, Longs, code, contains
from muster.assignor.model import BoolArray, Pairs, no_pairs
from muster.assignor.solvers.copyflow import Choices, chosen
from muster.assignor.solvers.fewest_moves import held
from muster.assignor.solvers.flow import CostsTooLarge
from muster.assignor.solvers.shares import Counts, bounded_shares, undecided
from muster.assignor.targets.many_copies import by_classes, completed, dealt_out
from muster.assignor.targets.restricted import copy_shares
from muster.assignor.targets.standby_request import (
    NEW_COPY,
    ExistingCopies,
    PlacedStandbys,
    StandbyRequest,
    joined,
)
from muster.protocol.tasks import IntArray

MAX_ARCS = 1_500_000
"""Above this number of (task, member) arcs, copies are always dealt out."""
FEW_ARCS = 5_000
"""Up to this number of arcs, one flow over all of them is fast enough."""
_FINEST = 1 << 26
"""Largest price up to which racks break ties: the solver multiplies prices."""
_NOT_HONOURED = (
    "rack.aware.standby.strategy=reliability_then_traffic is not honoured: {} choices of member for"
    " standbys; traffic alone is minimised"
)

_PRICE_SAME_RACK = NEW_COPY // 8 + 1
"""Price of a second copy in one rack: more than an existing copy saves, less than traffic."""

_PRICE_PRESENT, _PRICE_FORMER, _PRICE_STAGED, _PRICE_WARM, _PRICE_LEARNER, _PRICE_COLD = (
    0, 1, 2, 3, 4, 20,
)  # fmt: skip


def standbys(copies: Copies, request: StandbyRequest) -> PlacedStandbys:
    """Place the standbys; too few members is a warning, not an error (EX-H7)."""
    need = np.zeros(len(request.target), dtype=np.int64)
    need[request.tasks] = request.copies
    return placed(copies, request, need)


def placed(copies: Copies, request: StandbyRequest, need: Counts) -> PlacedStandbys:
    """Place `need` (int64[T]) copies of the request's tasks on members with capacity."""
    usable = request.capacity > 0
    demand = int(need.sum())
    need = np.minimum(need, np.count_nonzero(usable) - np.append(usable, False)[request.target])
    short = demand - int(need.sum())
    tasks = request.tasks[need[request.tasks] > 0]
    if len(tasks) == 0:
        return PlacedStandbys(no_pairs(), short)
    present = _allowed(request, request.view.standby)
    actives = np.where(usable, held(request.target[tasks], len(usable)), 0)
    beside = actives if request.loads is None else np.where(usable, request.loads, 0)
    number = None if request.may is None else _placeable(request, tasks, need)
    share = bounded_shares(
        int(need.sum() if number is None else number.sum()),
        request.capacity,
        np.bincount(present.member, minlength=len(usable)),
        beside,
        _takes(request, tasks) - actives,
    )
    if number is not None:
        share = copy_shares(request.view, request.capacity, number, present, beside, share)
    keep = _uncontested(present, share, need)
    if request.toll is not None:
        keep[:] = False
    staying = present.only(keep)
    done = np.bincount(staying.task, minlength=len(need)) == need
    open_tasks = tasks[~done[tasks]]
    if len(open_tasks) == 0:
        return PlacedStandbys(staying, short)
    room = share - np.bincount(staying.member, minlength=len(share))
    arcs = len(open_tasks) * np.count_nonzero(room > 0)
    if arcs > MAX_ARCS and request.toll is not None:
        present = _of_each_task(copies, present, need)
        return _by_traffic(request, need, present, room, f"more than {MAX_ARCS:,}")
    existing = _candidates(copies, request, open_tasks, need)
    if arcs > MAX_ARCS or (arcs > FEW_ARCS and _mostly_alike(request, need, room)):
        new_pairs, missing = dealt_out(request, existing, open_tasks, need, room)
        if missing == 0 or arcs > MAX_ARCS:
            pairs = completed(request, joined(staying, new_pairs), need, share)
            return PlacedStandbys(pairs, short + int(need.sum()) - len(pairs))
    try:
        new_pairs, missing = _flow(request, existing, open_tasks, need, room)
    except CostsTooLarge:
        if request.toll is None:
            raise
        if request.copies_in_distinct_racks:  # without these the prices are lower
            by_traffic = placed(copies, replace(request, copies_in_distinct_racks=0), need)
            missing, warning = short + by_traffic.missing, _NOT_HONOURED.format("too many")
            return by_traffic._replace(missing=missing, warning=warning)
        present = _of_each_task(copies, present, need)
        return _by_traffic(request, need, present, room, "too many")
    if missing and len(tasks) * np.count_nonzero(usable) <= MAX_ARCS:
        staying = no_pairs()  # an uneven placement is better than a missing copy
        existing = _candidates(copies, request, tasks, need)
        new_pairs, missing = _flow(request, existing, tasks, need, share, overfull=True)
    pairs = joined(staying, new_pairs)
    return PlacedStandbys(pairs, short + missing, request.cost(pairs))


def _by_traffic(
    request: StandbyRequest, need: Counts, present: Pairs, room: Counts, many: str
) -> PlacedStandbys:
    """Standbys by traffic alone, because there are so `many` choices."""
    warning = _NOT_HONOURED.format(many) if request.copies_in_distinct_racks else ""
    return by_classes(request, need, present, room)._replace(warning=warning)


def _takes(request: StandbyRequest, tasks: IntArray) -> Counts:
    """int64[M]: how many of the tasks each member may have a copy of."""
    if request.may is None:
        return np.full(len(request.capacity), len(tasks), dtype=np.int64)
    unit = np.bincount(request.view.tasks.unit_of[tasks], minlength=request.may.shape[1])
    number: Counts = request.may @ unit
    return number


def _placeable(request: StandbyRequest, tasks: IntArray, need: Counts) -> Counts:
    """int64[U]: how many copies of each unit's tasks find members that may have them."""
    assert request.may is not None
    usable, unit = request.capacity > 0, request.view.tasks.unit_of[tasks]
    owner = request.target[tasks]
    able = np.count_nonzero(request.may[usable], axis=0)[unit]
    able -= np.append(usable, False)[owner] & request.may[owner, unit]  # the last: no owner
    copies = np.minimum(need[tasks], able)
    return np.bincount(unit, copies, request.may.shape[1]).astype(np.int64)


def _mostly_alike(request: StandbyRequest, need: Counts, room: Counts) -> bool:
    """Whether dealing out is as good as a flow: all members are alike, and clashes are rare."""
    rare = bool(8 * need.max() <= np.count_nonzero(room > 0))
    return rare and request.toll is None and request.may is None


def _allowed(request: StandbyRequest, pairs: Pairs) -> Pairs:
    """The pairs that may be standbys beside the planned actives."""
    asked = np.zeros(len(request.target), dtype=np.bool_)
    asked[request.tasks] = True
    keep = asked.take(pairs.task) & (request.capacity > 0).take(pairs.member)
    keep &= request.target.take(pairs.task) != pairs.member
    if len(request.taken):
        keep &= ~contains(request.taken, pairs.code)
    if request.may is not None:
        keep &= request.may[pairs.member, request.view.tasks.unit_of[pairs.task]]
    return pairs if keep.all() else pairs.only(keep)


def _uncontested(present: Pairs, share: Counts, need: Counts) -> BoolArray:
    """Present standbys of tasks that have exactly enough, none on a member above its share."""
    over = np.bincount(present.member, minlength=len(share)) > share
    exact = np.bincount(present.task, minlength=len(need)) == need
    exact[present.task[over.take(present.member)]] = False
    answer: BoolArray = exact.take(present.task)
    return answer


def _of_each_task(copies: Copies, present: Pairs, need: Counts) -> Pairs:
    """At most as many present standbys of each task as it needs; caught-up ones come first."""
    warm = copies.reported_warm(present.task, present.member)
    order = np.lexsort((present.member, ~warm, present.task))
    nth = np.arange(len(present)) - np.searchsorted(present.task, present.task)
    return present.only(np.sort(order[nth < need[present.task]]))


def _candidates(
    copies: Copies, request: StandbyRequest, tasks: IntArray, need: Counts
) -> ExistingCopies:
    view = request.view
    pairs = _allowed(request, copies.of(tasks))
    codes = code(pairs.task, pairs.member)
    warm = copies.reported_warm(pairs.task, pairs.member)
    price = np.where(warm, _PRICE_WARM, _PRICE_COLD)
    learning = contains(view.learner, codes)
    price[learning] = np.minimum(price[learning], _PRICE_LEARNER)
    owner = view.active[pairs.task] == pairs.member
    at_once = copies.warm(pairs.task, request.target[pairs.task])
    price[owner & at_once] = _PRICE_FORMER
    price[owner & ~at_once] = _PRICE_STAGED
    present = contains(view.standby, codes)
    price[present & ~_surplus(pairs.task, present, warm, need)] = _PRICE_PRESENT
    return ExistingCopies(pairs, price.astype(np.int64))


def _surplus(task: IntArray, present: BoolArray, warm: BoolArray, need: Counts) -> BoolArray:
    """bool[K]: copies behind, of tasks with more standbys than needed, one of them caught up."""
    standbys = np.bincount(task[present], minlength=len(need))
    has_surplus = (standbys > need) & (np.bincount(task[present & warm], minlength=len(need)) > 0)
    surplus: BoolArray = has_surplus[task] & ~warm
    return surplus


def _flow(
    request: StandbyRequest,
    existing: ExistingCopies,
    tasks: IntArray,
    need: Counts,
    room: Counts,
    *,
    overfull: bool = False,
) -> tuple[Pairs, int]:
    """Cheapest distinct copies within the members' room, or beyond it; and how many found none."""
    takers = request.capacity > 0 if overfull or request.toll is not None else room > 0
    task, member = choices(request, tasks, np.flatnonzero(takers).astype(np.int32))
    task_of = tasks[task]
    price = np.full(len(task), NEW_COPY, dtype=np.int64)
    index, known = _lookup(existing.pairs, task_of, member)
    price[known] = existing.price[index[known]]
    if request.toll is not None:
        copies = int(need[tasks].sum())
        one_rule = request.copies_in_distinct_racks in (0, request.copies)  # for all copies
        heavy = copies * NEW_COPY // (8 if one_rule else 2) + 1
        price = price // 8 + heavy * request.price(copies, task_of, member)
    asked = Choices(need=need[tasks], room=room, task=task, member=member, price=price)
    if request.toll is not None:
        actives = held(request.target, len(room)) if request.loads is None else request.loads
        base, pool, pools = undecided(room, request.capacity, actives)
        asked = replace(asked, room=base, pool=pool, pools=pools)
    if request.copies_in_distinct_racks and request.toll is not None:
        rack = request.toll.rack
        apart = np.minimum(need[tasks], request.copies_in_distinct_racks)
        asked = replace(
            asked,
            value=rack,
            taken=rack[request.target[tasks]],
            cheap_repeats=need[tasks] - apart,
            cheap_repeat_price=_PRICE_SAME_RACK,
            repeats=apart,
            repeat_price=(int(price.max(initial=0)) + _PRICE_SAME_RACK) * int(need[tasks].sum()),
        )
    else:
        asked = _in_other_racks(request, tasks, asked)
    picked, missing = chosen(asked)
    return Pairs(tasks[picked.task], picked.member), missing


def _in_other_racks(request: StandbyRequest, tasks: IntArray, asked: Choices) -> Choices:
    """The same choices, with racks as the tie-break: a copy prefers a rack without one (S4-29)."""
    if request.rack is None:
        return asked
    scale = 2 * int(asked.need.sum()) + 1
    if int(asked.price.max(initial=0)) * scale > _FINEST:
        return asked
    rack = np.where(request.rack < 0, request.rack.max() + 1, request.rack).astype(np.int32)
    return replace(
        asked,
        price=asked.price * scale,
        value=rack,
        taken=rack[request.target[tasks]],
        cheap_repeats=asked.need,
        cheap_repeat_price=1,
        repeats=np.zeros_like(asked.need),
    )


def choices(
    request: StandbyRequest, tasks: IntArray, members: IntArray
) -> tuple[IntArray, IntArray]:
    """Every (index into `tasks`, member) where a copy may be placed."""
    task = np.repeat(np.arange(len(tasks), dtype=np.int32), len(members))
    member = np.tile(members, len(tasks))
    fits = request.target[tasks[task]] != member
    fits &= ~contains(request.taken, code(tasks[task], member))
    if request.may is not None:
        fits &= request.may[member, request.view.tasks.unit_of[tasks[task]]]
    return task[fits], member[fits]


def _lookup(pairs: Pairs, task: IntArray, member: IntArray) -> tuple[Longs, BoolArray]:
    """Index of each (task, member) among the pairs, and whether it is there."""
    codes, asked = pairs.code, code(task, member)
    if len(codes) == 0:
        return np.zeros(len(asked), dtype=np.int64), np.zeros(len(asked), dtype=np.bool_)
    index = np.minimum(np.searchsorted(codes, asked), len(codes) - 1)
    return index.astype(np.int64), codes[index] == asked
