"""`learner`: the order of the early KIP-441 drafts (S2-02 to S2-15).

The assignor places actives, then learners, then standbys. A stateful active goes to the first of
these that exists: a ready learner, its owner, a caught-up standby, an unready learner, a standby, a
member with room. So a task moves only when its learner is ready or its owner is gone. Learners stay
until they have taken over (S2-09). New learners are for tasks of members above their share, leaving
members first, and go to members below their share, preferably to a standby. Standbys are balanced
beside the actives as they are once all learners have taken over.

Members may stay within `stream.imbalance.percentage` of their due, a number of tasks by capacity
(S2-28); where tasks differ in weight the placement carries a warning. Stateful and stateless tasks
are balanced separately (S2-30). Ready learners take over one by one, or, with
`learner.partial.rebalance` off, all learners of a member together (S2-32). Where racks count, tasks
that are free to move go where these counts allow the least traffic (S4-F01).

When a learner takes over: here `_taking_over` decides; for `high-availability`, the only other
assignor with learners, `muster.assignor.actives_until_warm`. `muster.state.lag` says which copies
have caught up, and opens the generation.
"""

from __future__ import annotations

import numpy as np

from muster.assignor.actives_until_warm import Staged, Target, with_fallback_owners
from muster.assignor.copy_lags import Copies, code, contains
from muster.assignor.high_availability_assignor import without_overtaken
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, Placement
from muster.assignor.solvers.fewest_moves import held
from muster.assignor.solvers.shares import Counts, filled_shares, tolerant_shares
from muster.assignor.sticky_assignor import Sticky, placement_of, unplaced
from muster.assignor.targets.plan import Planner
from muster.assignor.targets.racks import AVAILABILITY
from muster.protocol.tasks import IntArray

_WEIGHTS = "task weights are ignored: learner balances the number of tasks (S2-28)"


class Learner:
    """A stateful task stays with its owner until its next owner has a ready learner."""

    name = "learner"

    def assign(self, view: GroupView) -> Placement:
        """Place every task of the view: actives, learners, standbys."""
        if not view.members:
            return unplaced(view)
        if view.settings.stream_rebalancing_mode == "upgrading":
            return Sticky().assign(view)
        original, view = view, without_overtaken(view)
        planner = Planner(Copies(view), AVAILABILITY, bounded=False)
        learning = _on_their_way(planner)
        active = _actives(planner, learning)
        goal = _goal(planner, active, learning)
        if view.draining.any():  # a draining member learns nothing, even if all members drain
            drains = view.tasks.stateful & np.append(view.draining, False)[goal]
            goal = np.where(drains, active, goal).astype(np.int32)
        moving = view.tasks.stateful & (goal != active) & (goal != NO_MEMBER)
        warm = _taking_over(planner, np.where(moving, goal, NO_MEMBER).astype(np.int32))
        active[warm] = goal[warm]
        moving[warm] = False
        late = np.flatnonzero(moving).astype(np.int32)
        learner = Pairs(late, goal[late])
        plan = planner.plan
        plan.active = active
        planner.standbys(taken=learner, loads=held(goal, len(planner.capacity)))
        if not view.tasks.weigh_alike:
            plan.warnings += (_WEIGHTS,)
        target, staged = Target(goal, plan.standby), Staged(active, plan.standby, learner)
        return placement_of(original, plan, target, staged, by_number=True)


def _on_their_way(planner: Planner) -> IntArray:
    """int32[T]: the learner of each task (a ready one, else the lowest member), or `NO_MEMBER`."""
    view = planner.view
    pairs = planner.taking(view.learner)
    learning = np.full(len(view.tasks), NO_MEMBER, dtype=np.int32)
    fits = view.active[pairs.task] != pairs.member
    task, member = pairs.task[fits][::-1], pairs.member[fits][::-1]
    ready = contains(view.ready, code(task, member))
    for part in (~ready, ready):
        learning[task[part]] = member[part]
    return learning


