"""Balance by weight and capacity, beyond Kafka (S3-13): heavy jobs do not pile up on one worker.

In force only where a weight differs from 1 or capacities differ from each other; weights are what
the user declares, never measured (S0-41, S0-42). The load of a worker is the weight of all it runs,
connectors and tasks together, by its capacity.

New jobs are dealt heaviest first to where the load ends up least. Then single moves are looked for
that bring down the fuller of two workers, and where none is left for the fullest of all, exchanges
of two jobs that bring it down, new jobs before running ones; each makes the sorted loads strictly
smaller, so the search ends. Whatever runs is stopped only where it pays: a move must bring the
fuller of the two down by half of the job's share at least, an exchange, which stops two, by a
twentieth of its load. What is found is a plan: the job stops in this round and the next round gives
it to the worker it was meant for, so that what is planned is what is reached and nothing moves
twice.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from muster.assignor.connect.jobs import Ranks
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView
from muster.protocol.tasks import IntArray

_LEAST_GAIN = 1e-9
"""Loads closer than this are equal: sums of floats depend on their order."""
_MOVE_PAYS, _EXCHANGE_PAYS = 0.5, 0.05
"""By how much of a job's share, or of the fuller worker's load, stopping what runs must help."""


def weighs(view: GroupView) -> bool:
    """Whether weights or capacities ask for more than counting."""
    weight, capacity = view.tasks.weight, view.capacity
    return bool((weight != 1).any() or (len(capacity) > 0 and (capacity != capacity[0]).any()))


class Weighed:
    """Balance by weight among some workers, over some jobs.

    Args:
        view: the group.
        workers: bool[M], who takes part.
        free: bool[T], jobs that take part.
        planned: job -> worker of the moves begun in the last round.
    """

    def __init__(
        self, view: GroupView, workers: BoolArray, free: BoolArray, planned: Mapping[str, str]
    ) -> None:
        self.view = view
        self.workers = np.flatnonzero(workers).astype(np.int32)
        self.free = free
        self.planned: dict[str, str] = {}
        self._promised = _promised(view, workers, planned)
        self._dealt: dict[int, int] | None = None

    def cut(self, owner: IntArray, ranks: Ranks, arriving: IntArray) -> IntArray:
        """Jobs to stop because another worker should run them; ascending.

        Args:
            owner: int32[T], who would run each job in this round.
            ranks: not used: the weight decides which job moves.
            arriving: jobs about to be dealt; they are counted in.
        """
        if not len(self.workers):
            return np.empty(0, dtype=np.int32)
        goal = owner.copy()
        self._deal(goal, arriving)
        new = np.zeros(len(owner), dtype=np.bool_)
        new[[job for job in arriving.tolist() if job not in self._promised]] = True
        self._improve(goal, new, stops=False)
        self._dealt = {job: int(goal[job]) for job in arriving.tolist()}
        movable = self.free & (owner != NO_MEMBER)
        self._improve(goal, movable, stops=True)
        moved = np.flatnonzero(movable & (goal != owner)).astype(np.int32)
        self.planned = {
            str(self.view.tasks.task(job)): self.view.members[goal[job]] for job in moved.tolist()
        }
        return moved

    def deal(self, owner: IntArray, jobs: IntArray) -> None:
        """Give jobs to workers as planned, else where the load ends up least; in place."""
        if self._dealt is None:
            self._deal(owner, jobs)
            return
        for job in jobs.tolist():
            owner[job] = self._dealt[job]

    def _load(self, owner: IntArray) -> NDArray[np.float64]:
        held = owner != NO_MEMBER
        weight: NDArray[np.float64] = self.view.tasks.weight
        load = np.bincount(owner[held], weights=weight[held], minlength=len(self.view.members))
        return load.astype(np.float64)

    def _deal(self, owner: IntArray, jobs: IntArray) -> None:
        if not len(self.workers):
            return
        rest: list[int] = []
        for job in jobs.tolist():
            if job in self._promised:
                owner[job] = self._promised[job]
            else:
                rest.append(job)
        weight, capacity = self.view.tasks.weight, self.view.capacity[self.workers]
        load = self._load(owner)[self.workers]
        count = np.bincount(owner + 1, minlength=len(self.view.members) + 1)[1:][self.workers]
        for job in sorted(rest, key=lambda j: (-float(weight[j]), j)):
            after = (load + weight[job]) / capacity
            least = np.flatnonzero(after <= after.min() + _LEAST_GAIN)
            place = int(least[np.argmin(count[least])])
            owner[job] = self.workers[place]
            load[place] += weight[job]
            count[place] += 1

    def _improve(self, goal: IntArray, movable: BoolArray, *, stops: bool) -> None:
        """Move jobs from fuller to emptier workers until nothing pays; in place.

        Args:
            goal: int32[T], who is to run each job.
            movable: bool[T], jobs that may move.
            stops: whether these jobs run, and must be stopped to move.
        """
        weight, capacity = self.view.tasks.weight, self.view.capacity.astype(np.float64)
        load = self._load(goal)
        stuck = np.zeros(len(load), dtype=np.bool_)
        while True:
            level = load[self.workers] / capacity[self.workers]
            level[stuck[self.workers]] = -1.0
            source = int(self.workers[np.argmax(level)])
            if level.max() <= 0:
                return
            moves = self._best_move(goal, movable, source, load, _MOVE_PAYS * stops)
            if not moves and not stuck.any():  # it is the fullest of all
                moves = self._best_exchange(goal, movable, source, load, _EXCHANGE_PAYS * stops)
            if not moves:
                stuck[source] = True
                continue
            for job, destination in moves:
                load[goal[job]] -= weight[job]
                load[destination] += weight[job]
                goal[job] = destination
            stuck[:] = False

    def _best_move(
        self,
        goal: IntArray,
        movable: BoolArray,
        source: int,
        load: NDArray[np.float64],
        pays: float,
    ) -> list[tuple[int, int]]:
        """The heaviest job of a worker that makes another one less full than this one is now."""
        capacity = self.view.capacity.astype(np.float64)
        others = self.workers[self.workers != source]
        if not len(others):
            return []
        full = load[source] / capacity[source]
        for each, job in self._heaviest_first(movable & (goal == source)):
            after = (load[others] + each) / capacity[others]
            place = int(np.argmin(after))
            gain = full - max(float(after[place]), (load[source] - each) / capacity[source])
            if gain > max(_LEAST_GAIN, pays * each / capacity[source] - _LEAST_GAIN):
                return [(job, int(others[place]))]
        return []

    def _best_exchange(
        self,
        goal: IntArray,
        movable: BoolArray,
        source: int,
        load: NDArray[np.float64],
        pays: float,
    ) -> list[tuple[int, int]]:
        """A job of a worker for a lighter one of another, so that the fuller of both is least."""
        weight, capacity = self.view.tasks.weight, self.view.capacity.astype(np.float64)
        ours = np.zeros(len(load), dtype=np.bool_)
        ours[self.workers] = True
        theirs = np.flatnonzero(movable & (goal != source) & np.append(ours, False)[goal])
        if not len(theirs):
            return []
        best: list[tuple[int, int]] = []
        least = load[source] / capacity[source] * (1 - pays) - _LEAST_GAIN
        there = goal[theirs]
        for each, job in self._heaviest_first(movable & (goal == source)):
            less = each - weight[theirs]
            after = np.maximum(
                (load[source] - less) / capacity[source], (load[there] + less) / capacity[there]
            )
            after[less <= 0] = np.inf
            place = int(np.argmin(after))
            if after[place] < least:
                least = float(after[place])
                best = [(job, int(there[place])), (int(theirs[place]), source)]
        return best

    def _heaviest_first(self, among: BoolArray) -> list[tuple[float, int]]:
        """(weight, job) for each weight once: equal ones fit the same places, or none."""
        weight = self.view.tasks.weight
        jobs = np.flatnonzero(among & (weight > 0))
        lightness, first = np.unique(-weight[jobs], return_index=True)
        return list(zip((-lightness).tolist(), jobs[first].tolist(), strict=True))


def _promised(view: GroupView, workers: BoolArray, planned: Mapping[str, str]) -> dict[int, int]:
    """Where the moves begun in the last round lead, as far as both ends are still there."""
    number = {view.members[p]: int(p) for p in np.flatnonzero(workers).tolist()}
    found: dict[int, int] = {}
    for printed, worker in planned.items():
        job = view.tasks.index(printed)
        if job is not None and worker in number:
            found[job] = number[worker]
    return found
