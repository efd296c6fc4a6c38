"""How to reach a target: which members run, restore and keep copies while destinations are cold.

While the destination of a stateful active is cold, another member runs the task and a learner
restores at the destination (S2-F20, S2-F28). A standby that moves keeps its warm copy until the new
one is ready. `max.warmup.replicas` bounds the learners: running ones first, then those for actives,
then those for standbys.

The first of these rules that applies to a task decides:

1. The destination is warm: it runs the task.
2. The task has an owner: it goes on running the task.
3. Members are warm: the least loaded of them runs the task.
4. The member that is least behind runs the task, if less behind than the destination (EX-H6).
5. The destination runs the task cold.

In cases 2 to 4 the destination learns, or, if the target makes the running member a standby of the
task, takes that standby's place. Between otherwise equal copies, the one less behind goes first. A
draining member learns nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.copy_lags import Copies, code, contains
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, no_pairs
from muster.assignor.solvers.fewest_moves import held
from muster.assignor.targets.standby_request import joined
from muster.protocol.tasks import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The placement that staging leads to.

    Attributes:
        active: int32[T].
        standby: pairs.
    """

    active: IntArray
    standby: Pairs


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """What this generation asks for.

    Attributes:
        active: int32[T].
        standby, learner: pairs.
        unfinished: whether a copy or an active is not yet at its target.
    """

    active: IntArray
    standby: Pairs
    learner: Pairs
    unfinished: bool = False


def stage(copies: Copies, target: Target, movable: BoolArray) -> Staged:
    """Compute what this generation asks for; `movable` (bool[M]) members may be given tasks."""
    view = copies.view
    active = _running(copies, target, movable)
    late = np.flatnonzero((active != target.active) & (target.active != NO_MEMBER)).astype(np.int32)
    standby, learning = _exchanged(active, target, late)
    standby, waiting = _standbys(copies, active, standby, movable)
    stays = ~view.draining
    waiting, learning = (pairs.only(stays[pairs.member]) for pairs in (waiting, learning))
    requests = _in_order(copies, learning), _in_order(copies, waiting)
    learner = _within_budget(view, requests)
    unfinished = len(waiting) > 0 or bool(stays[target.active[late]].any())
    return Staged(active, standby, learner, unfinished)


def with_fallback_owners(owner: IntArray, copies: Copies) -> IntArray:
    """The placement; where it chooses no member for a task, the present owner keeps the task."""
    unplaced = (owner == NO_MEMBER) & (copies.owner != NO_MEMBER)
    return np.where(unplaced, copies.owner, owner).astype(np.int32) if unplaced.any() else owner


def _running(copies: Copies, target: Target, movable: BoolArray) -> IntArray:
    """int32[T]: the member that runs each active now."""
    view, destination = copies.view, with_fallback_owners(target.active, copies)
    differs = view.tasks.stateful & (destination != view.active) & (destination != NO_MEMBER)
    changes = np.flatnonzero(differs).astype(np.int32)
    if len(changes) == 0:
        return destination
    cold: IntArray = changes[~copies.warm(changes, destination[changes])]
    running = destination.copy()
    if len(cold) == 0:
        return running
    owned = copies.owner[cold] != NO_MEMBER
    running[cold[owned]] = copies.owner[cold[owned]]
    orphans = cold[~owned]
    if len(orphans):
        _run_by_best_copy(copies, running, orphans, movable)
    return running


def _run_by_best_copy(
    copies: Copies, running: IntArray, orphans: IntArray, movable: BoolArray
) -> None:
    """Place tasks without an owner whose destination is cold.

    Each goes to the least loaded warm member, else to the member least behind. Changes `running`.
    """
    pairs = copies.of(orphans)
    pairs = pairs.only(movable[pairs.member])
    task, member = pairs.task, pairs.member
    behind = copies.lag(task, member)
    warm = copies.reported_warm(task, member)
    load = held(running, len(movable)) / copies.view.capacity
    less_behind = behind < copies.lag(task, running[task])
    usable = np.flatnonzero(warm | less_behind)
    ranks = member, behind, load[member], np.where(warm, -1, behind), task
    order = usable[np.lexsort([rank[usable] for rank in ranks])]
    first = np.unique(task[order], return_index=True)[1]
    running[task[order[first]]] = member[order[first]]


