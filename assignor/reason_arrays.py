"""Reasons kept as arrays, so that a million moves cost a few arrays, not a million objects.

An assignor explains moves in bulk; a `Reason` is made when a caller reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from muster.assignor.model import NO_MEMBER, Reason
from muster.protocol.ids import Role
from muster.protocol.tasks import IntArray

UNOWNED = "had no owner"
"""How a reason begins for a task that has no owner in the view."""
LOST = "its worker is gone"
"""How a reason begins for a Connect job; its assignor remembers that a worker ran it."""
UNTOLD = "no worker was told to run it"
"""How a reason begins for such a job if all workers of the last round are there."""

Text = Callable[[int, int, int], str]
"""(task, source, destination) -> the reason in words."""


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Moves of one role that share a way to explain them.

    Attributes:
        task, source, destination: int32[K].
        text: called with one move's three numbers when its reason is read.
    """

    role: Role
    task: IntArray
    source: IntArray
    destination: IntArray
    text: Text

    def __len__(self) -> int:
        return len(self.task)


class Reasons(Sequence[Reason]):
    """Reasons of several batches of moves, computed when a caller first reads them."""

    __slots__ = ("_cached", "_make")

    def __init__(self, make: Callable[[], Sequence[Moves]]) -> None:
        self._make = make
        self._cached: tuple[Moves, ...] | None = None

    @property
    def _batches(self) -> tuple[Moves, ...]:
        if self._cached is None:
            self._cached = tuple(batch for batch in self._make() if len(batch))
        return self._cached

    def __len__(self) -> int:
        return sum(len(batch) for batch in self._batches)

    @overload
    def __getitem__(self, index: int) -> Reason: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Reason]: ...

    def __getitem__(self, index: int | slice) -> Reason | Sequence[Reason]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        for batch in self._batches:
            if 0 <= place < len(batch):
                move = (int(batch.task[place]), int(batch.source[place]))
                destination = int(batch.destination[place])
                text = batch.text(*move, destination)
                return Reason(move[0], batch.role, move[1], destination, text)
            place -= len(batch)
        raise IndexError(index)

    def __iter__(self) -> Iterator[Reason]:
        for batch in self._batches:
            columns = (batch.task.tolist(), batch.source.tolist(), batch.destination.tolist())
            for task, source, destination in zip(*columns, strict=True):
                text = batch.text(task, source, destination)
                yield Reason(task, batch.role, source, destination, text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Reasons({list(self)!r})"


def reason_of_departed(gone: str, text: str) -> str:
    """Why the task lost its owner (`gone`), then the rest of the assignor's text."""
    for unowned in (UNOWNED, LOST, UNTOLD):
        text = text.removeprefix(unowned).removeprefix("; ").removeprefix(", ")
    return f"{gone}; {text}" if text else gone


def changed(before: IntArray, after: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Tasks that get another owner, with old and new owner. Tasks that get none are left out."""
    task = np.flatnonzero((before != after) & (after != NO_MEMBER)).astype(np.int32)
    return task, before[task], after[task]


def stopped(before: IntArray, after: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Tasks that lose their owner and get none, with old owner and `NO_MEMBER`."""
    task = np.flatnonzero((before != NO_MEMBER) & (after == NO_MEMBER)).astype(np.int32)
    return task, before[task], after[task]
