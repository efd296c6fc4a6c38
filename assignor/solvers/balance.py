"""Moving as little as possible: from who holds what and how much each may hold, to who gets what.

The kernel of every assignor here. Given a previous owner per task and a share per member, keep
every task whose owner is within its share, take from members above theirs exactly the surplus,
and deal that and the unowned tasks to members below theirs. No balanced answer with these shares
moves fewer tasks: a member above its share must lose the surplus, and nothing else moves.

Which tasks a member gives, and who of those with room gets which, is free: the choice spreads each
unit, by rules where many move, looked at exchange by exchange where few do.

Cost is in proportion to the change beside a few passes over plain arrays: only tasks of members
above their share are ever sorted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import NO_MEMBER
from muster.assignor.solvers.shares import Counts
from muster.protocol.tasks import IntArray

Longs = NDArray[np.int64]
MOST_SWAPPED = 128
"""Up to this many loose tasks it is looked at whether two of them had better change places."""
MOST_SWAPS = 16
"""Then so many exchanges are made, best first; each takes some 20 us."""


def held(owner: IntArray, members: int) -> Counts:
    """int64[M]: how many entries of an owner vector name each member."""
    if (
        int(owner.max(initial=NO_MEMBER)) == NO_MEMBER
    ):  # counting one value is what bincount is slow at
        return np.zeros(members, dtype=np.int64)
    return np.bincount(owner + 1, minlength=members + 1)[1:]


def settle(
    owner: IntArray, share: Counts, count: Counts | None = None, begins: IntArray | None = None
) -> IntArray:
    """Bring an owner vector to the shares with the fewest moves.

    Args:
        owner: int32[K], `NO_MEMBER` where a task has no owner to stay with.
        share: int64[M], summing up to K.
        count: int64[M], how many tasks name each member, where that is known already.
        begins: int[U], where the tasks of each unit begin; units are spread where moves are equal.
            None = they are not.

    Returns:
        int32[K], a new vector unless nothing changes.
    """
    count = held(owner, len(share)) if count is None else count
    if not count.any():
        return dealt(share, count)
    free, given = np.flatnonzero(owner == NO_MEMBER), surplus(owner, count, share, begins)
    loose = free if len(given) == 0 else np.sort(np.concatenate((free, given)))
    if len(loose) == 0:
        return owner
    settled = owner.copy()
    settled[loose] = dealt(np.maximum(share - count, 0), np.minimum(count, share))
    if begins is not None and 1 < len(loose) <= MOST_SWAPPED:
        swapped(settled, loose, begins, len(share))
    return settled


def surplus(
    owner: IntArray, count: Counts, share: Counts, begins: IntArray | None = None
) -> IntArray:
    """Tasks members above their share give up, ascending.

    The last of each member; where units are told (see `settle`), those of which it has most.
    """
    over = count > share
    if not over.any():
        return np.empty(0, dtype=np.int32)
    over = np.append(over, False)  # entry -1: no member
    mine = np.flatnonzero(over.take(owner))
    mine = mine[np.argsort(owner[mine], kind="stable")]
    members = owner[mine]
    if begins is not None:
        more = np.maximum(count - share, 0)
        turn = (np.cumsum(more) - more)[members]
        mine = mine[by_turns(members, _unit(begins, mine), turn)]
    rank = np.arange(len(mine)) - np.searchsorted(members, members)
    return np.sort(mine[rank >= share[members]]).astype(np.int32)


def _unit(begins: IntArray, place: Longs | IntArray) -> Longs:
    """int64[N]: the unit of the tasks at some places."""
    found: Longs = np.searchsorted(begins, place, side="right") - 1
    return found


def by_turns(group: IntArray, unit: IntArray | Longs, turn: Longs) -> Longs:
    """The order in which tasks are kept: one of each unit, then a second of each, and so on.

    Args:
        group: int[K], ascending; each group keeps some of its tasks.
        unit: int32[K], ascending within a group.
        turn: int64[K], the same within a group: the unit (modulo their number) whose task is the
            first to go among tasks kept equally long. Without turns all would give the same.
    """
    place = np.arange(len(group))
    begins = np.append(True, (np.diff(group) != 0) | (np.diff(unit) != 0))
    level = place - np.maximum.accumulate(np.where(begins, place, 0))
    number = int(unit.max(initial=0)) + 1
    return np.lexsort((-((unit - turn) % number), level, group))


def swapped(
    owner: IntArray,
    loose: Longs,
    begins: IntArray,
    members: int,
    may: Callable[[IntArray, IntArray], NDArray[np.bool_]] | None = None,
) -> None:
    """Let loose tasks change places while that spreads their units evener; in place.

    Evener is a smaller sum of squared numbers of tasks of a unit on a member.

    Args:
        owner: int32[K].
        loose: places of tasks that move in any case.
        begins: int[U], where the tasks of each unit begin.
        members: how many there are.
        may: which (unit, member) go together, for units and members (int32[N] each); None = all do.
    """
    takers, seat = np.unique(owner[loose], return_inverse=True)
    kinds, kind = np.unique(_unit(begins, loose), return_inverse=True)
    if len(takers) == 1 or len(kinds) == 1:
        return
    takes = np.zeros(members + 1, dtype=np.bool_)
    takes[takers] = True
    mine = np.flatnonzero(takes.take(owner))
    place = np.full(len(begins), len(kinds))
    place[kinds] = np.arange(len(kinds))
    code = place[_unit(begins, mine)] * len(takers) + np.searchsorted(takers, owner[mine])
    size = (len(kinds) + 1) * len(takers)
    count = np.bincount(code, minlength=size).reshape(-1, len(takers))
    fits = np.ones((len(kinds), len(takers)), dtype=np.bool_)
    if may is not None:
        pairs = np.repeat(kinds, len(takers)), np.tile(takers, len(kinds))
        fits = may(pairs[0].astype(np.int32), pairs[1]).reshape(fits.shape)
    for _ in range(MOST_SWAPS):
        here = count[kind, seat]  # of its unit where each is
        there = count[kind[:, None], seat[None, :]]  # of its unit where each other is
        gain = here[:, None] + here[None, :] - there - there.T - 2
        gain[(kind[:, None] == kind) | (seat[:, None] == seat)] = 0
        if may is not None:
            open_ = fits[kind[:, None], seat[None, :]]
            gain[~(open_ & open_.T)] = 0
        one, other = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[one, other] <= 0:
            break
        for mover, to in ((one, seat[other]), (other, seat[one])):
            count[kind[mover], seat[mover]] -= 1
            count[kind[mover], to] += 1
        seat[one], seat[other] = seat[other], seat[one]
    owner[loose] = takers[seat]


def dealt(room: Counts, level: Counts) -> IntArray:
    """Deal cards: the order in which free places are filled, the emptiest member first.

    Neighbouring tasks (of one subtopology) so land on different members.

    Args:
        room: int64[M], free places of each member.
        level: int64[M], places already filled.

    Returns:
        int32[sum(room)], a member for each task to be placed.
    """
    member = np.arange(len(room), dtype=np.int32)
    top, total = level + room, int(room.sum())
    low, high = int(level.min(initial=0)), int(top.max(initial=0))
    if (high - low) * len(room) <= 4 * total:  # most places are free: no need to sort
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
