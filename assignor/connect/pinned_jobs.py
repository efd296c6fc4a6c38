"""Static assignments (KIP-987): which jobs are pinned to which workers.

A worker that names jobs is a *static worker*, the others are *wildcard workers* (S0-12, S0-44: an
empty list is a wildcard). A job named by at least one worker is a *static job* (S0-13). Names
that a draining worker declares do not count, so its jobs move before it leaves. A worker may name
jobs that do not exist yet.

KIP-987's eight steps: tell static from wildcard workers (1) and jobs (2); stop what runs on the
wrong worker (3 to 5); start static jobs on workers that name them (6); play a cooperative round
with the wildcard jobs and workers (7 and 8). A static job never waits for a delay. Without a
wildcard worker, jobs that no worker names are reported as unassigned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.connect.jobs import takers
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, no_pairs
from muster.protocol.tasks import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Pins:
    """The static assignments in force.

    Attributes:
        wildcard: bool[M], workers for jobs that no worker names.
        pinned: bool[T], jobs that at least one worker names.
        named: (job, worker) pairs.
    """

    wildcard: BoolArray
    pinned: BoolArray
    named: Pairs

    @property
    def warnings(self) -> tuple[str, ...]:
        """A warning if all workers are static and there are jobs that no worker names."""
        uncovered = int(np.count_nonzero(~self.pinned))
        if not len(self.wildcard) or self.wildcard.any() or not uncovered:
            return ()
        return (f"{uncovered} jobs are named by no worker and there is no wildcard worker",)

    def astray(self, owner: IntArray) -> BoolArray:
        """bool[T]: jobs on workers where steps 3, 4 and 5 do not allow them (S0-14..16)."""
        if self.wildcard.all():
            return np.zeros(len(owner), dtype=np.bool_)
        job = np.arange(len(owner), dtype=np.int64)
        on_naming_worker = np.isin(job << 32 | owner, self.named.code)
        on_wildcard = np.append(self.wildcard, True)[owner]
        misplaced = np.where(self.pinned, ~on_naming_worker, ~on_wildcard)
        astray: BoolArray = misplaced & (owner != NO_MEMBER)
        return astray

    def deal(self, view: GroupView, owner: IntArray, jobs: IntArray) -> None:
        """Step 6: give each job to the least loaded worker naming it, lower id first; in place."""
        if len(jobs) == 0:
            return
        connector = view.tasks.is_connector
        for is_connector in (True, False):
            held = (owner != NO_MEMBER) & (connector == is_connector)
            load = np.bincount(owner[held], view.tasks.weight[held], len(self.wildcard))
            for job in jobs[connector[jobs] == is_connector].tolist():
                low, high = np.searchsorted(self.named.task, [job, job + 1])
                naming = self.named.member[low:high]
                chosen = int(naming[np.argmin(load[naming] / view.capacity[naming])])
                owner[job] = chosen
                load[chosen] += view.tasks.weight[job]


def no_pins(view: GroupView) -> Pins:
    """No static assignments: every worker may take every job."""
    return Pins(
        np.ones(len(view.members), dtype=np.bool_),
        np.zeros(len(view.tasks), dtype=np.bool_),
        no_pairs(),
    )


def pins_of(view: GroupView) -> Pins:
    """The static assignments that the members of a view declare."""
    if not any(view.static):
        return no_pins(view)
    takes_jobs = takers(view)
    wildcard = np.array([not names for names in view.static], dtype=np.bool_)
    named = [
        (job, worker)
        for worker, names in enumerate(view.static)
        if takes_jobs[worker]
        for job in map(view.tasks.index, sorted(names))
        if job is not None
    ]
    columns = np.array(named, dtype=np.int32).reshape(len(named), 2)
    pinned = np.zeros(len(view.tasks), dtype=np.bool_)
    pinned[columns[:, 0]] = True
    return Pins(wildcard, pinned, Pairs.of(columns[:, 0], columns[:, 1]))
