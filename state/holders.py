"""The tasks that one member holds, found without looking through all tasks.

An event of a member concerns some ten of a hundred thousand tasks. A batch with many such events
sorts the tasks by holder once; then the tasks of a member are a slice of that order.
"""

from __future__ import annotations

import numpy as np

from muster.protocol.tasks import IntArray
from muster.state.ownership import NO_MEMBER

SORTED_FROM = 16
"""From this many calls in a batch on the tasks are sorted; one sort costs as much as the calls."""


class Holders:
    """Slot → the tasks that it holds, for one vector of holders.

    The vector may be written to: `tasks` checks each task again, and a caller of `gain` names the
    tasks that a slot got.
    """

    def __init__(self) -> None:
        self._begin(np.empty(0, dtype=np.int32))

    def _begin(self, holder: IntArray) -> None:
        self._holder = holder
        self._asked = 0
        self._order: IntArray | None = None
        self._starts = np.empty(0, dtype=np.intp)
        self._gained: dict[int, list[IntArray]] = {}

    def tasks(self, holder: IntArray, slot: int) -> IntArray:
        """The tasks that a slot holds, ascending."""
        if self._holder is not holder:
            self._begin(holder)
        self._asked += 1
        if self._asked < SORTED_FROM:
            return np.flatnonzero(holder == slot).astype(np.int32)
        if self._order is None:
            self._order = np.argsort(holder, kind="stable").astype(np.int32)
            slots = np.arange(NO_MEMBER + 1, int(holder.max(initial=NO_MEMBER)) + 2)
            self._starts = np.searchsorted(holder[self._order], slots)
        candidates = self._order[0:0]
        if slot + 1 < len(self._starts):
            candidates = self._order[self._starts[slot] : self._starts[slot + 1]]
        if slot in self._gained:
            candidates = np.unique(np.concatenate((candidates, *self._gained[slot])))
        held_by_slot: IntArray = candidates[holder[candidates] == slot]
        return held_by_slot

    def gain(self, slot: int, tasks: IntArray) -> None:
        """Note that a slot has been written to these places of the vector."""
        if self._order is not None:
            self._gained.setdefault(slot, []).append(tasks)
