"""Exchanging standbys pairwise until no exchange is cheaper: when copies must differ in many tags.

Several keys at once cannot be written as one flow, so this is a local optimum: KIP-925's option I
for that case. Two standbys change places if that is cheaper, no member gets a task twice, and
neither task's copies lose a distinct tag value (the rule of Kafka's client-tag-aware assignor,
T-03).
"""

from __future__ import annotations

import numpy as np

from muster.assignor.model import NO_MEMBER, GroupView, Pairs
from muster.assignor.targets.tags import Zones
from muster.assignor.targets.wanted import Wanted


def exchanged(view: GroupView, zones: Zones, wanted: Wanted) -> Pairs:
    """The view's standbys after all exchanges that pay; counts per member are kept."""
    search = _Search(view, zones, wanted)
    while search.sweep():
        pass
    return Pairs.of(view.standby.task, np.array(search.member, dtype=np.int32))


class _Search:
    def __init__(self, view: GroupView, zones: Zones, wanted: Wanted) -> None:
        self._zones = zones
        self._task = view.standby.task.tolist()
        self.member = view.standby.member.tolist()
        everyone = np.arange(len(view.members), dtype=np.int32)
        self._holders: dict[int, list[int]] = {}
        self._price: dict[int, list[int]] = {}
        for task in wanted.tasks.tolist():
            owner = int(wanted.target[task])
            self._holders[task] = [] if owner == NO_MEMBER else [owner]
            same = np.full(len(everyone), task, dtype=np.int32)
            self._price[task] = wanted.price(view, len(view.standby), same, everyone).tolist()
        for task, member in zip(self._task, self.member, strict=True):
            self._holders[task].append(member)

    def sweep(self) -> bool:
        """Try every pair once; whether anything changed places."""
        better = False
        for one in range(len(self._task)):
            for other in range(one + 1, len(self._task)):
                better |= self._try(one, other)
        return better

    def _try(self, one: int, other: int) -> bool:
        task, rival = self._task[one], self._task[other]
        here, there = self.member[one], self.member[other]
        if task == rival or here == there:
            return False
        mine, theirs = self._price[task], self._price[rival]
        if mine[there] + theirs[here] >= mine[here] + theirs[there]:
            return False
        moved, moved_rival = self._moved(task, here, there), self._moved(rival, there, here)
        if moved is None or moved_rival is None:
            return False
        self._holders[task], self._holders[rival] = moved, moved_rival
        self.member[one], self.member[other] = there, here
        return True

    def _moved(self, task: int, source: int, destination: int) -> list[int] | None:
        """Holders after a move; None if that is not allowed."""
        holders = self._holders[task]
        if destination in holders:
            return None
        after = [destination if member == source else member for member in holders]
        return after if self._values(after) >= self._values(holders) else None

    def _values(self, members: list[int]) -> int:
        rows = self._zones.value[self._zones.of[members]]
        return sum(len(set(column)) for column in rows.T.tolist())
