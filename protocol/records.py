"""What leaves the coordinator: one class per record, frozen.

Records are keyed (`keys.py`) and, but for `Rejected`, compacted: the newest of a key is the whole
truth about it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.protocol.events import Mark, Origin, Profile
from muster.protocol.ids import GroupId, MemberId, Role
from muster.protocol.settings import Settings
from muster.protocol.tasks import EMPTY, TaskSet, TaskTable, Unit
from muster.protocol.taskset import LABELS_CHARS_MAX, Layout, UnitRef, units_of_table, units_version


class Fault(Enum):
    """Why a member or an event is turned away. Kafka's names where Kafka has the case."""

    UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"
    """Not in the group (any more): drop everything and join."""
    FENCED_MEMBER_EPOCH = "FENCED_MEMBER_EPOCH"
    """Claims what the group did not give it: drop everything and join."""
    FENCED_INSTANCE_ID = "FENCED_INSTANCE_ID"
    """Another process took over the instance id: stop for good."""
    UNRELEASED_INSTANCE_ID = "UNRELEASED_INSTANCE_ID"
    """The instance id is in use by a live member: try again when it has left or expired."""
    MEMBER_ID_IN_USE = "MEMBER_ID_IN_USE"
    """A live process has this member id: try again when it has left or expired."""
    GROUP_MAX_SIZE_REACHED = "GROUP_MAX_SIZE_REACHED"
    """No place in the group: try again later."""
    GROUP_ID_NOT_FOUND = "GROUP_ID_NOT_FOUND"
    """The group was deleted: stop, and ask again; it is there once it has a config."""
    INVALID_REQUEST = "INVALID_REQUEST"
    """The event contradicts itself; the message says where."""


@dataclass(frozen=True, kw_only=True)
class Dictionary:
    """The units of a group, named once (`muster.groups`, key ``group||names``).

    A member's record refers to it by version where naming its units would cost more than a
    look-up. No units = tombstone.

    Attributes:
        units: label and size of every unit, in the order of `TaskTable`; see `units_of_table`.
    """

    group: GroupId
    units: tuple[UnitRef, ...]

    @classmethod
    def of(cls, group: GroupId, table: TaskTable) -> Dictionary | None:
        """A group's dictionary; None when its names are so short that no record refers to one."""
        units = units_of_table(table)
        short = sum(len(unit.label) for unit in units) <= LABELS_CHARS_MAX
        return None if short else cls(group=group, units=units)

    @cached_property
    def version(self) -> int:
        """Follows from the units: the same units have the same version, everywhere."""
        return units_version(self.units)

    @cached_property
    def layout(self) -> Layout:
        """The units in a row, for the sets that refer to them."""
        return Layout(self.units)


NO_TASKS = "no tasks: "
"""How the message of an assignment begins while the group has no config."""


def no_tasks(group: str) -> str:
    """What members of such a group are told, and users who ask for it."""
    return f"{NO_TASKS}muster config set --group {group} --tasks FILE gives the group some"


