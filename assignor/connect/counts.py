"""Balance by counts, each kind of job apart: what Kafka's Connect leader does, to the last job.

Revocation walks the workers in Java's hash order: the first that have more than the minimum keep
the odd job, and what is cut are the first jobs reported (`kafka.md` 2.1.6). Placement fills the
lowest level, workers of equal count by id (2.1.7).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muster.assignor.connect.java import hash_order
from muster.assignor.connect.jobs import Ranks, by_id, first_of_each, kinds
from muster.assignor.model import BoolArray, GroupView
from muster.protocol.tasks import IntArray


class Counted:
    """Balance by counts among some workers, over some jobs.

    Args:
        view: the group.
        workers: bool[M], who takes part.
        free: bool[T], jobs that take part.
    """

    def __init__(self, view: GroupView, workers: BoolArray, free: BoolArray) -> None:
        self.view = view
        self.workers = workers
        self.kinds = tuple(jobs[free[jobs]] for jobs in kinds(view.tasks))

    def cut(self, owner: IntArray, ranks: Ranks, arriving: IntArray) -> IntArray:
        """Jobs to stop, so that a later round can spread them; ascending.

        Args:
            owner: int32[T], who would run each job in this round.
            ranks: order of each worker's jobs.
            arriving: jobs about to be dealt; counts need not know them.
        """
        held = np.bincount(owner + 1, minlength=len(self.workers) + 1)[1:] > 0
        if not (held & self.workers).any():
            return np.empty(0, dtype=np.int32)
        return np.sort(np.concatenate([self._cut(jobs, owner, ranks) for jobs in self.kinds]))

    def _cut(self, jobs: IntArray, owner: IntArray, ranks: Ranks) -> IntArray:
        mine = owner[jobs]
        count = np.bincount(mine + 1, minlength=len(self.workers) + 1)[1:]
        least, extra = divmod(len(jobs), int(np.count_nonzero(self.workers)))
        loads = count[self.workers]
        odd = int(np.count_nonzero(loads == least + 1))
        if odd == extra and int(np.count_nonzero(loads == least)) + odd == len(loads):
            return np.empty(0, dtype=np.int32)
        above = np.flatnonzero(self.workers & (count > least))
        allowed = np.full(len(count), least)
        if len(above) <= extra:
            allowed[above] += 1
        elif extra:
            walked = self._walk()
            allowed[walked[count[walked] > least][:extra]] += 1
        excess = np.where(self.workers, np.maximum(count - allowed, 0), 0).astype(np.int32)
        return first_of_each(jobs, mine, ranks, excess)

    def _walk(self) -> IntArray:
        """Workers in the order Kafka's leader goes through them."""
        places = by_id(self.view, self.workers)
        return places[hash_order([self.view.members[p] for p in places.tolist()])]

    def deal(self, owner: IntArray, jobs: IntArray) -> None:
        """Give jobs, in their order, to the workers with the fewest of the kind; in place."""
        connector = self.view.tasks.is_connector
        for kind, mine in zip(self.kinds, (connector[jobs], ~connector[jobs]), strict=True):
            new = jobs[mine]
            if len(new) == 0 or not self.workers.any():
                continue
            count = np.bincount(owner[kind] + 1, minlength=len(self.workers) + 1)[1:]
            places = by_id(self.view, self.workers)
            places = places[np.argsort(count[places], kind="stable")]
            owner[new] = places[_levels(count[places], len(new))]


def _levels(count: NDArray[np.integer], items: int) -> IntArray:
    """Places that get the items one after the other, lowest level first.

    Args:
        count: int[W], ascending.
        items: how many items there are, at least 1.
    """
    lowest, highest = int(count[0]), int(count[-1])
    levels = np.arange(lowest, min(highest, lowest + items) + 1)
    width = np.searchsorted(count, levels, side="right")
    rest = items - int(width.sum())
    if rest > 0:
        width = np.concatenate((width, np.full(-(-rest // len(count)), len(count))))
    start = np.cumsum(width) - width
    place = np.arange(int(width.sum())) - np.repeat(start, width)
    return place[:items].astype(np.int32)
