"""A group as a value: who its members are, and who holds, should hold and will hold each task.

Members live in *slots*, small stable numbers that the task vectors use. A member's own fields are
those of the published record (`MemberEntry`); the published record is the state (design, idea 2).

Ownership is in arrays. `holder[t]` names the one member that has active task t, `revoking[t]` says
that it was told to give it up: two owners cannot be written down. Copies (standbys, learners) are
sets of (task, slot), each an ascending int64 array of ``task << 32 | slot``.

This file knows no rule. A `Group` is never changed; `draft.Draft` is its workbench.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import BoolArray
from muster.protocol.digest import table_hashes
from muster.protocol.ids import GroupId, Role, Task
from muster.protocol.records import GroupSnapshot, GroupState, KeptDrain, MemberEntry, Move
from muster.protocol.settings import CONNECT_ASSIGNORS, DEFAULT_ASSIGNOR, Settings
from muster.protocol.tasks import IntArray, TaskTable
from muster.state.columns import Columns
from muster.state.liveness import Liveness
from muster.state.outcome import Outcome

Member: TypeAlias = MemberEntry
Codes: TypeAlias = NDArray[np.int64]
"""Pairs (task, slot), ascending and distinct, each ``task << 32 | slot``."""
NO_MEMBER = -1
UNPROVED = np.iinfo(np.int64).max
"""`Group.wary_until_ms` before the first proof that what is read now came after the start."""
COPY_ROLES = (Role.STANDBY, Role.LEARNER)


def codes(task: IntArray, slot: IntArray) -> Codes:
    """Pairs as codes, sorted, each once."""
    return _distinct(task.astype(np.int64) << 32 | slot.astype(np.int64))


def task_of(pairs: Codes) -> IntArray:
    """int32[K]: task of each pair."""
    return (pairs >> 32).astype(np.int32)


def slot_of(pairs: Codes) -> IntArray:
    """int32[K]: slot of each pair."""
    return (pairs & 0xFFFFFFFF).astype(np.int32)


def union(one: Codes, other: Codes) -> Codes:
    """Pairs of either; nearly always one of the two is empty, and costs nothing then."""
    if len(one) == 0 or len(other) == 0:
        return one if len(other) == 0 else other
    return _distinct(np.concatenate((one, other)))


def _distinct(pairs: Codes) -> Codes:
    """Sorted, each once. What is made of sorted runs is merged; `np.unique` would hash it."""
    if not (np.diff(pairs) > 0).all():
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
        wanted: what the target asks for.
        kept: what members hold and keep.
        going: what members were told to give up and still hold.
    """

    wanted: Codes
    kept: Codes
    going: Codes


def no_copies() -> Copies:
    """No member has a copy."""
    return Copies(no_codes(), no_codes(), no_codes())


class Orphan(NamedTuple):
    """A task that left the table while a member had it: the member is to release it.

    Remembered so that a task which comes back is not given away while it still runs. `told` says
    whether a record without it was written to the member.
    """

    slot: int
    role: int
    unit: str
    number: int
    connector: bool
    told: bool = False

    @property
    def task(self) -> Task:
        """The task that left."""
        return Task(self.unit, self.number, self.connector)


class Lags(NamedTuple):
    """How far copies are behind, as told, ascending by pair.

    Attributes:
        pair: (task, slot).
        offsets: offsets behind.
        told_ms: broker time of the telling.
    """

    pair: Codes
    offsets: NDArray[np.int64]
    told_ms: NDArray[np.int64]


def no_lags() -> Lags:
    """Nothing was told."""
    return Lags(no_codes(), no_codes(), no_codes())


