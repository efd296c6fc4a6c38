"""Placing very many copies, where a flow with an arc per (task, member) would be too large.

Without racks, a flow over groups of equal tasks (`muster.assignor.targets.alike_copies`) says which
existing copies to use and how many new ones each member takes; these are dealt round robin. With
racks, there is one flow over classes of tasks. Both flows may put two copies of a task on one
member, or a copy on a member that may not take it, so their costs are lower bounds; such copies are
then exchanged with neighbours, which cost the same, or placed one by one (`completed`).
"""

from __future__ import annotations

import numpy as np

from muster.assignor.copy_lags import Longs, code, contains
from muster.assignor.model import NO_MEMBER, BoolArray, Pairs, no_pairs
from muster.assignor.solvers.fewest_moves import dealt, held
from muster.assignor.solvers.shares import Counts
from muster.assignor.solvers.transport import Freight, Room, place
from muster.assignor.targets.alike_copies import used
from muster.assignor.targets.standby_request import (
    ExistingCopies,
    PlacedStandbys,
    StandbyRequest,
    joined,
)
from muster.protocol.tasks import IntArray


def dealt_out(
    request: StandbyRequest,
    existing: ExistingCopies,
    tasks: IntArray,
    need: Counts,
    room: Counts,
) -> tuple[Pairs, int]:
    """Use existing copies where they are worth most, and deal the rest round robin, without tolls.

    The arguments are those of `alike_copies.used`.

    Returns:
        The pairs, and how many copies could not be placed.
    """
    used_pairs, free = used(request, existing, tasks, need, room)
    lacking = need[tasks] - np.bincount(used_pairs.task, minlength=len(need))[tasks]
    slots = np.roll(dealt(free, -free), -1)  # shifted by one against the deal of the actives
    task_of_slot = np.repeat(tasks, lacking)[: len(slots)]  # adjacent slots are different members
    slots = slots[: len(task_of_slot)]
    pairs = _without_clashes(request, used_pairs, task_of_slot, slots, stride=7, racks=True)
    return pairs, int(need[tasks].sum()) - len(pairs)


def by_classes(
    request: StandbyRequest, need: Counts, present: Pairs, room: Counts
) -> PlacedStandbys:
    """Choose the cheapest rack for every copy by one flow over classes; `present` ones may stay.

    Each task needs `need` (int64[T]) copies, each member has `room` (int64[M]) for some.
    """
    toll = request.toll
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
        toll=toll.across * request.heavy(len(copy)),
        zone=toll.rack,
        leaving=request.leaving,
        task=none,
        member=none,
        rank=np.empty(0, dtype=np.int64),
    )
    owner, _ = place(freight, Room(room, 0, np.zeros_like(room)))
    bound = int(toll(copy, owner).sum())
    if not request.tolls_first:
        bound += request.leaving * int(np.count_nonzero(owner != home))
    order = np.lexsort((copy, toll.class_of[copy], toll.rack[owner]))
    dealt_pairs = _without_clashes(request, no_pairs(), copy[order], owner[order], stride=1)
    pairs = completed(request, dealt_pairs, need, room)
    if len(dealt_pairs) < len(copy):  # the flow's bound is that of the members' room
        bound = toll.least(need)
        if not request.tolls_first:
            bound += request.leaving * int(np.count_nonzero(home == NO_MEMBER))
        bound = min(bound, request.cost(pairs))  # a copy for which there is no member costs nothing
    return PlacedStandbys(pairs, int(need.sum()) - len(pairs), bound)


