"""Which member holds which task, and the sets of (task, slot) that say so.

A member has a *slot*, a small stable number that the task vectors use. `holder[t]` is the slot of
the one member that has active task t; `revoking[t]` says whether it must give t up. So the arrays
cannot express two owners. Copies (standbys, learners) are sets of (task, slot), each an ascending
int64 array of ``task << 32 | slot``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import BoolArray
from muster.protocol.digest import Holding
from muster.protocol.ids import Role, Task
from muster.protocol.tasks import IntArray, TaskSet

Codes: TypeAlias = NDArray[np.int64]
"""Pairs (task, slot), ascending and distinct, each ``task << 32 | slot``."""
NO_MEMBER = -1
COPY_ROLES = (Role.STANDBY, Role.LEARNER)


def codes(task: IntArray, slot: IntArray) -> Codes:
    """The pairs as codes, ascending and distinct."""
    return _distinct(task.astype(np.int64) << 32 | slot.astype(np.int64))


def pairs_of(tasks: IntArray, slot: int) -> Codes:
    """The tasks as pairs with one slot."""
    if len(tasks) == 0:
        return no_codes()
    return codes(tasks, np.full(len(tasks), slot, dtype=np.int32))


def copies_of(holding: Holding) -> tuple[tuple[Role, TaskSet], ...]:
    """The copies that a member holds, by role."""
    return ((Role.STANDBY, holding.standby), (Role.LEARNER, holding.learner))


def task_of(pairs: Codes) -> IntArray:
    """int32[K]: task of each pair."""
    return (pairs >> 32).astype(np.int32)


def slot_of(pairs: Codes) -> IntArray:
    """int32[K]: slot of each pair."""
    return (pairs & 0xFFFFFFFF).astype(np.int32)


def union(pairs: Codes, other_pairs: Codes) -> Codes:
    """The pairs of both; free of cost if one of them is empty, which is the common case."""
    if len(pairs) == 0 or len(other_pairs) == 0:
        return pairs if len(other_pairs) == 0 else other_pairs
    if len(other_pairs) == 1:
        index = int(np.searchsorted(pairs, other_pairs[0]))
        if index < len(pairs) and pairs[index] == other_pairs[0]:
            return pairs
        return np.concatenate((pairs[:index], other_pairs, pairs[index:]))
    return _distinct(np.concatenate((pairs, other_pairs)))


def contains(pairs: Codes | IntArray, candidates: Codes | IntArray) -> BoolArray:
    """bool[K]: which of the asked pairs (or tasks) are among `pairs`, which must ascend.

    `np.isin` sorts both, which for one asked pair among thousands costs fifty times as much.
    """
    if len(pairs) == 0 or len(candidates) == 0:
        return np.zeros(len(candidates), dtype=np.bool_)
    index = np.minimum(np.searchsorted(pairs, candidates), len(pairs) - 1)
    are_among: BoolArray = pairs[index] == candidates
    return are_among


def minus(pairs: Codes, others: Codes) -> Codes:
    """The pairs that are not among the others."""
    if not contains(pairs, others).any():  # the common case: a look-up of a few pairs
        return pairs
    return pairs[~contains(others, pairs)]


def _distinct(pairs: Codes) -> Codes:
    """Sorted, each once. A stable sort merges sorted runs, where `np.unique` would hash."""
    if len(pairs) > 1 and not (pairs[1:] > pairs[:-1]).all():
        pairs = np.sort(pairs, kind="stable")
        pairs = pairs[np.append(True, np.diff(pairs) > 0)]
    return pairs


def no_codes() -> Codes:
    """No pairs."""
    return np.empty(0, dtype=np.int64)


def unowned(count: int) -> IntArray:
    """An owner vector in which no task has an owner."""
    return np.full(count, NO_MEMBER, dtype=np.int32)


class Copies(NamedTuple):
    """The copies of one role.

    Attributes:
        wanted: the copies of the target.
        kept: the copies that members hold and keep.
        releasing: the copies that members must give up and still hold.
    """

    wanted: Codes
    kept: Codes
    releasing: Codes


class Orphan(NamedTuple):
    """A task that left the task table while a member had it, and that the member must release.

    If the task returns to the table, it is not granted to others while it still runs here.
    `notified`: a record without the task was written to the member.
    """

    slot: int
    role: int
    unit: str
    number: int
    connector: bool
    notified: bool = False

    @property
    def task(self) -> Task:
        """The task that left."""
        return Task(self.unit, self.number, self.connector)


class Lags(NamedTuple):
    """How far copies are behind, as reported, ascending by pair.

    Attributes:
        pair: (task, slot).
        offsets: offsets behind.
        reported_ms: broker time of the report, epoch milliseconds.
    """

    pair: Codes
    offsets: NDArray[np.int64]
    reported_ms: NDArray[np.int64]

    def where(self, rows: BoolArray | NDArray[np.intp]) -> Lags:
        """The lags of these rows, a mask or indexes."""
        return Lags(*(part[rows] for part in self))


@dataclass(slots=True, eq=False, kw_only=True)
class Ownership:
    """What members hold. Its arrays are replaced, never written to, so groups may share them.

    Attributes:
        holder: int32[T], slot of the member that has each active.
        revoking: bool[T], whether the holder must give the task up.
        copies: role → `Copies`; the mapping is replaced too.
        ready: copies that have caught up, as reported.
        lags: how far copies are behind.
        duplicate: actives that a member claimed while another holds them; it must give them up.
        orphans: tasks that left the table and that members still have, ascending.
    """

    holder: IntArray = field(default_factory=lambda: unowned(0))
    revoking: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    copies: Mapping[Role, Copies] = field(
        default_factory=lambda: {
            role: Copies(no_codes(), no_codes(), no_codes()) for role in COPY_ROLES
        }
    )
    ready: Codes = field(default_factory=no_codes)
    lags: Lags = field(default_factory=lambda: Lags(no_codes(), no_codes(), no_codes()))
    duplicate: Codes = field(default_factory=no_codes)
    orphans: tuple[Orphan, ...] = ()

    def set_copies(self, role: Role, **parts: Codes) -> None:
        """Replace fields of a role's `Copies`."""
        self.copies = {**self.copies, role: self.copies[role]._replace(**parts)}
