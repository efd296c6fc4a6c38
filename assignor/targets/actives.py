"""Where actives belong in the end: balanced, fewest moves, on members that have copies.

Counts come first (`muster.assignor.solvers.shares`): within them a task stays with its owner if it
can. Of the tasks that must move, those move that have a copy where there is room, best copy first;
so a learner on its way stays on its way, a standby is promoted rather than an empty disk filled,
and a task without state moves rather than one with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.copies import NO_COPY, Copies, Longs, code, contains
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs
from muster.assignor.solvers.balance import held, settle
from muster.assignor.solvers.shares import Counts, filled_shares, shares, topped_up
from muster.assignor.solvers.transport import Freight, Room, place
from muster.protocol.tasks import IntArray

READY, WARM, ON_ITS_WAY, STANDBY, SOME, NOTHING = range(6)
"""How good a copy is as a destination, best first."""


@dataclass(frozen=True, slots=True, eq=False)
class Actives:
    """Some actives of a view that are placed together.

    Attributes:
        task: int32[K], their task indexes, ascending.
        home: int32[K], owners they may stay with, `NO_MEMBER` = none.
        before: int64[M], actives placed before these; None = none.
    """

    task: IntArray
    home: IntArray
    before: Counts | None = None


def settled_by_copies(
    view: GroupView, copies: Copies, actives: Actives, capacity: Counts
) -> IntArray:
    """int32[K]: owners with balanced counts, the fewest moves, and copies put to use."""
    count = held(actives.home, len(capacity))
    loose = actives.task[actives.home == NO_MEMBER]
    share = None
    if uneven(capacity) and actives.before is not None:
        share = topped_up(len(actives.task), capacity, count, actives.before)
        if share is None:  # what stands is uneven already; the rest fills it up
            whole = len(actives.task) + int(actives.before.sum())
            share = filled_shares(whole, capacity, actives.before) - actives.before
    if share is None:
        hints = _hints(view, copies, actives, loose)
        share = shares(len(actives.task), capacity, count, actives.before, hints)
    return settled_to(view, copies, actives, share)


def uneven(capacity: Counts) -> bool:
    """Whether members that take tasks differ in capacity."""
    usable = capacity[capacity > 0]
    return bool((usable != usable[0]).any())


def settled_to(view: GroupView, copies: Copies, actives: Actives, share: Counts) -> IntArray:
    """int32[K]: owners with these counts, the fewest moves, and copies put to use.

    Args:
        view: the group.
        copies: its copies.
        actives: what to place.
        share: int64[M], summing up to the number of tasks.
    """
    count, begins = held(actives.home, len(share)), begins_of(view, actives.task)
    if alike(view, copies, actives.task):
        return settle(actives.home, share, count, begins)
    loose = actives.home == NO_MEMBER
    over = count > share
    moving = loose | np.append(over, False)[actives.home]
    near = _copies_with_room(view, copies, actives, moving, count < share)
    chosen = np.flatnonzero(moving)
    stateless = ~view.tasks.stateful[actives.task[chosen]]
    choice = over.any() and stateless.any() and not stateless.all()
    if len(near) == 0 and not choice:
        return settle(actives.home, share, count, begins)
    freight = Freight(
        home=actives.home[chosen],
        kind=stateless.astype(np.int32),
        unit=np.zeros(2, dtype=np.int32),
        toll=np.zeros((2, 1), dtype=np.int64),
        zone=np.zeros(len(share), dtype=np.int32),
        leaving=1,
        task=np.searchsorted(actives.task[chosen], near.task).astype(np.int32),
        member=near.member,
        rank=quality(view, copies, near),
        no_copy=NOTHING,
        free=1,
        spread=view.tasks.unit_of[actives.task[chosen]],
    )
    base = np.where(over, share, share - np.minimum(count, share))
    owner = actives.home.copy()
    owner[chosen], _ = place(freight, Room(base, 0, np.zeros_like(base)))
    return owner


def begins_of(view: GroupView, tasks: IntArray) -> IntArray | None:
    """int[U]: where each unit begins among ascending tasks; None where there is but one unit."""
    start: IntArray = view.tasks.start[:-1]
    if len(start) == 1:
        return None
    if len(tasks) < len(view.tasks):
        start = np.searchsorted(tasks, start).astype(np.int32)
    return start


def alike(view: GroupView, copies: Copies, tasks: IntArray) -> bool:
    """Whether it is all the same which of these tasks move: no copies, and all with state or none.

    The common case, and for it no array of tasks needs to be looked at.
    """
    stateful = view.tasks.stateful[tasks] if len(tasks) < len(view.tasks) else view.tasks.stateful
    some = bool(stateful.any())
    return not some or (copies.none and bool(stateful.all()))


def _hints(view: GroupView, copies: Copies, actives: Actives, loose: IntArray) -> list[Counts]:
    """Per member, learners on their way; with the warm copies of tasks without an owner added."""
    members = len(view.members)
    coming = np.zeros(members, dtype=np.int64)
    if len(view.learner):
        mine = np.isin(view.learner.task, actives.task)
        coming = np.bincount(view.learner.member[mine], minlength=members)
    hints = [coming] if coming.any() else []
    loose = loose[view.tasks.stateful[loose]]
    if len(loose):
        pairs = copies.of(loose)
        warm = copies.told_warm(pairs.task, pairs.member)
        hints.append(coming + np.bincount(pairs.member[warm], minlength=members))
    return hints


def _copies_with_room(
    view: GroupView, copies: Copies, actives: Actives, moving: BoolArray, room: BoolArray
) -> Pairs:
    pairs = copies.of(actives.task[moving])
    return pairs.only(room[pairs.member] & (view.active[pairs.task] != pairs.member))


def quality(view: GroupView, copies: Copies, pairs: Pairs) -> Longs:
    """int64[K]: rank of each copy, `READY` (best) to `NOTHING`."""
    wanted = code(pairs.task, pairs.member)
    rank = np.where(copies.lag(pairs.task, pairs.member) == NO_COPY, NOTHING, SOME)
    rank[contains(view.standby, wanted)] = STANDBY
    rank[contains(view.learner, wanted)] = ON_ITS_WAY
    rank[copies.told_warm(pairs.task, pairs.member)] = WARM
    rank[contains(view.ready, wanted)] = READY
    return rank.astype(np.int64)