def completed(request: StandbyRequest, pairs: Pairs, need: Counts, share: Counts) -> Pairs:
    """The pairs, and the copies that they lack of `need` (int64[T]), placed one by one.

    The deals exchange copies with a few neighbours only. Where topics restrict members, or the
    members that may take a unit have too little room, they leave copies out. Here a copy goes to a
    member below its `share` (int64[M]) or, an uneven placement being better than a missing copy, to
    any other; then where it costs least, where it is a standby now, to a rack without the active,
    and where the load by capacity ends lowest.
    """
    lacking = need - np.bincount(pairs.task, minlength=len(need))
    tasks = np.flatnonzero(lacking > 0).astype(np.int32)
    if len(tasks) == 0:
        return pairs
    view, usable = request.view, request.capacity > 0
    loads = held(request.target, len(usable)) if request.loads is None else request.loads
    placed = np.bincount(pairs.member, minlength=len(usable))
    held_now, copies = view.standby, int(need.sum())
    added: list[tuple[int, int]] = []
    for task in tasks.tolist():
        open_ = usable if request.may is None else usable & request.may[:, view.tasks.unit_of[task]]
        open_ = np.append(open_, False)  # entry -1: no member
        open_[request.target[task]] = False
        for of_task in (_members(pairs, task), _members(request.taken, task)):
            open_[of_task] = False
        member = np.flatnonzero(open_[:-1]).astype(np.int32)
        same = np.full(len(member), task, dtype=np.int32)
        moved = ~np.isin(member, _members(held_now, task))
        level = (loads[member] + placed[member] + 1) / request.capacity[member]
        price = request.price(copies, same, member)
        beside = request.beside_active(same, member)
        ranks = level, beside, moved, price, placed[member] >= share[member]
        best = member[np.lexsort(ranks)[: lacking[task]]]
        placed[best] += 1
        added += [(task, each) for each in best.tolist()]
    new = np.array(added, dtype=np.int32).reshape(-1, 2)
    return joined(pairs, Pairs.of(new[:, 0], new[:, 1]))


def _members(pairs: Pairs, task: int) -> IntArray:
    """The members of a task's pairs."""
    first, last = np.searchsorted(pairs.task, (task, task + 1))
    return pairs.member[first:last]


def _without_clashes(
    request: StandbyRequest,
    pairs: Pairs,
    task: IntArray,
    slot: IntArray,
    *,
    stride: int,
    racks: bool = False,
) -> Pairs:
    """Exchange slots until no member has a task twice; leave out what cannot be exchanged.

    The exchange partner is `stride` slots further each round: 1 where neighbours cost the same,
    more where neighbours clash with the same tasks. With `racks`, a slot in the rack of the task's
    active is exchanged too if that causes no clash (S4-29).
    """
    count = len(task)
    unit = request.view.tasks.unit_of

    def clashes(tasks: IntArray, slots: IntArray) -> BoolArray:
        bad = request.target[tasks] == slots
        codes = code(tasks, slots)
        bad |= contains(pairs, codes) | contains(request.taken, codes)
        if request.may is not None:
            bad |= ~request.may[slots, unit[tasks]]
        clashing: BoolArray = bad
        return clashing

    def exchange(one: Longs, other: Longs) -> None:
        fits = ~(clashes(task[one], slot[other]) | clashes(task[other], slot[one]))
        one, other = one[fits], other[fits]
        slot[one], slot[other] = slot[other], slot[one]

    slot = slot.copy()
    for step in range(1, min(count, 64)):
        clashing = np.flatnonzero(clashes(task, slot) | _repeated(code(task, slot)))
        if len(clashing) == 0:
            break
        exchange(*_disjoint(clashing, (clashing + step * stride) % count))
    for step in range(1, min(count, 64) if racks and request.rack is not None else 1):
        same_rack = request.beside_active(task, slot)
        one = np.flatnonzero(same_rack)
        if len(one) == 0:
            break
        one, other = _disjoint(one, (one + step * stride) % count)
        before = 1 + same_rack[other].astype(np.int8)
        after = request.beside_active(task[one], slot[other]).astype(np.int8)
        after += request.beside_active(task[other], slot[one])
        exchange(one[after < before], other[after < before])
    clean = ~(clashes(task, slot) | _repeated(code(task, slot)))
    return joined(pairs, Pairs.of(task[clean], slot[clean]))


def _repeated(codes: Longs) -> BoolArray:
    """bool[K]: which codes occur earlier in the array."""
    again = np.ones(len(codes), dtype=np.bool_)
    again[np.unique(codes, return_index=True)[1]] = False
    return again


def _disjoint(one: Longs, other: Longs) -> tuple[Longs, Longs]:
    """The exchanges that share no slot with an earlier exchange."""
    first = ~_repeated(np.column_stack((one, other)).ravel()).reshape(-1, 2)
    alone = first.all(axis=1)
    return one[alone], other[alone]
