"""Moving as little as possible: from who holds what and how much each may hold, to who gets what.

The kernel of every assignor here. Given a previous owner per task and a share per member, keep
every task whose owner is within its share, take from members above theirs exactly the surplus,
and deal that and the unowned tasks to members below theirs. No balanced answer with these shares
moves fewer tasks: a member above its share must lose the surplus, and nothing else moves.

Cost is in proportion to the change beside a few passes over plain arrays: only tasks of members
above their share are ever sorted.
"""

from __future__ import annotations

import numpy as np

from muster.assignor.model import NOBODY
from muster.assignor.solvers.shares import Counts
from muster.protocol.tasks import IntArray


def held(owner: IntArray, members: int) -> Counts:
    """int64[M]: how many entries of an owner vector name each member."""
    if int(owner.max(initial=NOBODY)) == NOBODY:  # counting one value is what bincount is slow at
        return np.zeros(members, dtype=np.int64)
    return np.bincount(owner + 1, minlength=members + 1)[1:]


def settle(owner: IntArray, share: Counts, count: Counts | None = None) -> IntArray:
    """Bring an owner vector to the shares with the fewest moves.

    Args:
        owner: int32[K], `NOBODY` where a task has no owner to stay with.
        share: int64[M], summing up to K.
        count: int64[M], how many tasks name each member, where that is known already.

    Returns:
        int32[K], a new vector unless nothing changes.
    """
    count = held(owner, len(share)) if count is None else count
    if not count.any():
        return dealt(share, count)
    free, given = np.flatnonzero(owner == NOBODY), surplus(owner, count, share)
    loose = free if len(given) == 0 else np.sort(np.concatenate((free, given)))
    if len(loose) == 0:
        return owner
    settled = owner.copy()
    settled[loose] = dealt(np.maximum(share - count, 0), np.minimum(count, share))
    return settled


def surplus(owner: IntArray, count: Counts, share: Counts) -> IntArray:
    """Tasks members above their share give up: the last of each, ascending."""
    over = count > share
    if not over.any():
        return np.empty(0, dtype=np.int32)
    over = np.append(over, False)  # entry -1: nobody
    mine = np.flatnonzero(over.take(owner))
    mine = mine[np.argsort(owner[mine], kind="stable")]
    members = owner[mine]
    rank = np.arange(len(mine)) - np.searchsorted(members, members)
    return np.sort(mine[rank >= share[members]]).astype(np.int32)


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