def group_deleted(group: str, origin: Origin) -> str:
    """What the members of a deleted group are told, and who asks to join it: by which record."""
    return (
        f"group deleted by muster config delete ({origin.topic}-{origin.partition}"
        f"@{origin.offset}); muster config set --group {group} makes it anew"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAssignment:
    """Everything a member should hold from now on (`muster.assignments`, key ``group|member``).

    What the member holds beyond it must be released, then reported. With a `fault` the sets are
    empty and the member does what `Fault` says.

    Attributes:
        incarnation: the process addressed; others ignore the record.
        coordinator_epoch: offset of the coordinator's claim; a member ignores lower ones than seen.
        generation: group epoch whose target this works towards.
        epoch: member epoch; with `generation` a fencing token for outside systems.
        revision: counts the records published to this member; strictly increasing.
        active, standby, learner: the task sets.
        next: the standbys that are to become active here as soon as they have caught up; a member
            restores them first. Learners are wanted in any case.
        report: the member is asked for a full `Report`.
        session_timeout_ms, heartbeat_interval_ms: in force for this member once it has read this.
        message: one line for a person: cause of the generation, explanation of the fault, or
            `no_tasks`.
        dictionary: the group's, which the record may refer to; it must have been published. None =
            the record names its units itself.
    """

    group: GroupId
    member: MemberId
    incarnation: int
    coordinator_epoch: int
    generation: int
    epoch: int
    revision: int
    active: TaskSet = EMPTY
    standby: TaskSet = EMPTY
    learner: TaskSet = EMPTY
    next: TaskSet = EMPTY
    report: bool = False
    fault: Fault | None = None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    message: str = ""
    dictionary: Dictionary | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberGone:
    """Tombstone of a member's assignment: it left or expired. That member, if alive, rejoins."""

    group: GroupId
    member: MemberId


class MemberState(Enum):
    """Where a member stands on its way to the target (`kafka.md` 4.3).

    STABLE waits for nothing. UNREVOKED waits for the member's report of a release. UNRELEASED
    waits for other members to release. UNKNOWN was written by a newer version.
    """

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    UNRELEASED = "unreleased"
    UNKNOWN = "unknown"


class GroupState(Enum):
    """States of a group, printed as Kafka prints them (`kafka.md` 4.1)."""

    EMPTY = "Empty"
    NOT_READY = "Not Ready"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEntry(Profile):
    """One member in a `GroupSnapshot`; `slot` is what the task vectors call it, whatever its place.

    Attributes as in `Profile`, and:
        id, incarnation, instance_id: as in `Join`.
        slot: number that the task vectors use for this member.
        epoch, previous_epoch, revision: see `MemberAssignment`.
        revoke_revision: revision of the record that asked for the release it still owes; 0 = none.
        joined_ms: broker time of the join.
        away: a static member that left temporarily (member epoch -2).
        session_timeout_ms: session timeout this member is known to keep.
        deadline_ms: when a member in UNREVOKED is fenced at the earliest (rebalance timeout), by
            the group's session clock; None = not waiting.
    """

    id: MemberId
    slot: int
    incarnation: int
    instance_id: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    revision: int = 0
    revoke_revision: int = 0
    state: MemberState = MemberState.STABLE
    joined_ms: int = 0
    draining: bool = False
    away: bool = False
    session_timeout_ms: int = 45_000
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One task that changed hands in a generation, and why.

    Attributes:
        task: printed task id.
        role: the role that moved.
        from_member, to_member: None = no member.
        reason: short and true, for a person.
    """

    task: str
    role: Role
    from_member: str | None
    to_member: str | None
    reason: str


class KeptDrain(NamedTuple):
    """A drain that outlives its member: whoever returns under one of the names is drained.

    Attributes:
        member, instance_id: its names.
        gone_ms: broker time at which it went; None = it is a member again.
        expelled: it was fenced, or expired, before it was empty.
    """

    member: MemberId
    instance_id: str | None
    gone_ms: int | None
    expelled: bool


def _no_pairs() -> NDArray[np.int32]:
    return np.empty((0, 2), dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupSnapshot:
    """The whole public state of a group (`muster.groups`, key ``group``; design, idea 2).

    Task vectors are indexed by `TaskTable(tasks)`; their values are member slots, -1 = no member.
    Pair arrays are int32[K, 2] of (task index, slot), ascending.

    Attributes:
        generation: group epoch. target_generation: the generation `target` was computed for.
        target: int32[T], where each active belongs (staged, where a learner is catching up).
        holder: int32[T], who holds each active now, one that is being given up included.
        revoking: bool[T], whether the holder was told to give it up.
        destination: int32[T], where each active belongs in the end; equals `target` unless staged.
        target_standby, target_learner: pairs the target asks for.
        standby, learner: pairs held; standby_revoking, learner_revoking: pairs being given up.
        ready: learner and standby pairs that reported ready, or ran the task until now.
        lags: int64[K, 3] of (task index, slot, offsets behind); lag_ms: int64[K], broker time told.
        moves: what the newest generation moved, with reasons.
        cause: what made the newest generation, one line.
        through: newest offset taken in, by (topic, partition).
        clock_ms: the group's clock: newest broker time of its membership records.
        next_ms: earliest deadline that is no session's (delay, follow-up, interval); None = none.
        memory: what the assignor wants to remember (JSON text), opaque here.
        recovering: members (slots) whose report is awaited after a lost checkpoint.
        drains: drains of members that are gone, or were expelled; by member id. Those of all other
            members are in their entries.
    """

    group: GroupId
    coordinator_epoch: int
    generation: int
    target_generation: int
    state: GroupState
    assignor: str
    settings: Settings
    tasks: tuple[Unit, ...]
    members: tuple[MemberEntry, ...]
    target: NDArray[np.int32]
    holder: NDArray[np.int32]
    revoking: NDArray[np.bool_]
    destination: NDArray[np.int32]
    target_standby: NDArray[np.int32] = field(default_factory=_no_pairs)
    target_learner: NDArray[np.int32] = field(default_factory=_no_pairs)
    standby: NDArray[np.int32] = field(default_factory=_no_pairs)
    learner: NDArray[np.int32] = field(default_factory=_no_pairs)
    standby_revoking: NDArray[np.int32] = field(default_factory=_no_pairs)
    learner_revoking: NDArray[np.int32] = field(default_factory=_no_pairs)
    ready: NDArray[np.int32] = field(default_factory=_no_pairs)
    lags: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 3), dtype=np.int64))
    lag_ms: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    moves: tuple[Move, ...] = ()
    cause: str = ""
    through: tuple[tuple[str, int, int], ...] = ()
    clock_ms: int = 0
    next_ms: int | None = None
    followup_ms: int | None = None
    delay_until_ms: int | None = None
    generation_ms: int = 0
    memory: str = ""
    recovering: tuple[int, ...] = ()
    drains: tuple[KeptDrain, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGone:
    """Tombstone of a group's snapshot: it never had a generation with tasks, and is forgotten.

    A group that had some and was deleted leaves a snapshot in state `DEAD`: generations go on.
    """

    group: GroupId


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """When a group wants a `Tick` at the latest (`muster.clock`); None = never (tombstone).

    Attributes:
        published: all that followed from the group's inputs up to there had been written to Kafka,
            and acknowledged, before this was written. The tick says it again, which proves that it
            came after.
    """

    group: GroupId
    at_ms: int | None
    published: Mark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A dead letter (`muster.rejected`): an input that changed nothing, untouched, with the reason.

    Attributes:
        origin: where it was read.
        reason: a word of `DeadLetter`, or of a newer version's; a metric label.
        message: what is wrong and what would be right, for a person.
        key, value: the original bytes; empty when the record had none.
    """

    origin: Origin
    reason: str
    message: str
    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorClaim:
    """A job says it is the coordinator (`muster.coordinator`, one partition).

    The offset of the claim is the coordinator epoch. A job that sees a later claim stops.

    Attributes:
        job: random id of the job.
        host: where it runs, for a person.
        version: muster's version.
    """

    job: str
    host: str
    version: str


Record: TypeAlias = (
    MemberAssignment
    | MemberGone
    | Dictionary
    | GroupSnapshot
    | GroupGone
    | WakeUp
    | Rejected
    | CoordinatorClaim
)
