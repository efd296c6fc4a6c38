"""Connect's view of a group: two kinds of jobs, workers that may take them, Kafka's sort orders.

A *job* is a connector or a task; the kinds are balanced separately (S3-10..12). A draining worker
takes nothing, unless all workers drain. Partitions of subtopologies count as tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.assignor.connect.java_order import sorts_alike, text_order
from muster.assignor.errors import AssignorError
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView
from muster.protocol.tasks import IntArray, TaskTable


def require_connect(view: GroupView) -> None:
    """Refuse groups that Connect's assignors do not support.

    Raises:
        AssignorError: a member restricts its topics.
    """
    for member, topics in zip(view.members, view.topics, strict=True):
        if topics is not None:
            raise AssignorError(
                f"member {member} restricts its topics, which Connect's assignors do not know;"
                " pin jobs with 'static', or use 'sticky'"
            )


def kinds(tasks: TaskTable) -> tuple[IntArray, IntArray]:
    """Indexes of all connectors, and of all tasks, each in Kafka's order (name, then number)."""
    order = np.arange(len(tasks), dtype=np.int32)
    names = [unit.name for unit in tasks.units]
    # The table sorts "10" after "9"; Kafka sorts names as text.
    if any(name.isdigit() for name in names) or not sorts_alike(names):
        rank = np.empty(len(names), dtype=np.int32)
        rank[text_order(names)] = np.arange(len(names), dtype=np.int32)
        order = np.argsort(rank[tasks.unit_of], kind="stable").astype(np.int32)
    connector = tasks.is_connector[order]
    return order[connector], order[~connector]


def takers(view: GroupView) -> BoolArray:
    """bool[M]: workers that may get jobs."""
    all_workers = np.ones(len(view.members), dtype=np.bool_)
    return all_workers if view.draining.all() else ~view.draining


def by_id(view: GroupView, workers: BoolArray) -> IntArray:
    """int32[W]: indexes of the given workers in the order in which Kafka sorts their ids."""
    index = np.flatnonzero(workers).astype(np.int32)
    if sorts_alike(view.members):
        return index
    return index[text_order([view.members[place] for place in index.tolist()])]


def numbers(owner: IntArray, members: int) -> NDArray[np.int64]:
    """int64[M]: how many of the jobs with these owners each worker runs."""
    return np.bincount(owner + 1, minlength=members + 1)[1:]


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """Position of each job in its worker's report; jobs given out later come last."""

    place: IntArray
    beyond: int

    @classmethod
    def of(cls, view: GroupView) -> Ranks:
        """The order reported, or the index order where none was reported."""
        if view.report_order is not None:
            place = view.report_order.astype(np.int32)
        else:
            place = np.arange(len(view.tasks), dtype=np.int32)
        return cls(place, int(place.max(initial=-1)) + 1)

    def then(self, jobs: IntArray) -> Ranks:
        """The same with `jobs` after all others, in this order."""
        place = self.place.copy()
        place[jobs] = self.beyond + np.arange(len(jobs), dtype=np.int32)
        return Ranks(place, self.beyond + len(jobs))


def first_of_each(jobs: IntArray, owner: IntArray, ranks: Ranks, cut: IntArray) -> IntArray:
    """The first ``cut[m]`` of each worker's jobs, in the order of its report; ascending.

    `owner` is the worker of each of the K jobs.
    """
    touched = (owner != NO_MEMBER) & (cut > 0)[owner]
    jobs, owner = jobs[touched], owner[touched]
    order = np.lexsort((ranks.place[jobs], owner))
    jobs, owner = jobs[order], owner[order]
    nth = np.arange(len(owner)) - np.searchsorted(owner, owner)
    return np.sort(jobs[nth < cut[owner]])
