"""Balance by counts, connectors and tasks separately, with the answers of Kafka's Connect leader.

To stop jobs, the leader walks the workers in Java's hash order: the first workers above the minimum
keep an extra job, and the jobs a worker reported first are stopped. To place jobs, it fills the
lowest level first, workers of equal count by id.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muster.assignor.connect.java_order import hash_order
from muster.assignor.connect.jobs import Ranks, by_id, first_of_each, kinds, numbers
from muster.assignor.model import BoolArray, GroupView
from muster.protocol.tasks import IntArray


class Counted:
    """Balance by counts, for the given workers (bool[M]) and jobs (bool[T])."""

    def __init__(self, view: GroupView, workers: BoolArray, free: BoolArray) -> None:
        self.view = view
        self.workers = workers
        self.kinds = tuple(jobs[free[jobs]] for jobs in kinds(view.tasks))

    def cut(self, owner: IntArray, ranks: Ranks, arriving: IntArray) -> IntArray:
        """Jobs to stop, so that a later round can spread them; ascending.

        Only jobs that run in this round (`owner`, int32[T]) count, and no `arriving` ones.
        """
        if not numbers(owner, len(self.workers))[self.workers].any():
            return np.empty(0, dtype=np.int32)
        return np.sort(np.concatenate([self._cut(jobs, owner, ranks) for jobs in self.kinds]))

    def _cut(self, jobs: IntArray, owner: IntArray, ranks: Ranks) -> IntArray:
        owners = owner[jobs]
        count = numbers(owners, len(self.workers))
        least, extra = divmod(len(jobs), int(np.count_nonzero(self.workers)))
        above_least = count[self.workers] - least
        if ((above_least == 0) | (above_least == 1)).all() and above_least.sum() == extra:
            return np.empty(0, dtype=np.int32)
        above = np.flatnonzero(self.workers & (count > least))
        allowed = np.full(len(count), least)
        if len(above) <= extra:
            allowed[above] += 1
        elif extra:
            walked = self._walk()
            allowed[walked[count[walked] > least][:extra]] += 1
        excess = np.where(self.workers, np.maximum(count - allowed, 0), 0).astype(np.int32)
        return first_of_each(jobs, owners, ranks, excess)

    def _walk(self) -> IntArray:
        """Workers in the order in which Kafka's leader visits them."""
        places = by_id(self.view, self.workers)
        return places[hash_order([self.view.members[p] for p in places.tolist()])]

    def deal(self, owner: IntArray, jobs: IntArray) -> None:
        """Give jobs, in their order, to the workers with the fewest of their kind; in place."""
        connector = self.view.tasks.is_connector
        for kind, of_kind in zip(self.kinds, (connector[jobs], ~connector[jobs]), strict=True):
            new = jobs[of_kind]
            if len(new) == 0 or not self.workers.any():
                continue
            count = numbers(owner[kind], len(self.workers))
            order = by_id(self.view, self.workers)
            order = order[np.argsort(count[order], kind="stable")]
            owner[new] = order[_levels(count[order], len(new))]


def _levels(count: NDArray[np.integer], items: int) -> IntArray:
    """Indexes of workers, of ascending counts, that get one or more items, lowest level first."""
    lowest, highest = int(count[0]), int(count[-1])
    levels = np.arange(lowest, min(highest, lowest + items) + 1)
    width = np.searchsorted(count, levels, side="right")
    remaining = items - int(width.sum())
    if remaining > 0:
        width = np.concatenate((width, np.full(-(-remaining // len(count)), len(count))))
    start = np.cumsum(width) - width
    place = np.arange(int(width.sum())) - np.repeat(start, width)
    return place[:items].astype(np.int32)
