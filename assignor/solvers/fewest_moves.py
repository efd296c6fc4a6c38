"""The fewest moves from present owners to given shares per member.

A task whose owner is within its share stays; a member above its share gives up exactly the surplus;
the surplus and the tasks without an owner are dealt to members below their shares. No other
placement with these shares moves fewer tasks.

This leaves open which tasks a member gives up, and which member with room gets which task. The
choice spreads each unit over the members: by rules where many tasks move, exchange by exchange
where few do. Only tasks of members above their share are sorted, so the cost is proportional to the
change, plus a few passes over plain arrays.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import NO_MEMBER, BoolArray
from muster.assignor.solvers.shares import Counts
from muster.protocol.tasks import IntArray

Longs = NDArray[np.int64]
MAX_SWAPPED = 128
"""Up to this many moving tasks, exchanges between two of them are tried."""
MAX_SWAPS = 16
"""Limit of exchanges, best first; each takes about 20 us."""


def held(owner: IntArray, members: int) -> Counts:
    """int64[M]: how many entries of an owner vector name each member."""
    if int(owner.max(initial=NO_MEMBER)) == NO_MEMBER:  # bincount is slow on a constant array
        return np.zeros(members, dtype=np.int64)
    return np.bincount(owner + 1, minlength=members + 1)[1:]


def settle(
    owner: IntArray,
    share: Counts,
    count: Counts | None = None,
    begins: IntArray | None = None,
    first: BoolArray | None = None,
) -> IntArray:
    """Bring an owner vector to the shares with the fewest moves.

    Args:
        owner: int32[K], `NO_MEMBER` where a task has no owner to stay with.
        share: int64[M], summing up to K.
        count: int64[M], how many tasks name each member; None = count them here.
        begins: int[U], index of each unit's first task, to spread units where moves are equal;
            None = units are not spread.
        first: bool[K], tasks that a member gives up before others; None = all are alike.

    Returns:
        int32[K], a new vector unless nothing changes.
    """
    count = held(owner, len(share)) if count is None else count
    if not count.any():
        return dealt(share, count)
    unowned = np.flatnonzero(owner == NO_MEMBER)
    surrendered = surplus(owner, count, share, begins, first)
    moving = unowned if len(surrendered) == 0 else np.sort(np.concatenate((unowned, surrendered)))
    if len(moving) == 0:
        return owner
    settled = owner.copy()
    settled[moving] = dealt(np.maximum(share - count, 0), np.minimum(count, share))
    if begins is not None and 1 < len(moving) <= MAX_SWAPPED:
        swapped(settled, moving, begins, len(share))
    return settled


def surplus(
    owner: IntArray,
    count: Counts,
    share: Counts,
    begins: IntArray | None = None,
    first: BoolArray | None = None,
) -> IntArray:
    """Tasks that members above their share give up, ascending.

    A member gives up its last tasks; with `begins` (see `settle`), those of the units of which it
    has most; with `first`, these tasks before all others.
    """
    over = count > share
    if not over.any():
        return np.empty(0, dtype=np.int32)
    over = np.append(over, False)  # entry -1: no member
    tasks = np.flatnonzero(over.take(owner))
    tasks = tasks[np.argsort(owner[tasks], kind="stable")]
    members = owner[tasks]
    if begins is not None:
        excess = np.maximum(count - share, 0)
        turn = (np.cumsum(excess) - excess)[members]
        tasks = tasks[by_turns(members, _unit(begins, tasks), turn)]
    if first is not None:
        tasks = tasks[np.lexsort((first[tasks], members))]
    rank = np.arange(len(tasks)) - np.searchsorted(members, members)
    return np.sort(tasks[rank >= share[members]]).astype(np.int32)


def _unit(begins: IntArray, place: Longs | IntArray) -> Longs:
    """int64[N]: the unit of the tasks at the given indexes."""
    unit: Longs = np.searchsorted(begins, place, side="right") - 1
    return unit


def by_turns(group: IntArray, unit: IntArray | Longs, turn: Longs) -> Longs:
    """The order in which tasks are kept: one of each unit, then a second of each, and so on.

    Args:
        group: int[K], ascending; each group keeps some of its tasks.
        unit: int32[K], ascending within a group.
        turn: int64[K], the same within a group: the unit (modulo their number) that loses a task
            first. It differs between groups, so that they do not all give up the same unit.
    """
    index = np.arange(len(group))
    begins = np.append(True, (np.diff(group) != 0) | (np.diff(unit) != 0))
    level = index - np.maximum.accumulate(np.where(begins, index, 0))
    unit_count = int(unit.max(initial=0)) + 1
    return np.lexsort((-((unit - turn) % unit_count), level, group))


def swapped(
    owner: IntArray,
    moving: Longs,
    begins: IntArray,
    members: int,
    may: Callable[[IntArray, IntArray], NDArray[np.bool_]] | None = None,
) -> None:
    """Exchange tasks that are `moving` anyway while that spreads their units more evenly; in place.

    The measure is the sum of squares of the numbers of tasks of a unit on a member. `begins` is
    that of `settle`; `may` says which units and members (int32[N] each) go together, None = all do.
    """
    takers, slot = np.unique(owner[moving], return_inverse=True)
    kinds, kind = np.unique(_unit(begins, moving), return_inverse=True)
    if len(takers) == 1 or len(kinds) == 1:
        return
    takes = np.zeros(members + 1, dtype=np.bool_)
    takes[takers] = True
    tasks = np.flatnonzero(takes.take(owner))
    kind_of_unit = np.full(len(begins), len(kinds))
    kind_of_unit[kinds] = np.arange(len(kinds))
    code = kind_of_unit[_unit(begins, tasks)] * len(takers) + np.searchsorted(takers, owner[tasks])
    size = (len(kinds) + 1) * len(takers)
    count = np.bincount(code, minlength=size).reshape(-1, len(takers))
    fits = np.ones((len(kinds), len(takers)), dtype=np.bool_)
    if may is not None:
        pairs = np.repeat(kinds, len(takers)), np.tile(takers, len(kinds))
        fits = may(pairs[0].astype(np.int32), pairs[1]).reshape(fits.shape)
    for _ in range(MAX_SWAPS):
        own = count[kind, slot]  # tasks of a task's unit on its own member
        other = count[kind[:, None], slot[None, :]]  # and on each other task's member
        gain = own[:, None] + own[None, :] - other - other.T - 2
        gain[(kind[:, None] == kind) | (slot[:, None] == slot)] = 0
        if may is not None:
            allowed = fits[kind[:, None], slot[None, :]]
            gain[~(allowed & allowed.T)] = 0
        first, second = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[first, second] <= 0:
            break
        for mover, target in ((first, slot[second]), (second, slot[first])):
            count[kind[mover], slot[mover]] -= 1
            count[kind[mover], target] += 1
        slot[first], slot[second] = slot[second], slot[first]
    owner[moving] = takers[slot]


def dealt(room: Counts, level: Counts) -> IntArray:
    """The order in which free slots are filled, the emptiest member first.

    Neighbouring tasks (of one subtopology) therefore land on different members.

    Members have `room` slots beside the `level` slots that are filled already, int64[M] each.
    """
    member = np.arange(len(room), dtype=np.int32)
    top, total = level + room, int(room.sum())
    low, high = int(level.min(initial=0)), int(top.max(initial=0))
    if (high - low) * len(room) <= 4 * total:  # most slots are free: no need to sort
        height = np.arange(low, high)[:, None]
        free = (level <= height) & (height < top)
        return np.broadcast_to(member, free.shape)[free]
    member = np.repeat(member, room)
    if len(member) <= 1:
        return member
    starts = np.cumsum(room) - room
    height = np.arange(len(member)) - np.repeat(starts - level, room)
    height -= height.min()
    if height.max() < 1 << 16:  # numpy sorts 16-bit keys by radix
        height = height.astype(np.uint16)
    return member[np.argsort(height, kind="stable")]
