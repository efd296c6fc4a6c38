"""Why things moved, in a few true words, for the assignors that stage.

Texts are made when somebody reads a reason; until then a move is three numbers.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from muster.assignor.balance import held
from muster.assignor.copies import Copies, code, contains
from muster.assignor.model import NOBODY, GroupView, Pairs
from muster.assignor.reasons import Moves, Reasons, Text, changed
from muster.assignor.shares import Counts
from muster.assignor.staging import Staged, Target
from muster.protocol.ids import Role
from muster.protocol.tasks import IntArray


def explained(view: GroupView, copies: Copies, target: Target, staged: Staged) -> Reasons:
    """Reasons for every active, standby and learner that changes hands."""
    why = _Why(view, copies, target, staged)
    return Reasons(
        lambda: [
            Moves(Role.ACTIVE, *changed(view.active, staged.active), why.active),
            gained(Role.STANDBY, view.standby, staged.standby, why.standby),
            gained(Role.LEARNER, view.learner, staged.learner, why.learner),
        ]
    )


def gained(role: Role, before: Pairs, after: Pairs, text: Text) -> Moves:
    """Pairs that are new, each with the member that gave the same task up, if one did."""
    new = ~contains(before, after.code)
    gone = ~contains(after, before.code)
    task, member = after.task[new], after.member[new]
    source = np.full(len(task), NOBODY, dtype=np.int32)
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

    @cached_property
    def _loads(self) -> tuple[Counts, Counts]:
        """int64[M] each: actives before and in the end."""
        members = len(self._view.members)
        return held(self._view.active, members), held(self._target.active, members)

    def active(self, task: int, source: int, destination: int) -> str:
        aim = int(self._target.active[task])
        if source != NOBODY:
            return self._and_copy(self._cause(source, destination), task, destination)
        if destination != aim:
            return f"had no owner; furthest copy runs it while {self._name(aim)} restores"
        return self._and_copy("had no owner", task, destination)

    def learner(self, task: int, source: int, destination: int) -> str:
        runner = int(self._staged.active[task])
        if int(self._target.active[task]) == destination:
            cause = self._cause(runner, destination)
            return f"{cause}; restores before it takes over from {self._name(runner)}"
        return "restores before the standby moves here"

    def standby(self, task: int, source: int, destination: int) -> str:
        if int(self._view.active[task]) == destination:
            return "ran the task before; keeps its copy warm"
        if int(self._target.active[task]) == destination:
            return "restores as a standby before it takes over"
        if source == NOBODY:
            return f"one of {self._view.settings.num_standby_replicas} standbys wanted"
        if self._view.draining[source]:
            return f"{self._name(source)} is draining"
        if int(self._staged.active[task]) == source:
            return f"{self._name(source)} runs the task now"
        return "standbys spread evenly"

    def _cause(self, source: int, destination: int) -> str:
        if self._view.draining[source]:
            return f"{self._name(source)} is draining"
        before, after = self._loads
        if before[source] <= after[source]:
            return f"{self._name(destination)} has the copy that is furthest"
        return (
            f"balance {before[source]}/{before[destination]}"
            f" -> {after[source]}/{after[destination]}"
        )

    def _and_copy(self, cause: str, task: int, destination: int) -> str:
        pair = np.array([task], dtype=np.int32), np.array([destination], dtype=np.int32)
        if not self._view.tasks.stateful[task] or not self._copies.told_warm(*pair)[0]:
            return cause
        ready = contains(self._view.ready, code(*pair))[0]
        return f"{cause}; {'learner ready' if ready else 'copy caught up'}"

    def _name(self, member: int) -> str:
        return self._view.members[member]
