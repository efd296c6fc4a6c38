"""Exchanges of standbys until none is cheaper, for copies that must differ in several tags.

Several keys at once cannot be written as one flow, so this is a local optimum: KIP-925's option I
for that case. Two standbys change places if that is cheaper, no member gets a task twice, both
members may get new tasks, and the copies of neither task lose a distinct tag value (the rule of
Kafka's client-tag-aware assignor, T-03).
"""

from __future__ import annotations

import numpy as np

from muster.assignor.model import NO_MEMBER, Pairs
from muster.assignor.targets.standby_request import StandbyRequest
from muster.assignor.targets.tag_zones import Zones


def exchanged(request: StandbyRequest) -> Pairs:
    """The view's standbys after all exchanges that lower the cost; counts per member are kept."""
    search = _Search(request)
    while search.sweep():
        pass
    return Pairs.of(request.view.standby.task, np.array(search.member, dtype=np.int32))


class _Search:
    def __init__(self, request: StandbyRequest) -> None:
        view = request.view
        self._tags = Zones(view).tags
        self._task = view.standby.task.tolist()
        self.member = view.standby.member.tolist()
        self._takes_tasks = (request.capacity > 0).tolist()
        all_members = np.arange(len(view.members), dtype=np.int32)
        self._holders: dict[int, list[int]] = {}
        self._price: dict[int, list[int]] = {}
        for task in request.tasks.tolist():
            owner = int(request.target[task])
            self._holders[task] = [] if owner == NO_MEMBER else [owner]
            prices = request.price(len(view.standby), np.full_like(all_members, task), all_members)
            self._price[task] = prices.tolist()
        for task, member in zip(self._task, self.member, strict=True):
            self._holders[task].append(member)

    def sweep(self) -> bool:
        """Try every pair once; True if any exchange was made."""
        changed = False
        for first in range(len(self._task)):
            for second in range(first + 1, len(self._task)):
                changed |= self._try(first, second)
        return changed

    def _try(self, first: int, second: int) -> bool:
        task, other_task = self._task[first], self._task[second]
        here, there = self.member[first], self.member[second]
        if task == other_task or here == there:
            return False
        if not (self._takes_tasks[here] and self._takes_tasks[there]):
            return False
        prices, other_prices = self._price[task], self._price[other_task]
        if prices[there] + other_prices[here] >= prices[here] + other_prices[there]:
            return False
        moved, other_moved = self._moved(task, here, there), self._moved(other_task, there, here)
        if moved is None or other_moved is None:
            return False
        self._holders[task], self._holders[other_task] = moved, other_moved
        self.member[first], self.member[second] = there, here
        return True

    def _moved(self, task: int, source: int, destination: int) -> list[int] | None:
        """Holders of the task after a move; None if the move is not allowed."""
        holders = self._holders[task]
        if destination in holders:
            return None
        after = [destination if member == source else member for member in holders]
        return after if self._values(after) >= self._values(holders) else None

    def _values(self, members: list[int]) -> int:
        return sum(len(set(column)) for column in self._tags[members].T.tolist())
