"""Balance by weight and capacity, beyond Kafka (S3-13): heavy jobs are spread over the workers.

It applies only where a weight differs from 1 or capacities differ. The user declares weights; they
are never measured (S0-41, S0-42). A worker's load is the weight of all its jobs by its capacity.

New jobs go, heaviest first, to the worker whose load ends lowest. Then single moves lower the
fuller of two workers; if the fullest of all has no such move, an exchange of two jobs lowers it.
New jobs move before running ones. Each step makes the sorted loads smaller, so the search ends.

A running job stops only if that pays: a move must lower the fuller worker's load by half of the
job's share, an exchange, which stops two jobs, by a twentieth of that load. The job stops in this
round, and the next round gives it to the planned worker, so no job moves twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.assignor.connect.jobs import Ranks, numbers
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView
from muster.protocol.tasks import IntArray

Floats: TypeAlias = NDArray[np.float64]
_LEAST_GAIN = 1e-9
"""Loads closer than this are equal: sums of floats depend on their order."""
_MOVE_PAYS, _EXCHANGE_PAYS = 0.5, 0.05
"""Least gain of stopping running jobs, as a share of the job, and of the fuller worker's load."""


def weighs(view: GroupView) -> bool:
    """Whether counting jobs is not enough: weights or capacities differ."""
    weight, capacity = view.tasks.weight, view.capacity
    return bool((weight != 1).any() or (len(capacity) > 0 and (capacity != capacity[0]).any()))


class Weighed:
    """Balance by weight, for the given workers (bool[M]) and jobs (bool[T]).

    `planned` workers are to get the jobs whose moves the last round began.
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

        Jobs that run in this round (`owner`, int32[T]) and `arriving` ones count as load. The
        weight decides which job moves, and no rank.
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
        """Give jobs to their planned workers, else to those whose load ends lowest; in place."""
        if self._dealt is None:
            self._deal(owner, jobs)
            return
        for job in jobs.tolist():
            owner[job] = self._dealt[job]

    def _load(self, owner: IntArray) -> Floats:
        held, weight = owner != NO_MEMBER, self.view.tasks.weight
        return np.bincount(owner[held], weight[held], len(self.view.members)).astype(np.float64)

    def _deal(self, owner: IntArray, jobs: IntArray) -> None:
        if not len(self.workers):
            return
        every: set[int] = set(jobs.tolist())
        for job in every & self._promised.keys():
            owner[job] = self._promised[job]
        weight, capacity = self.view.tasks.weight, self.view.capacity[self.workers]
        load = self._load(owner)[self.workers]
        count = numbers(owner, len(self.view.members))[self.workers]
        for job in sorted(every - self._promised.keys(), key=lambda j: (-float(weight[j]), j)):
            after = (load + weight[job]) / capacity
            least = np.flatnonzero(after <= after.min() + _LEAST_GAIN)
            index = int(least[np.argmin(count[least])])
            owner[job] = self.workers[index]
            load[index] += weight[job]
            count[index] += 1

    def _improve(self, goal: IntArray, movable: BoolArray, *, stops: bool) -> None:
        """Move jobs from fuller to emptier workers until nothing pays; changes `goal` (int32[T]).

        Only `movable` (bool[T]) jobs move; `stops` says that they run and must be stopped to move.
        """
        weight, capacity = self.view.tasks.weight, self.view.capacity
        load = self._load(goal)
        stuck = np.zeros(len(load), dtype=np.bool_)
        while True:
            level = load[self.workers] / capacity[self.workers]
            level[stuck[self.workers]] = -1.0
            source = int(self.workers[np.argmax(level)])
            if level.max() <= 0:
                return
            moves = self._best_move(goal, movable, source, load, _MOVE_PAYS * stops)
            if not moves and not stuck.any():  # the source is the fullest of all
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
        self, goal: IntArray, movable: BoolArray, source: int, load: Floats, pays: float
    ) -> list[tuple[int, int]]:
        """The heaviest job of a worker whose move leaves the fuller of both workers lower."""
        capacity = self.view.capacity
        others = self.workers[self.workers != source]
        if not len(others):
            return []
        full = load[source] / capacity[source]
        for job_weight, job in self._heaviest_first(movable & (goal == source)):
            after = (load[others] + job_weight) / capacity[others]
            index = int(np.argmin(after))
            gain = full - max(float(after[index]), (load[source] - job_weight) / capacity[source])
            if gain > max(_LEAST_GAIN, pays * job_weight / capacity[source] - _LEAST_GAIN):
                return [(job, int(others[index]))]
        return []

    def _best_exchange(
        self, goal: IntArray, movable: BoolArray, source: int, load: Floats, pays: float
    ) -> list[tuple[int, int]]:
        """The exchange of a job for a lighter one of another worker that lowers the fuller most."""
        weight, capacity = self.view.tasks.weight, self.view.capacity
        takes_part = np.zeros(len(load), dtype=np.bool_)
        takes_part[self.workers] = True
        other_jobs = np.flatnonzero(movable & (goal != source) & np.append(takes_part, False)[goal])
        if not len(other_jobs):
            return []
        best: list[tuple[int, int]] = []
        least = load[source] / capacity[source] * (1 - pays) - _LEAST_GAIN
        other_workers = goal[other_jobs]
        for job_weight, job in self._heaviest_first(movable & (goal == source)):
            difference = job_weight - weight[other_jobs]
            after = np.maximum(
                (load[source] - difference) / capacity[source],
                (load[other_workers] + difference) / capacity[other_workers],
            )
            after[difference <= 0] = np.inf
            index = int(np.argmin(after))
            if after[index] < least:
                least = float(after[index])
                best = [(job, int(other_workers[index])), (int(other_jobs[index]), source)]
        return best

    def _heaviest_first(self, among: BoolArray) -> list[tuple[float, int]]:
        """(weight, job), one job per weight: jobs of equal weight fit equally."""
        weight = self.view.tasks.weight
        jobs = np.flatnonzero(among & (weight > 0))
        lightness, first = np.unique(-weight[jobs], return_index=True)
        return list(zip((-lightness).tolist(), jobs[first].tolist(), strict=True))


def _promised(view: GroupView, workers: BoolArray, planned: Mapping[str, str]) -> dict[int, int]:
    """Job -> worker of the moves that the last round began, if both still exist."""
    index_of = {view.members[p]: p for p in np.flatnonzero(workers).tolist()}
    jobs = ((view.tasks.index(printed), worker) for printed, worker in planned.items())
    return {job: index_of[w] for job, w in jobs if job is not None and w in index_of}
