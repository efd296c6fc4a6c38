"""A group as a value: its members, and which member holds and should hold each task.

A member has a *slot*, a small stable number that the task vectors use. `holder[t]` is the slot of
the one member that has active task t; `revoking[t]` says whether it must give t up. So the arrays
cannot express two owners. Copies (standbys, learners) are sets of (task, slot), each an ascending
int64 array of ``task << 32 | slot``. A `Group` is immutable; `draft.Draft` is its mutable twin.
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
"""`Group.unverified_until_ms` until a record proves to be younger than the coordinator."""
COPY_ROLES = (Role.STANDBY, Role.LEARNER)


def codes(task: IntArray, slot: IntArray) -> Codes:
    """The pairs as codes, ascending and distinct."""
    return _distinct(task.astype(np.int64) << 32 | slot.astype(np.int64))


def task_of(pairs: Codes) -> IntArray:
    """int32[K]: task of each pair."""
    return (pairs >> 32).astype(np.int32)


def slot_of(pairs: Codes) -> IntArray:
    """int32[K]: slot of each pair."""
    return (pairs & 0xFFFFFFFF).astype(np.int32)


def union(one: Codes, other: Codes) -> Codes:
    """The pairs of both; free of cost if one of them is empty, which is the common case."""
    if len(one) == 0 or len(other) == 0:
        return one if len(other) == 0 else other
    return _distinct(np.concatenate((one, other)))


def _distinct(pairs: Codes) -> Codes:
    """Sorted, each once. A stable sort merges sorted runs, where `np.unique` would hash."""
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
        wanted: the copies of the target.
        kept: the copies that members hold and keep.
        going: the copies that members must give up and still hold.
    """

    wanted: Codes
    kept: Codes
    going: Codes


def no_copies() -> Copies:
    """No member has a copy."""
    return Copies(no_codes(), no_codes(), no_codes())


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


def no_lags() -> Lags:
    """No lag was reported."""
    return Lags(no_codes(), no_codes(), no_codes())


def places(table: TaskTable, assignor: str) -> bool:
    """Whether the group's generations are placed; a group without tasks waits for a config.

    Connect's assignors run without tasks too: they must see that connectors were deleted.
    """
    return len(table) > 0 or assignor in CONNECT_ASSIGNORS


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Group:
    """A group. Attributes not explained here are those of `GroupSnapshot`.

    Attributes:
        columns: the members' fields as arrays (`columns.py`); None = not computed yet.
        by_id, by_instance: slot of a member id, of an instance id.
        roster: slots in the order of member ids.
        hashes: uint64[T], digest hash of every task.
        duplicate: actives that a member claimed while another holds them; it must give them up.
        orphans: tasks that left the table and that members still have.
        again: the assignor wants another round when all releases are acknowledged (Connect).
        drain_until_ms: slot → time from which placements leave a draining member out.
        unverified_until_ms: the group is unverified until then: members that join are asked for a
            report, because another coordinator may have admitted them (`recovery.py`). None =
            verified.
        since_epoch: epoch of the coordinator that started this group without a checkpoint; a
            coordinator that continues from its checkpoint has a higher one. None = no batch yet.
        floor: an earlier coordinator whose last batch is lost may have used generations up to this
            one in fencing tokens; the next placement gets a higher one.
        drains: drains that outlive their member (`drains.py`), by member id.
        deferred: a plug-in's deferred outcome, which the next batch applies (`outcome.py`).
        dead: the group was deleted; its last members are stopping their tasks.
        sessions: the liveness: sessions, clocks and offsets, which every batch changes.
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
    unverified_until_ms: int | None = None
    since_epoch: int | None = None
    floor: int = 0
    drains: tuple[KeptDrain, ...] = ()
    deferred: Outcome | None = None
    dead: bool = False
    sessions: Liveness = field(default_factory=Liveness.new)

    @classmethod
    def new(cls, group: GroupId, *, unverified: bool = False) -> Group:
        """A group without history; `unverified`: a checkpoint may have been lost."""
        return cls(
            id=group, unverified_until_ms=UNPROVED if unverified else None, floor=int(unverified)
        )

    @classmethod
    def restore(cls, record: GroupSnapshot, liveness: bytes) -> Group:
        """The group that published `record` last and whose `liveness()` was these bytes.

        Raises:
            ValueError: the bytes are not a liveness of this version.
        """
        from muster.state.snapshot import restored

        return restored(record, liveness)

    @classmethod
    def recover(cls, record: GroupSnapshot) -> Group:
        """The group of a published record whose liveness is lost.

        Every member gets a fresh session and is asked for a report. Nothing is granted or revoked
        until each of them has reported, left or expired.
        """
        from muster.state.snapshot import recovered

        return recovered(record)

    def liveness(self) -> bytes:
        """What the published record does not hold: sessions, clocks, offsets (`liveness.py`)."""
        from muster.state.snapshot import liveness_bytes

        return liveness_bytes(self)

    def snapshot(self) -> GroupSnapshot:
        """The record to publish for the group as it is."""
        from muster.state.snapshot import snapshot_of

        return snapshot_of(self)

    def live(self) -> Iterable[Member]:
        """The members, in the order of their ids."""
        return (member for slot in self.roster if (member := self.members[slot]) is not None)

    @property
    def state(self) -> GroupState:
        """The first state that applies, in this order."""
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
