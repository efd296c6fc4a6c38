"""Reasons of a Connect round in words: why it stops and starts jobs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from muster.assignor.connect.pinned_jobs import Pins
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView
from muster.assignor.reason_arrays import LOST, UNTOLD, Moves, Reasons, Text, changed
from muster.protocol.ids import Role
from muster.protocol.tasks import IntArray


class Why:
    """Collects the reasons of a round.

    Attributes:
        undelivered: whether the lost jobs are lost because no worker got the last plan.
        returned: bool[T], jobs that workers get because they came during the delay; None = none.
    """

    def __init__(self, view: GroupView) -> None:
        self.view = view
        self.undelivered = False
        self.returned: BoolArray | None = None
        self._batches: list[Moves] = []

    def stopped(self, jobs: IntArray, twice: BoolArray, gone: BoolArray, pins: Pins) -> None:
        """Add jobs that must not run where they run."""

        def text(job: int, source: int, _: int) -> str:
            if twice[job]:
                return "claimed by several workers, stopped on all of them"
            worker = self.view.members[source]
            if gone[job]:
                return f"{worker} is draining"
            if not pins.pinned[job]:
                return f"{worker} is static and does not name it"
            return "pinned elsewhere"

        self._stops(jobs, self.view.active[jobs], text)

    def cut(self, jobs: IntArray, source: IntArray, planned: Mapping[str, str]) -> None:
        """Add jobs stopped for balance; `planned` workers are to run them where weights decide."""
        view, held = self.view, self.view.active != NO_MEMBER
        load = np.bincount(view.active[held], view.tasks.weight[held], len(view.members))
        level = load / view.capacity

        def text(job: int, worker: int, _: int) -> str:
            name, goal = view.members[worker], planned.get(str(view.tasks.task(job)))
            if goal is None or level[view.members.index(goal)] < level[worker]:
                return f"{name} has more than its share"
            if name in planned.values():
                return f"{name} makes room for other jobs"
            return f"{goal} has room for its weight"

        self._stops(jobs, source, text)

    def _stops(self, jobs: IntArray, source: IntArray, text: Text) -> None:
        no_member = np.full(len(jobs), NO_MEMBER, dtype=np.int32)
        self._batches.append(Moves(Role.ACTIVE, jobs, source, no_member, text))

    def reasons(self, owner: IntArray, lost: BoolArray, pins: Pins) -> Reasons:
        """All reasons, those of the jobs that start in this round included.

        `owner` (int32[T]) is the worker of each job after the round; `lost` (bool[T]) jobs lost
        theirs and no longer wait.
        """

        def text(job: int, _: int, destination: int) -> str:
            worker = self.view.members[destination]
            if pins.pinned[job]:
                return f"{worker} names it"
            if self.returned is not None and self.returned[job]:
                return f"{LOST}, {worker} came during the delay"
            if lost[job] and self.undelivered:
                return f"{UNTOLD}, {worker} has room"
            return f"{LOST}, {worker} has room" if lost[job] else f"{worker} has room"

        def moves() -> list[Moves]:
            gained = Moves(Role.ACTIVE, *changed(self.view.active, owner), text)
            return [*self._batches, gained]

        return Reasons(moves)
