"""How many tasks each member should hold: whole numbers out of relative capacities.

A member of capacity c among total capacity C is due ``total * c / C`` tasks. Its *share* is that
number rounded down or up, so the loads (tasks per capacity) of any two members differ by at most 1.
A member that rounds up gets an *extra*.

Kinds of tasks (stateful, stateless, standbys) are shared out one after the other, each fair by
itself and in the sum so far: extras go first to members that would otherwise fall below their share
of the sum, last to those that would exceed it. If later tasks are too few to raise all members to
their share of the sum, the present kind gives the missing extras (`left_to_others`).

This module knows counts only: no tasks, no owners. Everywhere in it these are:

    total       tasks of one kind to share out
    capacity    int64[M], 0 = takes nothing, but at least one is above 0
    held        int64[M], how many of these tasks each member holds now
    before      int64[M], tasks of the kinds shared out before this one; None = none
    later       tasks of the kinds shared out after this one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def rounded_down(total: int, capacity: Counts) -> tuple[Counts, int]:
    """Shares rounded down, and how many extras remain; a member of capacity 0 is due nothing."""
    floor = total * capacity // capacity.sum()
    return floor, total - int(floor.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Slack:
    """Shares before it is decided which members get the extras.

    Attributes:
        floor: int64[M], shares rounded down.
        extras: how many members get one more.
        level: int8[M], order of the members for extras: 0 must have one, 2 may, 4 only if no other
            can (the sum over the kinds would be unfair), `DUE_NOTHING_MORE` never.
    """

    floor: Counts
    extras: int
    level: NDArray[np.int8]


DUE_NOTHING_MORE = 6


def slack(total: int, capacity: Counts, before: Counts | None = None) -> Slack:
    """Shares of one kind of task with the extras still open.

    Members below their share of the sum of kinds must have an extra, and so must members that
    would be idle although there is a task for every member (EX-H10).
    """
    floor, extras = rounded_down(total, capacity)
    if extras == 0:
        return Slack(floor, 0, np.full(len(capacity), DUE_NOTHING_MORE, dtype=np.int8))
    total_capacity = int(capacity.sum())
    base = floor if before is None else floor + before
    all_kinds = total if before is None else total + int(before.sum())
    due = all_kinds * capacity
    must = base < due // total_capacity
    if all_kinds >= np.count_nonzero(capacity):
        must |= base == 0
    level = np.where(must, 0, np.where(base + 1 > -(-due // total_capacity), 4, 2))
    level[total * capacity % total_capacity == 0] = DUE_NOTHING_MORE
    return Slack(floor, extras, level.astype(np.int8))


class Together(NamedTuple):
    """Members that may take only so many tasks together.

    Attributes:
        members: bool[M].
        most: tasks that these members may take in sum.
    """

    members: NDArray[np.bool_]
    most: int

    def room(self, taken: Counts) -> int:
        """How many more these members may take beside `taken` (int64[M]) tasks of each member."""
        return self.most - int(taken[self.members].sum())


def left_to_others(total: int, capacity: Counts, later: int) -> Together | None:
    """Members that must leave extras to others, so that the sum can be fair once all are placed.

    Tasks that are placed later raise members that are below their share of the sum. If they are too
    few to raise all of these, some must get an extra now, and the other members leave it to them.
    Such a choice always exists. None = the other members may take any number of this kind.
    """
    floor, extras = rounded_down(total, capacity)
    short = np.maximum(rounded_down(total + later, capacity)[0] - floor, 0)
    needed = int(short.sum()) - later
    if needed <= 0:
        return None
    others = (short == 0) | (total * capacity % capacity.sum() == 0)
    return Together(others, int(floor[others].sum()) + extras - needed)


def shares(
    total: int,
    capacity: Counts,
    held: Counts,
    before: Counts | None = None,
    hints: Sequence[Counts] = (),
    later: int = 0,
) -> Counts:
    """Shares of one kind of task, with the extras where most tasks can stay.

    Within a level of `slack`, extras go first to members that hold more than their share rounded
    down, then to those that would with their learners or warm copies (`hints`, int64[M] each, the
    cheapest kind first), then where the load ends lowest, then in order of id.
    """
    open_shares = slack(total, capacity, before)
    if open_shares.extras == 0:
        return open_shares.floor
    share = open_shares.floor
    rank = open_shares.level * np.int8(4)
    rank += (held <= share).astype(np.int8)
    for hint in hints:
        rank += (held + hint <= share).astype(np.int8)
    if (capacity == capacity[0]).all():
        order = np.argsort(rank, kind="stable")
    else:
        level = (share + 1 if before is None else share + before + 1) / np.maximum(capacity, 1)
        order = np.lexsort((level, rank))
    together = left_to_others(total, capacity, later) if later else None
    if together is not None:
        leaves = together.members[order]
        order = order[~leaves | (np.cumsum(leaves) <= together.room(share))]
    share[order[: open_shares.extras]] += 1
    return share


def bounded_shares(
    total: int, capacity: Counts, held: Counts, before: Counts, most: Counts
) -> Counts:
    """Shares with `most` (int64[M]) as upper bounds; the other members take the remainder.

    The total is cut to what the bounds allow.
    """
    share = np.zeros(len(capacity), dtype=np.int64)
    unbounded = capacity > 0
    unshared = min(total, int(most[unbounded].sum()))
    while unshared:
        part = np.where(unbounded, capacity, 0)
        share_now = shares(unshared, part, held - share, before + share)
        full = unbounded & (share_now >= most)
        if not (share_now > most).any():
            return share + share_now
        share[full] = most[full]
        unshared -= int(most[full].sum())
        unbounded &= ~full
    return share


def undecided(
    share: Counts, capacity: Counts, beside: Counts
) -> tuple[Counts, NDArray[np.int32], Counts]:
    """Take back the extras that another member could get instead.

    Two members of equal capacity can exchange their counts if one is to end with one task more
    than the other, of this kind and in total (`beside` are tasks of other kinds). They form a pool,
    in which either gets the task.

    Returns:
        int64[M] what each gets in any case, int32[M] its pool (-1 = none), int64[P] how many
        members of each pool get one more.
    """
    base, pool = share.copy(), np.full(len(share), -1, dtype=np.int32)
    pools: list[int] = []
    kind = np.column_stack((capacity, share + beside, share))
    for row in np.unique(kind[(capacity > 0) & (share > 0)], axis=0)[::-1]:
        more = (pool < 0) & (kind == row).all(axis=1)
        less = (pool < 0) & (kind == row - (0, 1, 1)).all(axis=1)
        if more.any() and less.any():
            pool[more | less] = len(pools)
            base[more] -= 1
            pools.append(int(np.count_nonzero(more)))
    return base, pool, np.array(pools, dtype=np.int64)


def filled_shares(
    total: int, capacity: Counts, held: Counts, present: Counts | None = None
) -> Counts:
    """Shares where no member gives `held` tasks up: as even as that allows.

    `present` are all tasks of each member, which stay if they can; None = `held`.
    """
    share = np.zeros(len(capacity), dtype=np.int64)
    present = held if present is None else present
    can_gain = capacity > 0
    while can_gain.any():
        share_now = shares(total - int(share.sum()), np.where(can_gain, capacity, 0), present)
        full = can_gain & (held > share_now)
        if not full.any():
            return share + share_now
        share[full] = held[full]
        can_gain &= ~full
    return share


def tolerant_shares(total: int, capacity: Counts, held: Counts, percentage: float) -> Counts:
    """Shares within a percentage of each member's due, as close to its present tasks as possible.

    A member may hold anything from its due minus to its due plus the percentage (S2-28); 0 gives
    the plain shares. Tasks left over go to the members that lack most by proportion; lacking tasks
    are taken from those that hold most.
    """
    due = total * capacity / capacity.sum()
    floor = total * capacity // capacity.sum()
    ceiling = -(-total * capacity // capacity.sum())
    slack_ = due * percentage / 100
    low = np.minimum(floor, np.ceil(np.round(due - slack_, 9)).astype(np.int64))
    high = np.maximum(ceiling, np.floor(np.round(due + slack_, 9)).astype(np.int64))
    return _between(total, held, low, high, due)


def topped_up(total: int, capacity: Counts, held: Counts, before: Counts) -> Counts | None:
    """Shares of one kind that make the sum of kinds fair; None if earlier kinds leave no fair sum.

    Plain `shares` keep each kind fair first; with unequal capacities the sum may then be uneven.
    """
    bounds = fair_sum(total, capacity, before)
    if bounds is None:
        return None
    all_kinds = total + int(before.sum())
    due = all_kinds * capacity / capacity.sum()
    return _between(all_kinds, before + held, *bounds, due) - before


def fair_sum(total: int, capacity: Counts, before: Counts) -> tuple[Counts, Counts] | None:
    """Least and most tasks of all kinds each member may hold; None if no fair sum is left."""
    all_kinds = total + int(before.sum())
    due = all_kinds * capacity
    low = np.maximum(due // capacity.sum(), before)
    high = np.maximum(-(-due // capacity.sum()), before)
    return (low, high) if int(low.sum()) <= all_kinds <= int(high.sum()) else None


def _between(
    total: int, held: Counts, low: Counts, high: Counts, due: NDArray[np.float64]
) -> Counts:
    """Present counts cut to bounds, then changed in proportion to the due until the total fits."""
    floor = np.clip(np.floor(due + 1e-9).astype(np.int64), low, high)
    share = np.clip(held, low, high)
    missing = total - int(share.sum())
    if missing > 0:
        limit = np.where(share < floor, floor, high)
        if missing > int((np.maximum(floor, share) - share).sum()):
            share = np.maximum(share, floor)
            missing = total - int(share.sum())
            limit = high
        share += _units(share, limit - share, due, missing, upwards=True)
    elif missing < 0:
        share -= _units(share, share - low, due, -missing, upwards=False)
    return share


def _units(
    share: Counts, most: Counts, due: NDArray[np.float64], number: int, *, upwards: bool
) -> Counts:
    """int64[M]: by how much each share changes, one unit at a time, largest need first."""
    member = np.repeat(np.arange(len(share)), np.clip(most, 0, number))
    nth = np.arange(len(member)) - np.searchsorted(member, member)
    level = (share[member] + nth + 0.5) if upwards else -(share[member] - nth - 0.5)
    order = np.argsort(np.round(level / np.maximum(due[member], 1e-9), 9), kind="stable")
    return np.bincount(member[order[:number]], minlength=len(share))
