"""Why things moved, in a few true words, for the assignors that stage.

Texts are made when a caller reads a reason; until then a move is three numbers. A move may have
many causes; told is the first that is true of it alone: the owner must go, two members become more
even, less is read across racks, a better copy. What is left is one side of an exchange that pays
on the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.assignor.copies import NO_COPY, Copies, code, contains, holds
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs
from muster.assignor.reasons import UNOWNED, Moves, Reasons, Text, changed, stopped
from muster.assignor.solvers.balance import held
from muster.assignor.staging import Staged, Target
from muster.assignor.targets.traffic import crossings
from muster.protocol.ids import Role
from muster.protocol.tasks import IntArray

Loads = NDArray[np.float64]
_Better: TypeAlias = Callable[[GroupView, Loads, Loads, int, int], bool]
"""Whether loads before and after are better for two members."""


def explained(
    view: GroupView, copies: Copies, target: Target, staged: Staged, *, by_number: bool = False
) -> Reasons:
    """Reasons for every active, standby and learner that changes hands.

    Args:
        view: the group.
        copies: its copies.
        target: where everything belongs.
        staged: what is asked for now.
        by_number: whether a task counts as one whatever it weighs.
    """
    why = _Why(view, copies, target, staged)
    if by_number:
        why.weight = np.ones(len(view.tasks))
    return Reasons(
        lambda: [
            Moves(Role.ACTIVE, *changed(view.active, staged.active), why.active),
            Moves(Role.ACTIVE, *stopped(view.active, staged.active), why.stopped),
            gained(Role.STANDBY, view.standby, staged.standby, why.standby),
            gained(Role.LEARNER, view.learner, staged.learner, why.learner),
        ]
    )


def gained(role: Role, before: Pairs, after: Pairs, text: Text) -> Moves:
    """Pairs that are new, each with the member that gave the same task up, if one did."""
    new = ~contains(before, after.code)
    gone = ~contains(after, before.code)
    task, member = after.task[new], after.member[new]
    source = np.full(len(task), NO_MEMBER, dtype=np.int32)
    mine = code(task, _nth(task))
    theirs = code(before.task[gone], _nth(before.task[gone]))
    _, here, there = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
    source[here] = before.member[gone][there]
    return Moves(role, task, source, member, text)


def _nth(task: IntArray) -> IntArray:
    """int32[K]: running number of each entry among equal neighbours."""
    return (np.arange(len(task)) - np.searchsorted(task, task)).astype(np.int32)


class _Why:
    def __init__(self, view: GroupView, copies: Copies, target: Target, staged: Staged) -> None:
        self._view = view
        self._copies = copies
        self._target = target
        self._staged = staged
        self.weight: Loads = view.tasks.weight
        self._by_kind: dict[tuple[str, bool], tuple[Loads, Loads]] = {}
        # Two members exchange many tasks for one reason: it is found once.
        self._judged: dict[tuple[str, bool, _Better, int, int], str] = {}

    # ------------------------------------------------------------ roles

    def active(self, task: int, source: int, destination: int) -> str:
        aim = int(self._target.active[task])
        if source != NO_MEMBER:
            return self._and_copy(self._cause(task, source, destination), task, destination)
        if destination != aim and self._view.tasks.stateful[task]:
            copy = "caught-up" if self._warm(task, destination) else "furthest"
            return f"{UNOWNED}; {copy} copy runs it while {self._name(aim)} restores"
        return self._and_copy(UNOWNED, task, destination)

    def stopped(self, task: int, source: int, _no_member: int) -> str:
        return f"{self._name(source)} does not take it any more; nor may anybody else"

    def learner(self, task: int, source: int, destination: int) -> str:
        runner = int(self._staged.active[task])
        if int(self._target.active[task]) == destination:
            owner = int(self._view.active[task])
            if owner == destination and not self._warm(task, owner):
                return f"goes on restoring; {self._name(runner)} runs it meanwhile"
            cause = UNOWNED if owner == NO_MEMBER else self._cause(task, owner, destination)
            return f"{cause}; restores before it takes over from {self._name(runner)}"
        return "restores before the standby moves here"

    def standby(self, task: int, source: int, destination: int) -> str:
        if int(self._view.active[task]) == destination:
            warm = self._warm(task, destination)
            return f"ran the task before; {'keeps its copy warm' if warm else 'goes on restoring'}"
        if int(self._target.active[task]) == destination:
            return "restores as a standby before it takes over"
        if not self._stays_standby(task, destination):
            return "caught up; stands in while another restores"
        if source == NO_MEMBER:
            return f"one of {self._view.settings.num_standby_replicas} standbys wanted"
        return self._standby_cause(task, source, destination)

    # ------------------------------------------------------------ causes

    def _standby_cause(self, task: int, source: int, destination: int) -> str:
        """Why a standby leaves a member: the first of these that is true."""
        if self._view.draining[source]:
            return f"{self._name(source)} is draining"
        if int(self._staged.active[task]) == source:
            return f"{self._name(source)} runs the task now"
        if not self._takes(task, source):
            return f"{self._name(source)} does not take it any more"
        for kind, loads in self._copies_held.items():
            if _evener(self._view, *loads, source, destination):
                return f"{kind} spread evenly"
        fewer = self._saved(task, source, destination, changelog=True)
        if fewer:
            return _less_traffic(fewer)
        if self._further(task, destination, source):
            return "its copy is further"
        if self._likeness(task, destination) < self._likeness(task, source):
            return "differs in more tags from the other copies"
        if self._given(source):
            return f"{self._name(source)} makes room for another copy"
        return "one of several placements that are as good"

    def _cause(self, task: int, source: int, destination: int) -> str:
        """Why an active leaves a living owner: the first of these that is true."""
        view = self._view
        if view.draining[source]:
            return f"{self._name(source)} is draining"
        if self._overtaken(task, source):
            return f"{self._name(source)} is still restoring it"
        if self._copies.owner[task] == NO_MEMBER:
            return f"{self._name(source)} does not take it any more"
        balanced = self._balanced(task, source, destination, _relieved)
        if balanced:
            return balanced
        fewer = self._saved(task, source, destination, changelog=False)
        if fewer:
            return _less_traffic(fewer)
        balanced = self._balanced(task, source, destination, _evener)
        if balanced:
            return balanced
        if self._idle(destination):
            return f"{self._name(destination)} had no task"
        if self._furthest(task, source, destination):
            return f"{self._name(destination)} has the furthest copy"
        if self._given(source):
            return f"{self._name(source)} makes room for another task"
        return "one of several placements that are as good"

    def _balanced(
        self,
        task: int,
        source: int,
        destination: int,
        better: _Better,
    ) -> str:
        """The first kind of load that is better for two members, in words; empty = none is."""
        now = not self._view.tasks.stateful[task]
        for kind, mine in self._kinds(task):
            asked = (kind, now, better, source, destination)
            text = self._judged.get(asked)
            if text is None:
                loads, text = self._loads(kind, mine, now=now), ""
                if better(self._view, *loads, source, destination):
                    pairs = ([_number(load[m]) for m in (source, destination)] for load in loads)
                    one, other = map("/".join, pairs)
                    text = f"balance {kind}{one} -> {other}"
                self._judged[asked] = text
            if text:
                return text
        return ""

    def _kinds(self, task: int) -> Iterator[tuple[str, Callable[[], BoolArray]]]:
        """What may be balanced: all tasks, those with or without state, those of the unit."""
        tasks = self._view.tasks
        yield "", lambda: np.ones(len(tasks), dtype=np.bool_)
        stateful = bool(tasks.stateful[task])
        state = "stateful" if stateful else "stateless"
        yield f"of {state} tasks ", lambda: tasks.stateful == stateful
        unit = int(tasks.unit_of[task])
        yield f"of subtopology {tasks.units[unit].name} ", lambda: tasks.unit_of == unit

    def _loads(self, kind: str, mine: Callable[[], BoolArray], *, now: bool) -> tuple[Loads, Loads]:
        """float64[M] each: weight of the actives of a kind before and after, summed once.

        Args:
            kind: name of the kind.
            mine: which tasks are of the kind.
            now: whether after is this generation; else it is the end. Stateless tasks go by what
                runs now.
        """
        if (kind, now) not in self._by_kind:
            chosen = mine()
            after = self._staged.active if now else self._target.active
            self._by_kind[kind, now] = (
                self._weight(chosen, self._view.active),
                self._weight(chosen, after),
            )
        return self._by_kind[kind, now]

    def _weight(self, mine: BoolArray, owner: IntArray) -> Loads:
        mine = mine & (owner != NO_MEMBER)
        weights = self.weight[mine]
        size = len(self._view.members)
        return np.bincount(owner[mine], weights=weights, minlength=size).astype(np.float64)

    @cached_property
    def _copies_held(self) -> dict[str, tuple[Loads, Loads]]:
        """float64[M] each: standbys before and in the end; the same with the actives."""
        members = len(self._view.members)
        before, after = (
            np.bincount(pairs.member, minlength=members).astype(np.float64)
            for pairs in (self._view.standby, self._target.standby)
        )
        ran, runs = (held(owner, members) for owner in (self._view.active, self._target.active))
        return {"standbys": (before, after), "actives and standbys": (before + ran, after + runs)}

    def _saved(self, task: int, source: int, destination: int, *, changelog: bool) -> int:
        """How many partitions fewer are read across racks, where racks count."""
        if self._view.settings.rack_aware_assignment_strategy == "none":
            return 0

        def read(member: int) -> int:
            return crossings(self._view, *_pair(task, member), changelog=changelog)

        return max(read(source) - read(destination), 0)

    def _idle(self, member: int) -> bool:
        """Whether a member has no active now."""
        return not (self._view.active == member).any()

    def _given(self, member: int) -> bool:
        """Whether a member gets an active or a standby that it did not have in that role."""
        target, view = self._target, self._view
        if ((target.active == member) & (view.active != member)).any():
            return True
        mine = target.standby.member == member
        return not contains(view.standby, target.standby.code[mine]).all()

    def _likeness(self, task: int, member: int) -> int:
        """How many configured tags a member shares with those that hold the task in the end."""
        pairs, tags = self._target.standby, self._view.tags
        holders = {int(self._target.active[task]), *pairs.member[pairs.task == task].tolist()}
        return sum(
            tags[member].get(key) == tags[holder].get(key)
            for holder in holders - {member, NO_MEMBER}
            for key in self._view.settings.rack_aware_assignment_tags
        )

    def _lag(self, task: int, member: int) -> int:
        return self._copies.lag_of(task, member)

    def _stays_standby(self, task: int, member: int) -> bool:
        """Whether a standby is where it belongs in the end."""
        return holds(self._target.standby, task, member)

    def _takes(self, task: int, member: int) -> bool:
        """Whether a member may have copies of a task."""
        return bool(self._view.may_take(*_pair(task, member))[0])

    def _further(self, task: int, one: int, other: int) -> bool:
        return self._lag(task, one) < self._lag(task, other)

    def _furthest(self, task: int, source: int, destination: int) -> bool:
        """Whether no member but the owner has more of a task."""
        mine = self._lag(task, destination)
        others = (m for m in range(len(self._view.members)) if m not in (source, destination))
        return mine != NO_COPY and all(self._lag(task, m) >= mine for m in others)

    def _warm(self, task: int, member: int) -> bool:
        return self._copies.told_warm_of(task, member)

    def _overtaken(self, task: int, owner: int) -> bool:
        """Whether an owner gives a task to a copy that has caught up when it has not itself."""
        runner = int(self._staged.active[task])
        moves = runner not in (owner, NO_MEMBER) and self._view.tasks.stateful[task]
        return bool(moves and not self._warm(task, owner) and self._warm(task, runner))

    def _and_copy(self, cause: str, task: int, destination: int) -> str:
        if not self._view.tasks.stateful[task] or not self._warm(task, destination):
            return cause
        ready = holds(self._view.ready, task, destination)
        return f"{cause}; {'learner ready' if ready else 'copy caught up'}"

    def _name(self, member: int) -> str:
        return self._view.members[member]


def _evener(view: GroupView, before: Loads, after: Loads, source: int, destination: int) -> bool:
    """Whether of two members the fuller one gets less, or as much with less of a difference."""
    pair = [source, destination]

    def uneven(load: Loads) -> tuple[float, float]:
        each = load[pair] / view.capacity[pair]
        return round(float(each.max()), 9), round(float(np.ptp(each)), 9)

    return uneven(after) < uneven(before)


def _relieved(view: GroupView, before: Loads, after: Loads, source: int, destination: int) -> bool:
    """Whether one member has less in the end and the other more, and that made the two more even.

    Two members may become more even by other tasks, while this one moves for another cause.
    """
    shifted = after[source] < before[source] and after[destination] > before[destination]
    return bool(shifted) and _evener(view, before, after, source, destination)


def _pair(task: int, member: int) -> tuple[IntArray, IntArray]:
    return np.array([task], dtype=np.int32), np.array([member], dtype=np.int32)


def _less_traffic(partitions: int) -> str:
    return f"reads {partitions} partition{'s' * (partitions > 1)} fewer across racks"


def _number(load: float) -> str:
    return f"{load:g}"