def places(table: TaskTable, assignor: str) -> bool:
    """Whether a group is placed at all: one without tasks waits for them.

    Not with Connect's assignors, whose rounds go on without connectors: the leader must know that
    those it remembers were deleted, or it takes them for lost when they come back.
    """
    return len(table) > 0 or assignor in CONNECT_ASSIGNORS


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Group:
    """A group. Attributes not explained here are those of `GroupSnapshot`.

    Attributes:
        members: by slot; None = the slot is free.
        columns: the same as columns, once a caller wanted them.
        by_id, by_instance: slot of a member id, of an instance id.
        roster: slots in the order of member ids.
        hashes: uint64[T], digest hash of every task.
        duplicate: actives that a member claimed although another holds them; it gives them up.
        orphans: what members still have of tasks that left the table.
        again: the assignor wants another round when all releases are acknowledged (Connect).
        drain_until_ms: slot → when a draining member is let go, learners ready or not.
        wary_until_ms: until then a coordinator that started without a checkpoint asks every member
            that joins what it holds: the one before may have let it in; None = it knows all.
        since_epoch: the coordinator that met the group without a checkpoint; one that goes on from
            its checkpoints is a later one. None = no batch has been taken since.
        floor: generations up to here may have been used for tokens by a coordinator whose last
            batch is lost; the next one that is placed is above.
        drains: drains that outlive their member (`drains.py`), by member id.
        kept: what a plug-in answered, to be taken by the next batch (`outcome.py`).
        dead: it was deleted; members that still stop are the last.
        soft: sessions, clock and offsets: what every batch changes.
    """

    id: GroupId
    coordinator_epoch: int = 0
    generation: int = 0
    target_generation: int = 0
    assignor: str = DEFAULT_ASSIGNOR
    settings: Settings = field(default_factory=Settings)
    table: TaskTable = field(default_factory=lambda: TaskTable(()))
    hashes: NDArray[np.uint64] = field(default_factory=lambda: table_hashes(TaskTable(())))
    members: tuple[Member | None, ...] = ()
    columns: Columns | None = None
    by_id: Mapping[str, int] = field(default_factory=dict)
    by_instance: Mapping[str, int] = field(default_factory=dict)
    roster: tuple[int, ...] = ()
    target: IntArray = field(default_factory=lambda: unowned(0))
    destination: IntArray = field(default_factory=lambda: unowned(0))
    holder: IntArray = field(default_factory=lambda: unowned(0))
    revoking: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    standby: Copies = field(default_factory=no_copies)
    learner: Copies = field(default_factory=no_copies)
    ready: Codes = field(default_factory=no_codes)
    duplicate: Codes = field(default_factory=no_codes)
    orphans: tuple[Orphan, ...] = ()
    lags: Lags = field(default_factory=no_lags)
    moves: tuple[Move, ...] = ()
    cause: str = ""
    memory: Mapping[str, object] | None = None
    generation_ms: int = 0
    followup_ms: int | None = None
    delay_until_ms: int | None = None
    again: bool = False
    recovering: frozenset[int] = frozenset()
    drain_until_ms: Mapping[int, int] = field(default_factory=dict)
    wary_until_ms: int | None = None
    since_epoch: int | None = None
    floor: int = 0
    drains: tuple[KeptDrain, ...] = ()
    kept: Outcome | None = None
    dead: bool = False
    soft: Liveness = field(default_factory=Liveness.new)

    @classmethod
    def new(cls, group: GroupId, *, wary: bool = False) -> Group:
        """A group nobody has heard of yet; `wary`: perhaps because a checkpoint was lost."""
        return cls(id=group, wary_until_ms=UNPROVED if wary else None, floor=int(wary))

    @classmethod
    def restore(cls, record: GroupSnapshot, liveness: bytes) -> Group:
        """The group that published `record` last and whose `liveness()` was these bytes.

        Raises:
            ValueError: bytes that are no liveness, or of another version.
        """
        from muster.state.snapshot import restored

        return restored(record, liveness)

    @classmethod
    def recover(cls, record: GroupSnapshot) -> Group:
        """The group of a published record, its liveness lost.

        Every member has a fresh session and is asked what it holds; until all have said so, left or
        expired, nothing is granted or revoked.
        """
        from muster.state.snapshot import recovered

        return recovered(record)

    def liveness(self) -> bytes:
        """What the published record does not have: sessions, clock, offsets (`liveness.py`)."""
        from muster.state.snapshot import liveness_bytes

        return liveness_bytes(self)

    def snapshot(self) -> GroupSnapshot:
        """The published record of this very moment."""
        from muster.state.snapshot import snapshot_of

        return snapshot_of(self)

    def live(self) -> Iterable[Member]:
        """The members, in the order of their ids."""
        return (member for slot in self.roster if (member := self.members[slot]) is not None)

    @property
    def state(self) -> GroupState:
        """The first that applies (`kafka.md` 4.1)."""
        if self.dead:
            return GroupState.DEAD
        if not self.roster:
            return GroupState.EMPTY
        if not places(self.table, self.assignor):
            return GroupState.NOT_READY
        if self.generation > self.target_generation:
            return GroupState.ASSIGNING
        columns = self.columns or Columns.of(self.members)
        if columns.unsettled.any():
            return GroupState.RECONCILING
        return GroupState.STABLE
