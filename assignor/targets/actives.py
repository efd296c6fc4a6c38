"""Final owners of actives: balanced, fewest moves, on members that have copies.

Counts come first (`muster.assignor.solvers.shares`); within them a task stays with its owner if it
can. If a member must give tasks up, those with a copy on a member with room move first, best copy
first: a running learner is kept, a standby takes over before an empty member restores, and a
stateless task moves before a stateful one.

Ties: `muster.assignor.solvers.shares` (which members get one task more),
`muster.assignor.solvers.fewest_moves` (which of a member's tasks move).
"""

from __future__ import annotations

import numpy as np

from muster.assignor.copy_lags import NO_COPY, Copies, Longs, contains
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs
from muster.assignor.solvers.fewest_moves import held, settle
from muster.assignor.solvers.shares import Counts, filled_shares, shares, topped_up
from muster.assignor.solvers.transport import Freight, Room, place
from muster.assignor.targets.plan_data import Actives, Inputs, Settled
from muster.protocol.tasks import IntArray

READY, WARM, LEARNER, STANDBY, COLD_COPY, NO_STATE = range(6)
"""How good a copy is as a destination, best first; each copy has the first name that fits."""


class ByCopies:
    """Strategy for groups in which neither racks nor topics count, nor a window."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs

    def actives(self, actives: Actives, _placed: IntArray) -> Settled:
        """Owners with balanced counts, the fewest moves, and copies used."""
        inputs, tasks, before = self._inputs, actives.task, actives.before
        count = held(actives.home, len(inputs.capacity))
        share = None
        if before is not None and uneven(inputs.capacity):
            share = topped_up(len(tasks), inputs.capacity, count, before)
            if share is None:  # earlier actives are uneven; these make the sum even
                total = len(tasks) + int(before.sum())
                share = filled_shares(total, inputs.capacity, before) - before
        if share is None:
            hints = [] if inputs.at_once else _hints(inputs.copies, actives)
            share = shares(len(tasks), inputs.capacity, count, before, hints, actives.later)
        return self.within(actives, share)

    def within(self, actives: Actives, room: Counts) -> Settled:
        """Owners with the fewest moves; each member takes `room` (int64[M]) tasks."""
        pending = self._inputs.pending
        first = None if pending is None else pending[actives.task]
        return Settled(settled_to(self._inputs.copies, actives, room, first))


def uneven(capacity: Counts) -> bool:
    """Whether members that take tasks differ in capacity."""
    usable = capacity[capacity > 0]
    return bool((usable != usable[0]).any())


def settled_to(
    copies: Copies, actives: Actives, share: Counts, first: BoolArray | None = None
) -> IntArray:
    """int32[K]: owners with `share` (int64[M]) tasks each, the fewest moves, and copies used.

    Where copies and kinds do not decide, a member gives up its `first` tasks (bool[K]) first.
    """
    view = copies.view
    count, first_of_unit = held(actives.home, len(share)), _begins(view, actives.task)
    if _alike(copies, actives.task):
        return settle(actives.home, share, count, first_of_unit, first)
    unowned = actives.home == NO_MEMBER
    over = count > share
    moving = unowned | np.append(over, False)[actives.home]
    nearby = copies.of(actives.task[moving])
    elsewhere = view.active[nearby.task] != nearby.member
    nearby = nearby.only((count < share)[nearby.member] & elsewhere)
    moving_tasks = np.flatnonzero(moving)
    stateless = ~view.tasks.stateful[actives.task[moving_tasks]]
    kinds_differ = over.any() and stateless.any() and not stateless.all()
    if len(nearby) == 0 and not kinds_differ:
        return settle(actives.home, share, count, first_of_unit, first)
    freight = Freight(
        home=actives.home[moving_tasks],
        kind=stateless.astype(np.int32),
        unit=np.zeros(2, dtype=np.int32),
        toll=np.zeros((2, 1), dtype=np.int64),
        zone=np.zeros(len(share), dtype=np.int32),
        leaving=1,
        task=np.searchsorted(actives.task[moving_tasks], nearby.task).astype(np.int32),
        member=nearby.member,
        rank=quality(copies, nearby),
        no_copy=NO_STATE,
        free=1,
        spread=view.tasks.unit_of[actives.task[moving_tasks]],
    )
    base = np.where(over, share, share - np.minimum(count, share))
    owner = actives.home.copy()
    owner[moving_tasks], _ = place(freight, Room(base, 0, np.zeros_like(base)))
    return owner


def _begins(view: GroupView, tasks: IntArray) -> IntArray | None:
    """int[U]: index of each unit's first task among ascending tasks; None if there is one unit."""
    start: IntArray = view.tasks.start[:-1]
    if len(start) == 1:
        return None
    if len(tasks) < len(view.tasks):
        start = np.searchsorted(tasks, start).astype(np.int32)
    return start


def _alike(copies: Copies, tasks: IntArray) -> bool:
    """Whether it does not matter which tasks move: no copies, and all stateful or all stateless."""
    stateful = copies.view.tasks.stateful
    stateful = stateful[tasks] if len(tasks) < len(stateful) else stateful
    return not stateful.any() or (copies.none and bool(stateful.all()))


def _hints(copies: Copies, actives: Actives) -> list[Counts]:
    """Per member its running learners; the same plus warm copies of tasks without an owner."""
    view, members = copies.view, len(copies.view.members)
    learners = np.zeros(members, dtype=np.int64)
    if len(view.learner):
        among_these = np.isin(view.learner.task, actives.task)
        learners = np.bincount(view.learner.member[among_these], minlength=members)
    hints = [learners] if learners.any() else []
    unowned = actives.task[actives.home == NO_MEMBER]
    unowned = unowned[view.tasks.stateful[unowned]]
    if len(unowned):
        pairs = copies.of(unowned)
        warm = copies.reported_warm(pairs.task, pairs.member)
        hints.append(learners + np.bincount(pairs.member[warm], minlength=members))
    return hints


def quality(copies: Copies, pairs: Pairs) -> Longs:
    """int64[K]: rank of each copy, `READY` (best) to `NO_STATE`."""
    view, codes = copies.view, pairs.code
    rank = np.where(copies.lag(pairs.task, pairs.member) == NO_COPY, NO_STATE, COLD_COPY)
    rank[contains(view.standby, codes)] = STANDBY
    rank[contains(view.learner, codes)] = LEARNER
    rank[copies.reported_warm(pairs.task, pairs.member)] = WARM
    rank[contains(view.ready, codes)] = READY
    return rank.astype(np.int64)