def _actives(planner: Planner, learning: IntArray) -> IntArray:
    """int32[T]: the member that runs each task now, by the five priorities (S2-04 to S2-08)."""
    view = planner.view
    active = planner.copies.owner.copy()
    ready = _taking_over(planner, learning)
    active[ready] = learning[ready]
    has_learner = learning != NO_MEMBER
    unowned = np.flatnonzero(active == NO_MEMBER).astype(np.int32)
    usable_copies = planner.taking(planner.copies.of(unowned))
    _run_on_copies(
        active,
        usable_copies.only(planner.copies.reported_warm(usable_copies.task, usable_copies.member)),
    )
    _run_on_copies(
        active, Pairs(np.flatnonzero(has_learner).astype(np.int32), learning[has_learner])
    )
    _run_on_copies(active, planner.taking(view.standby))
    for of_kind in (view.tasks.stateful, ~view.tasks.stateful):
        tasks = np.flatnonzero(of_kind).astype(np.int32)
        if (active[tasks] == NO_MEMBER).any():
            active[tasks] = _filled(planner, tasks, active[tasks], learning[tasks])
    return active


def _run_on_copies(active: IntArray, copies: Pairs) -> None:
    """Give tasks that no member runs to members with copies; the lowest of several members wins."""
    unowned = active[copies.task] == NO_MEMBER
    active[copies.task[unowned][::-1]] = copies.member[unowned][::-1]


def _taking_over(planner: Planner, learning: IntArray) -> IntArray:
    """Tasks whose learner, or standby that would learn, has caught up and takes over at once."""
    view = planner.view
    known: IntArray = np.flatnonzero(learning != NO_MEMBER).astype(np.int32)
    ready = planner.copies.reported_warm(known, learning[known])
    if view.settings.learner_partial_rebalance:
        return known[ready]
    waiting = np.zeros(len(view.members), dtype=np.bool_)
    waiting[learning[known[~ready]]] = True
    together: BoolArray = ~waiting[learning[known]] | (view.active[known] == NO_MEMBER)
    taking: IntArray = known[ready & together]
    return taking


def _filled(planner: Planner, tasks: IntArray, owner: IntArray, learning: IntArray) -> IntArray:
    """Priority 5: tasks without an owner go to members with room; no other task moves.

    A task on its way takes room where it is learned: what fills that room would have to leave. Of
    members due equally much, those that wait for such tasks run less now, and get the extras.
    """
    capacity = planner.capacity
    on_its_way = (owner != NO_MEMBER) & (learning != NO_MEMBER)
    home = np.where(on_its_way, learning, owner)
    count, running = (np.where(capacity > 0, held(of, len(capacity)), 0) for of in (home, owner))
    waiting = np.maximum(count - running, 0)
    filled = owner.copy()
    orphans = owner == NO_MEMBER
    number = int(np.count_nonzero(orphans) + count.sum())
    room = filled_shares(number, capacity, count, count + waiting) - count
    filled[orphans] = planner.settled(tasks[orphans], owner[orphans], room, count).owner
    return filled


def _goal(planner: Planner, active: IntArray, learning: IntArray) -> IntArray:
    """int32[T]: the final owner of each task; running learners keep their destination."""
    view, capacity = planner.view, planner.capacity
    bound = (learning != NO_MEMBER) & (learning != active)
    home = np.where(bound, learning, active)
    home = np.where(np.append(capacity > 0, True)[home], home, NO_MEMBER).astype(np.int32)
    goal = home.copy()
    for kind in (view.tasks.stateful, ~view.tasks.stateful):
        tasks = np.flatnonzero(kind).astype(np.int32)
        if len(tasks) == 0:
            continue
        count = held(home[tasks], len(capacity))
        share = tolerant_shares(
            len(tasks), capacity, count, view.settings.stream_imbalance_percentage
        )
        free = tasks[~bound[tasks]]
        fixed = held(home[tasks[bound[tasks]]], len(capacity))
        room = _room_left(len(free), share, fixed)
        if len(free):
            settled = planner.settled(free, home[free], room, fixed)
            goal[free] = settled.owner
            planner.plan.pay(settled.cost)
    stateless = ~view.tasks.stateful
    active[stateless] = with_fallback_owners(goal, planner.copies)[stateless]
    return goal


def _room_left(number: int, share: Counts, fixed: Counts) -> Counts:
    """int64[M]: room beside fixed tasks, cut to `number` where these exceed some shares."""
    room: Counts = np.maximum(share - fixed, 0)
    while (beyond := int(room.sum()) - number) > 0:
        fullest = np.flatnonzero(room == room.max())[:beyond]
        room[fullest] -= 1
    return room
