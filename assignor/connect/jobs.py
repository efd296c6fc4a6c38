"""Connect's view of a group: jobs of two kinds, workers that may take them, Kafka's orders.

A *job* is a connector or a task; the kinds are balanced apart (S3-10..12). A worker that is
draining takes nothing, unless the whole group drains. Partitions of subtopologies count as tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.connect.java import sorts_alike, text_order
from muster.assignor.errors import AssignorError
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView
from muster.protocol.tasks import IntArray, TaskTable


def require_connect(view: GroupView) -> None:
    """Refuse what Connect's assignors cannot honour.

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
    # The table counts "10" after "9", Kafka sorts names as text.
    if any(name.isdigit() for name in names) or not sorts_alike(names):
        rank = np.empty(len(names), dtype=np.int32)
        rank[text_order(names)] = np.arange(len(names), dtype=np.int32)
        order = np.argsort(rank[tasks.unit_of], kind="stable").astype(np.int32)
    connector = tasks.is_connector[order]
    return order[connector], order[~connector]


def takers(view: GroupView) -> BoolArray:
    """bool[M]: workers that may get work."""
    everyone = np.ones(len(view.members), dtype=np.bool_)
    return everyone if view.draining.all() else ~view.draining


def by_id(view: GroupView, workers: BoolArray) -> IntArray:
    """int32[W]: places of some workers in the order Kafka sorts their ids."""
    places = np.flatnonzero(workers).astype(np.int32)
    if sorts_alike(view.members):
        return places
    return places[text_order([view.members[place] for place in places.tolist()])]


def empty_hands(owner: IntArray, members: int) -> BoolArray:
    """bool[M]: who holds nothing."""
    idle: BoolArray = np.bincount(owner + 1, minlength=members + 1)[1:] == 0
    return idle


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """Places in what workers reported; jobs handed out later come last."""

    place: IntArray
    beyond: int

    @classmethod
    def of(cls, view: GroupView) -> Ranks:
        """The order reported, index order where none was."""
        if view.report_order is not None:
            place = view.report_order.astype(np.int32)
        else:
            place = np.arange(len(view.tasks), dtype=np.int32)
        return cls(place, int(place.max(initial=-1)) + 1)

    def then(self, jobs: IntArray) -> Ranks:
        """The same with `jobs` put behind everything else, in this order."""
        place = self.place.copy()
        place[jobs] = self.beyond + np.arange(len(jobs), dtype=np.int32)
        return Ranks(place, self.beyond + len(jobs))


def first_of_each(jobs: IntArray, owner: IntArray, ranks: Ranks, cut: IntArray) -> IntArray:
    """Of every worker's `jobs` as many as `cut` says, first reported first.

    Args:
        jobs: int32[K].
        owner: int32[K], who has each.
        ranks: order of each worker's jobs.
        cut: int32[M].

    Returns:
        The jobs cut, ascending.
    """
    touched = (owner != NO_MEMBER) & (cut > 0)[owner]
    jobs, owner = jobs[touched], owner[touched]
    order = np.lexsort((ranks.place[jobs], owner))
    jobs, owner = jobs[order], owner[order]
    nth = np.arange(len(owner)) - np.searchsorted(owner, owner)
    return np.sort(jobs[nth < cut[owner]])
