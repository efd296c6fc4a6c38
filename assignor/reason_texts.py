"""Reasons of moves in words, for the assignors that stage.

A text is made when a caller reads the reason. It names the first cause, in a fixed order, that
applies to this move alone: the owner must give the task up, two members become more even, less is
read across racks, the destination has a better copy. Any other move belongs to an exchange in which
another move brings the gain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.assignor.actives_until_warm import Staged, Target
from muster.assignor.copy_lags import NO_COPY, Copies, code, contains, holds
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs
from muster.assignor.reason_arrays import UNOWNED, Moves, Reasons, Text, changed, stopped
from muster.assignor.solvers.fewest_moves import held
from muster.assignor.targets.traffic import crossings
from muster.protocol.ids import Role
from muster.protocol.tasks import IntArray

Loads = NDArray[np.float64]
_EPSILON = 1e-9
_Better: TypeAlias = Callable[[GroupView, Loads, Loads, int, int], bool]
"""Whether the loads after a change are better for two members than those before it."""


def explained(
    view: GroupView,
    target: Target,
    staged: Staged,
    *,
    by_number: bool = False,
    at_once: bool = False,
) -> Reasons:
    """Reasons for every active, standby and learner that changes hands.

    With `by_number` a task counts as one whatever its weight. With `at_once` the assignor has no
    learners, and takes no task from an owner because that still restores it.
    """

    def moves() -> list[Moves]:
        explainer = _Explainer(view, target, staged, by_number=by_number, at_once=at_once)
        return [
            Moves(Role.ACTIVE, *changed(view.active, staged.active), explainer.active),
            Moves(Role.ACTIVE, *stopped(view.active, staged.active), explainer.stopped),
            gained(Role.STANDBY, view.standby, staged.standby, explainer.standby),
            gained(Role.LEARNER, view.learner, staged.learner, explainer.learner),
        ]

    return Reasons(moves)


def gained(role: Role, before: Pairs, after: Pairs, text: Text) -> Moves:
    """New pairs, each with the member that gave up the same task, if one did."""
    new = ~contains(before, after.code)
    gone = ~contains(after, before.code)
    task, member = after.task[new], after.member[new]
    source = np.full(len(task), NO_MEMBER, dtype=np.int32)
    new_keys = code(task, _nth(task))
    gone_keys = code(before.task[gone], _nth(before.task[gone]))
    _, new_index, gone_index = np.intersect1d(
        new_keys, gone_keys, assume_unique=True, return_indices=True
    )
    source[new_index] = before.member[gone][gone_index]
    return Moves(role, task, source, member, text)


def _nth(task: IntArray) -> IntArray:
    """int32[K]: running number of each entry among equal neighbours."""
    return (np.arange(len(task)) - np.searchsorted(task, task)).astype(np.int32)


class _Explainer:
    def __init__(
        self, view: GroupView, target: Target, staged: Staged, *, by_number: bool, at_once: bool
    ) -> None:
        self._view, self._at_once = view, at_once
        self._copies = Copies(view)
        self._target = target
        self._staged = staged
        self._task_weight: Loads = np.ones(len(view.tasks)) if by_number else view.tasks.weight
        self._by_kind: dict[tuple[str, bool], tuple[Loads, Loads]] = {}
        # Many tasks move between two members for one reason: compute it once.
        self._balance_texts: dict[tuple[str, bool, _Better, int, int], str] = {}

    # ------------------------------------------------------------ roles

    def active(self, task: int, source: int, destination: int) -> str:
        aim = int(self._target.active[task])
        if source != NO_MEMBER:
            return self._and_copy(self._cause(task, source, destination), task, destination)
        if destination != aim and self._view.tasks.stateful[task]:
            runs = "runs here"
            if self._copies.lag_of(task, destination) != NO_COPY:
                copy = "caught-up" if self._warm(task, destination) else "furthest"
                runs = f"{copy} copy runs it"
            return f"{UNOWNED}; {runs} while {self._name(aim)} restores"
        return self._and_copy(UNOWNED, task, destination)

    def stopped(self, task: int, source: int, _no_member: int) -> str:
        others = any(self._takes(task, member) for member in range(len(self._view.members)))
        who = "only draining members may" if others else "no other member may"
        return f"{self._name(source)} does not take it any more; {who}"

    def learner(self, task: int, source: int, destination: int) -> str:
        runner = int(self._staged.active[task])
        if int(self._target.active[task]) == destination:
            owner = int(self._view.active[task])
            if owner == destination and not self._warm(task, owner):
                restores = "restores" if self._view.pending[task] else "goes on restoring"
                return f"{restores}; {self._name(runner)} runs it meanwhile"
            cause = UNOWNED if owner == NO_MEMBER else self._cause(task, owner, destination)
            return f"{cause}; restores before it takes over from {self._name(runner)}"
        return "restores before the standby moves here"

    def standby(self, task: int, source: int, destination: int) -> str:
        if int(self._view.active[task]) == destination and not self._view.pending[task]:
            warm = self._warm(task, destination)
            return f"ran the task before; {'keeps its copy warm' if warm else 'goes on restoring'}"
        if int(self._target.active[task]) == destination:
            return "restores as a standby before it takes over"
        if not holds(self._target.standby, task, destination):
            return "caught up; stands in while another restores"
        if source == NO_MEMBER:
            wanted = self._view.settings.num_standby_replicas
            return f"{wanted} standby{'s' if wanted != 1 else ''} wanted"
        return self._standby_cause(task, source, destination)

    # ------------------------------------------------------------ causes

    def _standby_cause(self, task: int, source: int, destination: int) -> str:
        """Why a standby leaves a member: the first cause that is true."""
        if self._view.draining[source]:
            return f"{self._name(source)} is draining"
        if int(self._staged.active[task]) == source:
            return f"{self._name(source)} runs the task now"
        if not self._takes(task, source):
            return f"{self._name(source)} does not take it any more"
        for kind, loads in self._copies_held.items():
            if _evener(self._view, *loads, source, destination):
                return f"{kind} spread evenly"
        less_traffic = self._less_traffic(task, source, destination, changelog=True)
        if less_traffic:
            return less_traffic
        if self._copies.lag_of(task, destination) < self._copies.lag_of(task, source):
            return "its copy is further"
        if self._likeness(task, destination) < self._likeness(task, source):
            return "differs in more tags from the other copies"
        for kind, (_, after) in self._copies_held.items():
            if _evens_group(self._view, after, source, destination):
                return f"{kind} spread evenly"
        if self._gets_something(source):
            return f"{self._name(source)} makes room for another copy"
        return "one of several placements that are as good"

    def _cause(self, task: int, source: int, destination: int) -> str:
        """Why an active leaves a living owner: the first cause that is true."""
        view = self._view
        if view.draining[source]:
            return f"{self._name(source)} is draining"
        behind = self._overtaken(task, source)
        if behind and not self._at_once:
            return behind
        if self._copies.owner[task] == NO_MEMBER:
            return f"{self._name(source)} does not take it any more"
        gain = (
            self._balanced(task, source, destination, _relieved)
            or self._less_traffic(task, source, destination, changelog=False)
            or self._balanced(task, source, destination, _evener)
        )
        if gain or behind:
            return gain or behind
        if not (view.active == destination).any():
            return f"{self._name(destination)} had no task"
        if self._has_best_copy(task, source, destination):
            return f"{self._name(destination)} has the furthest copy"
        if self._gets_something(source):
            return f"{self._name(source)} makes room for another task"
        return "one of several placements that are as good"

    def _balanced(self, task: int, source: int, destination: int, better: _Better) -> str:
        """The first kind of load that gets better for two members, in words; empty = none does."""
        this_generation = not self._view.tasks.stateful[task]
        for kind, members_tasks in self._kinds(task):
            key = (kind, this_generation, better, source, destination)
            text = self._balance_texts.get(key)
            if text is None:
                loads, text = self._loads(kind, members_tasks, this_generation=this_generation), ""
                if better(self._view, *loads, source, destination):
                    before, after = (f"{load[source]:g}/{load[destination]:g}" for load in loads)
                    text = f"balance {kind}{before} -> {after}"
                self._balance_texts[key] = text
            if text:
                return text
        return ""

    def _kinds(self, task: int) -> Iterator[tuple[str, Callable[[], BoolArray]]]:
        """What can be balanced: all tasks, those with or without state, those of the unit."""
        tasks = self._view.tasks
        yield "", lambda: np.ones(len(tasks), dtype=np.bool_)
        stateful = bool(tasks.stateful[task])
        state = "stateful" if stateful else "stateless"
        yield f"of {state} tasks ", lambda: tasks.stateful == stateful
        unit = int(tasks.unit_of[task])
        yield f"of subtopology {tasks.units[unit].name} ", lambda: tasks.unit_of == unit

    def _loads(
        self, kind: str, of_kind: Callable[[], BoolArray], *, this_generation: bool
    ) -> tuple[Loads, Loads]:
        """float64[M] each: weight of the actives `of_kind` before and after, cached by `kind`.

        "After" is the end, or with `this_generation` now: stateless tasks balance present loads.
        """
        if (kind, this_generation) not in self._by_kind:
            chosen = of_kind()
            after = self._staged.active if this_generation else self._target.active
            self._by_kind[kind, this_generation] = (
                self._weight(chosen, self._view.active),
                self._weight(chosen, after),
            )
        return self._by_kind[kind, this_generation]

    def _weight(self, mine: BoolArray, owner: IntArray) -> Loads:
        mine = mine & (owner != NO_MEMBER)
        load = np.bincount(owner[mine], self._task_weight[mine], len(self._view.members))
        return load.astype(np.float64)

    @cached_property
    def _copies_held(self) -> dict[str, tuple[Loads, Loads]]:
        """float64[M] pairs, before and in the end: standbys; standbys with the actives."""
        members = len(self._view.members)
        before, after = (
            np.bincount(pairs.member, minlength=members).astype(np.float64)
            for pairs in (self._view.standby, self._target.standby)
        )
        actives_before, actives_after = (
            held(owner, members) for owner in (self._view.active, self._target.active)
        )
        return {
            "standbys": (before, after),
            "actives and standbys": (before + actives_before, after + actives_after),
        }

    def _less_traffic(self, task: int, source: int, destination: int, *, changelog: bool) -> str:
        """How much less is read across racks, in words; empty = no less, or racks do not count."""
        if self._view.settings.rack_aware_assignment_strategy == "none":
            return ""

        def read(member: int) -> int:
            return crossings(self._view, *_pair(task, member), changelog=changelog)

        fewer = read(source) - read(destination)
        if fewer <= 0:
            return ""
        return f"reads {fewer} partition{'s' * (fewer > 1)} fewer across racks"

    def _gets_something(self, member: int) -> bool:
        """Whether a member gets an active, now or in the end, or a standby it did not have."""
        target, view = self._target, self._view
        gets_active = (target.active == member) | (self._staged.active == member)
        if (gets_active & (view.active != member)).any():
            return True
        mine = target.standby.member == member
        return not contains(view.standby, target.standby.code[mine]).all()

    def _likeness(self, task: int, member: int) -> int:
        """How many configured tags a member shares with the final holders of a task, summed."""
        pairs, tags = self._target.standby, self._view.tags
        holders = {int(self._target.active[task]), *pairs.member[pairs.task == task].tolist()}
        return sum(
            tags[member].get(key) == tags[holder].get(key)
            for holder in holders - {member, NO_MEMBER}
            for key in self._view.settings.rack_aware_assignment_tags
        )

    def _takes(self, task: int, member: int) -> bool:
        """Whether a member may have copies of a task."""
        return bool(self._view.may_take(*_pair(task, member))[0])

    def _has_best_copy(self, task: int, source: int, destination: int) -> bool:
        """Whether no member but the present owner has a more complete copy of a task."""
        lag_of, members = self._copies.lag_of, range(len(self._view.members))
        least = lag_of(task, destination)
        return least != NO_COPY and all(lag_of(task, m) >= least for m in members if m != source)

    def _warm(self, task: int, member: int) -> bool:
        return self._copies.reported_warm_of(task, member)

    def _overtaken(self, task: int, owner: int) -> str:
        """That a restoring owner hands a task to a member with a warm copy; empty = not so."""
        runner = int(self._staged.active[task])
        moves = runner not in (owner, NO_MEMBER) and self._view.tasks.stateful[task]
        if not moves or self._warm(task, owner) or not self._warm(task, runner):
            return ""
        pending = self._view.pending[task]
        restores = "would restore it first" if pending else "is still restoring it"
        return f"{self._name(owner)} {restores}"

    def _and_copy(self, cause: str, task: int, destination: int) -> str:
        if not self._view.tasks.stateful[task] or not self._warm(task, destination):
            return cause
        ready = holds(self._view.ready, task, destination)
        return f"{cause}; {'learner ready' if ready else 'copy caught up'}"

    def _name(self, member: int) -> str:
        return self._view.members[member]


def _evener(view: GroupView, before: Loads, after: Loads, source: int, destination: int) -> bool:
    """Whether the fuller of two members gets less, or as much with a smaller difference."""
    pair = [source, destination]

    def uneven(load: Loads) -> tuple[float, float]:
        levels = load[pair] / view.capacity[pair]
        return round(float(levels.max()), 9), round(float(np.ptp(levels)), 9)

    return uneven(after) < uneven(before)


def _evens_group(view: GroupView, after: Loads, source: int, destination: int) -> bool:
    """Whether the loads of the whole group would differ more if one task went back."""
    back = after.copy()
    back[[source, destination]] += (1, -1)
    stays = ~view.draining | view.draining.all()
    now, then = (np.ptp((load / view.capacity)[stays]) for load in (after, back))
    return bool(now < then - _EPSILON)


def _relieved(view: GroupView, before: Loads, after: Loads, source: int, destination: int) -> bool:
    """Whether one member ends with less, the other with more, and the two are more even.

    More even alone is not enough: other tasks may have caused that.
    """
    shifted = after[source] < before[source] and after[destination] > before[destination]
    return bool(shifted) and _evener(view, before, after, source, destination)


def _pair(task: int, member: int) -> tuple[IntArray, IntArray]:
    return np.array([task], dtype=np.int32), np.array([member], dtype=np.int32)
