"""The records that the coordinator writes: one frozen class each.

Records are keyed (`keys.py`). All but `Rejected` are compacted: the newest record of a key replaces
the earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.protocol.events import Mark, Origin, Profile
from muster.protocol.expected_heartbeats import Agreement
from muster.protocol.ids import GroupId, MemberId, Role, as_option
from muster.protocol.settings import Settings
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import EMPTY, TaskSet, TaskTable, Unit
from muster.protocol.taskset import LABELS_CHARS_MAX, Layout, UnitRef, units_of_table, units_version


class Fault(Enum):
    """Why a process or an event is refused, and what the process does; Kafka's names, if any."""

    UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"
    """The process is not a member (any more): drop everything and join."""
    FENCED_MEMBER_EPOCH = "FENCED_MEMBER_EPOCH"
    """The member claims what the group did not grant: drop everything and join."""
    FENCED_INSTANCE_ID = "FENCED_INSTANCE_ID"
    """Another process took over the instance id: stop for good."""
    UNRELEASED_INSTANCE_ID = "UNRELEASED_INSTANCE_ID"
    """A live member has the instance id: try again when it has left or expired."""
    MEMBER_ID_IN_USE = "MEMBER_ID_IN_USE"
    """A live process has the member id: try again when it has left or expired."""
    GROUP_MAX_SIZE_REACHED = "GROUP_MAX_SIZE_REACHED"
    """The group is full: try again later."""
    GROUP_ID_NOT_FOUND = "GROUP_ID_NOT_FOUND"
    """The group was deleted: stop, and ask again until it has a config."""
    INVALID_REQUEST = "INVALID_REQUEST"
    """The event is not valid; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Dictionary:
    """The units of a group (`muster.groups`, key ``group||names``), in the order of `TaskTable`.

    Members' records refer to it by version where their own list of units would be long. No units =
    tombstone.
    """

    group: GroupId
    units: tuple[UnitRef, ...]

    @classmethod
    def of(cls, group: GroupId, table: TaskTable) -> Dictionary | None:
        """A group's dictionary; None if its names are so short that no record refers to one."""
        units = units_of_table(table)
        short = sum(len(unit.label) for unit in units) <= LABELS_CHARS_MAX
        return None if short else cls(group=group, units=units)

    @cached_property
    def version(self) -> int:
        """A hash of the units: equal units have equal versions."""
        return units_version(self.units)

    @cached_property
    def layout(self) -> Layout:
        """The layout that task sets referring to this dictionary use."""
        return Layout(self.units)


NO_TASKS = "no tasks: "
"""Start of an assignment's message while the group has no config."""


def no_tasks(group: str, *, declares: bool = False) -> str:
    """Message for members and users of a group without tasks, which may declare topics."""
    if declares:
        return f"{NO_TASKS}none of the topics that {group} declares was found yet"
    option = as_option("--group", group)
    return f"{NO_TASKS}muster config set {option} --tasks FILE gives the group some"