def _exchanged(active: IntArray, target: Target, late: IntArray) -> tuple[Pairs, Pairs]:
    """Standbys after exchanges, and the (task, destination) pairs that need a learner.

    Where a standby of the task runs it meanwhile, the destination takes that standby's place and
    restores as a standby.
    """
    if len(late) == 0:
        return target.standby, no_pairs()
    runner = code(late, active[late])
    swapped = contains(target.standby, runner)
    standby = target.standby.only(~np.isin(target.standby.code, runner))
    exchanged = Pairs(late[swapped], target.active[late[swapped]])
    waiting = late[~swapped]
    return joined(standby, exchanged), Pairs(waiting, target.active[waiting])


def _standbys(
    copies: Copies, active: IntArray, target: Pairs, movable: BoolArray
) -> tuple[Pairs, Pairs]:
    """Standbys now, and the (task, destination) pairs that are still cold.

    A spare warm copy of the task, if there is one, takes the place of a cold standby.
    """
    view = copies.view
    new = ~contains(view.standby, target.code)
    new[new] = ~copies.warm(target.task[new], target.member[new])
    if not new.any():
        return target, no_pairs()
    spare = copies.of(target.task[new])
    free = (active[spare.task] != spare.member) & ~contains(target, spare.code)
    free &= copies.reported_warm(spare.task, spare.member)
    free &= movable[spare.member] | contains(view.standby, spare.code)
    held_now = contains(view.standby, spare.code)[free]
    task, member = spare.task[free], spare.member[free]
    order = np.lexsort((member, copies.lag(task, member), ~held_now, task))
    task, member = task[order], member[order]
    cold = np.flatnonzero(new)
    behind = copies.lag(target.task[cold], target.member[cold])
    cold = cold[np.lexsort((-behind, target.task[cold]))]  # replace the one most behind first
    nth_spare = np.arange(len(task)) - np.searchsorted(task, task)
    nth_cold = np.arange(len(cold)) - np.searchsorted(target.task[cold], target.task[cold])
    spare_keys, cold_keys = code(task, nth_spare), code(target.task[cold], nth_cold)
    _, cold_index, spare_index = np.intersect1d(
        cold_keys, spare_keys, assume_unique=True, return_indices=True
    )
    late = cold[cold_index]
    stays = np.ones(len(target), dtype=np.bool_)
    stays[late] = False
    now = joined(target.only(stays), Pairs(task[spare_index], member[spare_index]))
    return now, target.only(np.sort(late))


def _in_order(copies: Copies, requests: Pairs) -> Pairs:
    """Learners in the order they start: fewest warm copies first, then by task (S2-F28)."""
    if len(requests) <= 1:
        return requests
    pairs = copies.of(requests.task)
    warm = copies.reported_warm(pairs.task, pairs.member)
    warm_copies = np.bincount(pairs.task[warm], minlength=len(copies.view.tasks))
    behind = copies.lag(requests.task, requests.member)
    order = np.lexsort((requests.member, behind, requests.task, warm_copies[requests.task]))
    return requests.only(order)


def _within_budget(view: GroupView, requests: tuple[Pairs, Pairs]) -> Pairs:
    """The learners that fit `max.warmup.replicas`: running ones, then actives', then standbys'."""
    task = np.concatenate([w.task for w in requests])
    member = np.concatenate([w.member for w in requests])
    running = contains(view.learner, code(task, member))
    order = np.argsort(~running, kind="stable")[: view.settings.max_warmup_replicas]
    return Pairs.of(task[order], member[order])
