"""How to get there: who runs, warms up and keeps copies while destinations are still cold.

The target says where everything belongs. A stateful active whose destination has no warm copy
stays with a member that has one while a learner restores at the destination (S2-F20, S2-F28); a
standby that moves leaves its warm copy in place until the new one is ready. Learners are
bounded by `max.warmup.replicas`: those on their way come first, then actives, then standbys.

Rules, per task, first that applies:

1. The destination is warm: it runs the task.
2. A member is warm: the present owner runs it, without one the least loaded of the warm.
3. No member is warm: the furthest runs it, if further than the destination (EX-H6).
4. The destination runs it cold: no member has anything to lose.

In cases 2 and 3 the destination learns; where the one that runs the task was to be a standby, the
two exchange their places and no budget is spent. Of copies that are otherwise alike the one that is
less behind goes first. A member that drains learns nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.copies import Copies, code, contains
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, no_pairs
from muster.assignor.solvers.balance import held
from muster.assignor.targets.wanted import joined
from muster.protocol.tasks import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Where everything belongs.

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
        unfinished: whether something is not yet where it belongs.
    """

    active: IntArray
    standby: Pairs
    learner: Pairs
    unfinished: bool


def stage(view: GroupView, copies: Copies, target: Target, movable: BoolArray) -> Staged:
    """Turn a target into what is asked for now.

    Args:
        view: the group.
        copies: its copies.
        target: where everything belongs.
        movable: bool[M], members that may be given something new.
    """
    active = _running(view, copies, target, movable)
    late = np.flatnonzero((active != target.active) & (target.active != NO_MEMBER)).astype(np.int32)
    standby, learning = _exchanged(active, target, late)
    standby, waiting = _standbys(view, copies, active, standby, movable)
    stays = ~view.draining
    waiting, learning = (pairs.only(stays[pairs.member]) for pairs in (waiting, learning))
    wishes = _in_order(view, copies, learning), _in_order(view, copies, waiting)
    learner = _funded(view, wishes)
    unfinished = len(waiting) > 0 or bool(stays[target.active[late]].any())
    return Staged(active, standby, learner, unfinished)


def kept_for_want(wanted: IntArray, copies: Copies) -> IntArray:
    """Owners, where no other member may take a task: better with a leaving member than nowhere."""
    nowhere = (wanted == NO_MEMBER) & (copies.owner != NO_MEMBER)
    return np.where(nowhere, copies.owner, wanted).astype(np.int32) if nowhere.any() else wanted


def _running(view: GroupView, copies: Copies, target: Target, movable: BoolArray) -> IntArray:
    """int32[T]: who runs each active now."""
    wanted = target.active
    wanted = kept_for_want(wanted, copies)
    differs = view.tasks.stateful & (wanted != view.active) & (wanted != NO_MEMBER)
    changes = np.flatnonzero(differs).astype(np.int32)
    if len(changes) == 0:
        return wanted
    cold: IntArray = changes[~copies.warm(changes, wanted[changes])]
    running = wanted.copy()
    if len(cold) == 0:
        return running
    owned = copies.owner[cold] != NO_MEMBER
    running[cold[owned]] = copies.owner[cold[owned]]
    orphans = cold[~owned]
    if len(orphans):
        _furthest(view, copies, running, orphans, movable)
    return running


def _furthest(
    view: GroupView, copies: Copies, running: IntArray, orphans: IntArray, movable: BoolArray
) -> None:
    """Tasks nothing runs, cold at their destination: to the least loaded warm, or the furthest."""
    pairs = copies.of(orphans)
    pairs = pairs.only(movable[pairs.member])
    task, member = pairs.task, pairs.member
    behind = copies.lag(task, member)
    warm = copies.told_warm(task, member)
    load = held(running, len(view.members)) / view.capacity
    further = behind < copies.lag(task, running[task])
    usable = np.flatnonzero(warm | further)
    ranks = member, behind, load[member], np.where(warm, -1, behind), task
    order = usable[np.lexsort([rank[usable] for rank in ranks])]
    first = np.unique(task[order], return_index=True)[1]
    running[task[order[first]]] = member[order[first]]


def _exchanged(active: IntArray, target: Target, late: IntArray) -> tuple[Pairs, Pairs]:
    """Standbys after exchanges, and the (task, destination) pairs that want a learner.

    A destination that waits for an active run by one of the task's own standbys takes that
    standby's place: it restores just the same.
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
    view: GroupView, copies: Copies, active: IntArray, wanted: Pairs, movable: BoolArray
) -> tuple[Pairs, Pairs]:
    """Standbys now, and the (task, destination) pairs that are still cold.

    A cold standby leaves the place to a spare warm copy of its task, if there is one.
    """
    codes = wanted.code
    new = ~contains(view.standby, codes)
    new[new] = ~copies.warm(wanted.task[new], wanted.member[new])
    if not new.any():
        return wanted, no_pairs()
    spare = copies.of(wanted.task[new])
    free = (active[spare.task] != spare.member) & ~contains(wanted, spare.code)
    free &= copies.told_warm(spare.task, spare.member)
    free &= movable[spare.member] | contains(view.standby, spare.code)
    held_now = contains(view.standby, spare.code)[free]
    task, member = spare.task[free], spare.member[free]
    order = np.lexsort((member, copies.lag(task, member), ~held_now, task))
    task, member = task[order], member[order]
    cold = np.flatnonzero(new)
    behind = copies.lag(wanted.task[cold], wanted.member[cold])
    cold = cold[np.lexsort((-behind, wanted.task[cold]))]  # the furthest behind leaves first
    nth_spare = np.arange(len(task)) - np.searchsorted(task, task)
    nth_cold = np.arange(len(cold)) - np.searchsorted(wanted.task[cold], wanted.task[cold])
    spares, asked = code(task, nth_spare), code(wanted.task[cold], nth_cold)
    _, which, by = np.intersect1d(asked, spares, assume_unique=True, return_indices=True)
    late = cold[which]
    stays = np.ones(len(wanted), dtype=np.bool_)
    stays[late] = False
    now = joined(wanted.only(stays), Pairs(task[by], member[by]))
    return now, wanted.only(np.sort(late))


def _in_order(view: GroupView, copies: Copies, wishes: Pairs) -> Pairs:
    """Learners in the order they are funded: fewest warm copies first, then task (S2-F28)."""
    if len(wishes) <= 1:
        return wishes
    pairs = copies.of(wishes.task)
    warm = copies.told_warm(pairs.task, pairs.member)
    number = np.bincount(pairs.task[warm], minlength=len(view.tasks))
    behind = copies.lag(wishes.task, wishes.member)
    order = np.lexsort((wishes.member, behind, wishes.task, number[wishes.task]))
    return wishes.only(order)


def _funded(view: GroupView, wishes: tuple[Pairs, Pairs]) -> Pairs:
    """The learners the budget allows: those on their way, then actives, then standbys."""
    task = np.concatenate([w.task for w in wishes])
    member = np.concatenate([w.member for w in wishes])
    coming = contains(view.learner, code(task, member))
    order = np.argsort(~coming, kind="stable")[: view.settings.max_warmup_replicas]
    return Pairs.of(task[order], member[order])