def group_deleted(group: str, origin: Origin) -> str:
    """Message for members of a deleted group and processes that ask to join it."""
    return (
        f"group deleted by muster config delete ({origin.topic}-{origin.partition}"
        f"@{origin.offset}); muster config set {as_option('--group', group)} makes it anew"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAssignment:
    """All that a member must hold from now on (`muster.assignments`, key ``group|member``).

    The member releases what it holds beyond the record, then reports. With a `fault` the sets are
    empty and the member acts as `Fault` says.

    Attributes:
        incarnation: the process addressed; others ignore the record.
        coordinator_epoch: offset of the coordinator's claim; a member ignores lower ones than seen.
        generation: group epoch of the target that the record works towards.
        epoch: member epoch; with `generation` a fencing token for outside systems.
        revision: number of the record among those published to this member, increasing; a record
            that is published once more, because the member may not have read it, keeps its own.
        active, standby, learner: the task sets.
        next: standbys that become active on this member when they have caught up; it restores them
            first. Learners become active in any case.
        report: whether the member must send a full `Report`.
        session_timeout_ms, heartbeat_interval_ms: in force for the member once it has read this.
        apart: the member writes its heartbeats to the topic of their own from now on, else to
            `muster.membership`.
        message: one line for a person: cause of the generation, explanation of the fault, or
            `no_tasks`.
        dictionary: the group's published dictionary, which the record may refer to; None = the
            record lists its units itself.
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
    apart: bool = False
    message: str = ""
    dictionary: Dictionary | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberGone:
    """Tombstone of a member's assignment: it left or expired. If it is alive, it joins again."""

    group: GroupId
    member: MemberId


class MemberState(Enum):
    """State of a member's step towards the target (KIP-848, KIP-1071).

    STABLE: it waits for nothing. UNREVOKED: the group waits for its report of a release.
    UNRELEASED: it waits for other members to release. UNKNOWN: written by a newer version.
    """

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    UNRELEASED = "unreleased"
    UNKNOWN = "unknown"


class GroupState(Enum):
    """State of a group, printed as Kafka prints it. UNKNOWN: written by a newer version."""

    EMPTY = "Empty"
    NOT_READY = "Not Ready"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEntry(Profile):
    """One member in a `GroupSnapshot`.

    Attributes as in `Profile`, and:
        id, incarnation, instance_id: as in `Join`.
        slot: number that the task vectors use for this member; not its place in the list.
        epoch, previous_epoch, revision: see `MemberAssignment`.
        revoke_revision: revision of the record that asked for a release still owed; 0 = none.
        joined_ms: broker time of the join.
        away: it left temporarily (member epoch -2 in Kafka).
        session_timeout_ms: session timeout in force; a shorter one only once it is acknowledged.
        deadline_ms: earliest time at which an UNREVOKED member is fenced (rebalance timeout), by
            the group's session clock; None = not UNREVOKED.
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
    """One task that moved in a generation, by its printed id; a member of None is no member."""

    task: str
    role: Role
    from_member: str | None
    to_member: str | None
    reason: str


class KeptDrain(NamedTuple):
    """A drain that outlives its member: a process that joins under one of its names is drained.

    Attributes:
        member, instance_id: the member's names.
        gone_ms: broker time at which it left or expired; None = it is a member.
        expelled: whether it was fenced or expired before it was empty.
    """

    member: MemberId
    instance_id: str | None
    gone_ms: int | None
    expelled: bool


def _no_pairs() -> NDArray[np.int32]:
    return np.empty((0, 2), dtype=np.int32)


class Quarantine(NamedTuple):
    """A group that the job has quarantined, because its events ended the process that took them.

    Attributes:
        since_ms: broker time of the newest of these events.
        story: how the process ended, one sentence.
        through: (topic, partition, offset) of the newest records of `muster.config` that were read
            in the quarantine. A start without a checkpoint reads them again; they release no group.
    """

    since_ms: int
    story: str
    through: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupSnapshot:
    """The whole public state of a group (`muster.groups`, key ``group``).

    Task vectors are indexed by `TaskTable(tasks)`; their values are member slots, -1 = no member.
    Pair arrays are int32[K, 2] of (task index, slot), ascending.

    Attributes:
        generation: group epoch. target_generation: the generation `target` was computed for.
        target: int32[T], the member that should have each active now.
        holder: int32[T], the member that has each active, also while it gives it up.
        revoking: bool[T], whether the holder must give the task up.
        destination: int32[T], the final owner of each active; differs from `target` while a copy
            there catches up.
        target_standby, target_learner: pairs of the target.
        standby, learner: pairs held; standby_revoking, learner_revoking: pairs being given up.
        ready: learner and standby pairs that reported ready, or ran the task until now.
        lags: int64[K, 3] of (task index, slot, offsets behind); lag_ms: int64[K], broker time of
            the report.
        moves, cause: of the newest generation.
        through: newest offset read, by (topic, partition).
        clock_ms: the group clock: newest broker time of its membership records.
        next_ms: earliest of the delay, the follow-up and the scale-down deadlines; None = none.
        generation_ms: the group clock when the newest target was placed or, if it was computed
            aside, asked for.
        memory: what the assignor remembers (JSON text), opaque here.
        recovering: slots of members whose report is awaited after a lost checkpoint.
        apart: slots of members that heartbeat apart.
        fenced: slots of members that are fenced or deaf; placements leave them out.
        drained: slots of members drained for `scale.down.timeout.ms`; placements leave them out
            unless no other member is there. Records of older versions lack both.
        floor: an earlier coordinator may have used generations up to this one in fencing tokens,
            as far as the events up to `through` show; 0 = up to `generation`.
        drains: kept drains, by member id: of members that are gone or were expelled. All other
            members have theirs in their entry.
        quarantine: since when and why the group is quarantined; the other fields are then as they
            were before. None = it is not.
        sources: topics of Kafka that the group's config declares.
        found: what was found for them; its units are among `tasks`.
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
    apart: tuple[int, ...] = ()
    fenced: tuple[int, ...] = ()
    drained: tuple[int, ...] = ()
    floor: int = 0
    drains: tuple[KeptDrain, ...] = ()
    quarantine: Quarantine | None = None
    sources: tuple[Source, ...] = ()
    found: tuple[Found, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGone:
    """Tombstone of the snapshot of a group that never had a config.

    A deleted group leaves a snapshot in state `DEAD` instead, so that its generations go on.
    """

    group: GroupId


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """The latest time for a group's next `Tick` (`muster.clock`).

    Attributes:
        at_ms: epoch milliseconds; None = it needs none (tombstone).
        published: when this was written, Kafka had acknowledged all records that follow from the
            group's inputs up to this mark. The tick repeats the mark, which proves that the tick
            was written later.
        apart: whether members of the group heartbeat apart, so that its ticks need a cover.
        agreement: the heartbeats with which the tick may wait; None = it may not.
    """

    group: GroupId
    at_ms: int | None
    published: Mark | None = None
    apart: bool = False
    agreement: Agreement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A dead letter (`muster.rejected`): an input that changed nothing, with the reason.

    Attributes:
        origin: where it was read.
        reason: a word of `DeadLetter`, or one that a newer version added; a metric label.
        message: what is wrong and what would be right, for a person.
        key, value: the original bytes; empty if the record had none.
    """

    origin: Origin
    reason: str
    message: str
    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorClaim:
    """A job claims to be the coordinator (`muster.coordinator`, one partition).

    The offset of the claim is the coordinator epoch. A job that reads a later claim stops.

    Attributes:
        job: random id of the job.
        host: where it runs, for a person.
        version: muster's version.
        follows: epoch of the newest claim that the job knew before this one; -1 = none. None = an
            old version wrote it, whose job writes no signs of life and does not obey ticks that
            name a later coordinator.
        alone: whether the job that `follows` names, and all before it, have ended or obey such
            ticks. It is valid only if no other claim lies between that one and this one.
    """

    job: str
    host: str
    version: str
    follows: int | None = None
    alone: bool = False


class CoordinatorRole(Enum):
    """What a coordinator process does.

    STOPPED: a signal stopped it, in order. ENDED: it ended for another reason. UNKNOWN: written by
    a newer version.
    """

    RUNNING = "running"
    STANDBY = "standby"
    STOPPED = "stopped"
    ENDED = "ended"
    UNKNOWN = "unknown"

    @property
    def is_over(self) -> bool:
        """Whether the process has said that it ends."""
        return self in (CoordinatorRole.STOPPED, CoordinatorRole.ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSign:
    """A sign of life of a coordinator process (`muster.clock`, about one a second).

    A standby process writes signs too. Attributes as in `CoordinatorClaim`, but:
        job: random id of the process.
        epoch: offset of its claim; -1 = it has not claimed.
        interval_ms: when it writes the next one; 0 = it writes no more.
    """

    job: str
    host: str
    version: str
    role: CoordinatorRole
    epoch: int = -1
    interval_ms: int = 0


Record: TypeAlias = (
    MemberAssignment
    | MemberGone
    | Dictionary
    | GroupSnapshot
    | GroupGone
    | WakeUp
    | Rejected
    | CoordinatorClaim
    | CoordinatorSign
)
