"""The contract of an assignor: a `GroupView` in, a `Placement` out, both frozen arrays.

Tasks are indexes into a `TaskTable`; members are indexes into `GroupView.members`, which is sorted
by id. An assignor is a pure function of the view: it sees no clock, epochs or records.

A `Placement` separates the target from the way there. ``destination`` is the member that runs each
active in the end. ``active``, ``standby`` and ``learner`` are what this generation asks for: while
the destination of a stateful active has no caught-up copy, a member that has one runs the active
and a learner restores at the destination. Otherwise ``active`` equals ``destination``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.assignor.member_kinds import Kinds, kinds
from muster.protocol.ids import Role
from muster.protocol.settings import Settings
from muster.protocol.tasks import IntArray, TaskTable

BoolArray: TypeAlias = NDArray[np.bool_]
NO_MEMBER = -1
"""Value of an owner vector where no member holds the task."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """(task, member) pairs, ascending by task, then member.

    Attributes:
        task: int32[K] task indexes.
        member: int32[K] member indexes.
    """

    task: IntArray
    member: IntArray

    @classmethod
    def of(cls, task: IntArray, member: IntArray) -> Pairs:
        """Sort arbitrary pairs and drop repeated ones."""
        if len(task) == 0:
            return no_pairs()
        code = task.astype(np.int64) << 32 | member.astype(np.int64)
        step = np.diff(code)
        if not (step > 0).all():
            code.sort(kind="stable")  # merges sorted runs, which np.unique's hashing cannot
            code = code[np.append(True, np.diff(code) > 0)]
        return cls((code >> 32).astype(np.int32), (code & 0xFFFFFFFF).astype(np.int32))

    def __len__(self) -> int:
        return len(self.task)

    def only(self, selected: BoolArray | NDArray[np.int64]) -> Pairs:
        """The pairs that a mask or ascending indexes select."""
        return Pairs(self.task[selected], self.member[selected])

    @cached_property
    def code(self) -> NDArray[np.int64]:
        """int64[K], ``task << 32 | member``: ascending, for set operations."""
        return self.task.astype(np.int64) << 32 | self.member.astype(np.int64)


def no_pairs() -> Pairs:
    """The empty set of pairs."""
    return Pairs(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class Lags:
    """How many offsets copies are behind, ascending by (task, member).

    A pair without an entry has no state: the member must restore all of it. An owner without an
    entry is caught up; an owner with one above `acceptable.recovery.lag` is still restoring.
    """

    task: IntArray
    member: IntArray
    offsets: NDArray[np.int64]


def no_lags() -> Lags:
    """No lag is known."""
    return Lags(
        np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupView:
    """A group as an assignor sees it. Build it with `group_view`, which sets defaults.

    Attributes:
        tasks: the group's tasks.
        settings: the group's settings.
        members: M member ids, ascending.
        capacity: int64[M], relative weight (threads), at least 1.
        active: int32[T], present owner of each active, `NO_MEMBER` = none.
        pending: bool[T], whether the owner does not run the active yet, or is stopping it: if the
            task goes to another member, no running task is interrupted.
        standby, learner, ready: pairs held now; `ready` is a part of `learner`.
        lags: reported lags, any role.
        draining: bool[M], members that must give up all tasks.
        racks: distinct rack ids, ascending; rack: int32[M], index into it, -1 = unknown.
        tags: per member its tags.
        topics: per member the subtopologies it may take; None = all.
        static: per member the jobs it is pinned to, printed ids; empty = wildcard (KIP-987).
        protocols: per member the protocols it speaks, best first; empty = all.
        also_active: pairs that claim an active which another member holds too (Connect's
            duplicates).
        report_order: int32[T], position of each task in its holder's report; None = index order.
            Connect revokes the first reported.
        config_offsets: int64[M], newest config each member has read (Connect), -1 = not reported.
        now_ms: time of the group's clock.
        memory: what the same assignor asked to remember last time (JSON-able); None = nothing.
        whole_generation: whether every member got the last placement (Connect's S3-F09).
        config_offset: newest config the group itself has read (Connect's S3-F11), -1 = unknown.
    """

    tasks: TaskTable
    settings: Settings
    members: tuple[str, ...]
    capacity: NDArray[np.int64]
    active: IntArray
    pending: BoolArray
    standby: Pairs
    learner: Pairs
    ready: Pairs
    lags: Lags
    draining: BoolArray
    racks: tuple[str, ...]
    rack: IntArray
    tags: tuple[Mapping[str, str], ...]
    topics: tuple[frozenset[str] | None, ...]
    static: tuple[frozenset[str], ...]
    protocols: tuple[tuple[str, ...], ...]
    also_active: Pairs
    report_order: IntArray | None
    config_offsets: NDArray[np.int64]
    now_ms: int
    memory: Mapping[str, object] | None
    whole_generation: bool
    config_offset: int = -1

    @cached_property
    def unrestricted(self) -> bool:
        """Whether no member restricts its topics (the common case)."""
        topics = self.topics
        return not topics or (topics[0] is None and topics.count(None) == len(topics))

    @cached_property
    def kinds(self) -> Kinds:
        """Members grouped by what they may take."""
        return kinds(self.topics, self.tasks.units)

    def may_take(self, task: IntArray, member: IntArray) -> BoolArray:
        """bool[K]: whether ``member[k]`` may take ``task[k]``."""
        return self.kinds.may_take(self.tasks.unit_of.take(task), member)


def group_view(
    *,
    tasks: TaskTable,
    settings: Settings,
    members: tuple[str, ...],
    capacity: NDArray[np.int64] | None = None,
    active: IntArray | None = None,
    pending: BoolArray | None = None,
    standby: Pairs | None = None,
    learner: Pairs | None = None,
    ready: Pairs | None = None,
    lags: Lags | None = None,
    draining: BoolArray | None = None,
    rack: tuple[str | None, ...] | None = None,
    tags: tuple[Mapping[str, str], ...] | None = None,
    topics: tuple[frozenset[str] | None, ...] | None = None,
    static: tuple[frozenset[str], ...] | None = None,
    protocols: tuple[tuple[str, ...], ...] | None = None,
    also_active: Pairs | None = None,
    report_order: IntArray | None = None,
    config_offsets: NDArray[np.int64] | None = None,
    now_ms: int = 0,
    memory: Mapping[str, object] | None = None,
    whole_generation: bool = True,
    config_offset: int = -1,
) -> GroupView:
    """Build a view; `rack` is given by name per member, everything else as in `GroupView`."""
    count = len(members)
    racks = tuple(sorted({r for r in rack or () if r is not None}))
    rack_index: dict[str | None, int] = {r: i for i, r in enumerate(racks)} | {None: -1}
    return GroupView(
        tasks=tasks,
        settings=settings,
        members=members,
        capacity=np.ones(count, dtype=np.int64) if capacity is None else capacity,
        active=np.full(len(tasks), NO_MEMBER, dtype=np.int32) if active is None else active,
        pending=np.zeros(len(tasks), dtype=np.bool_) if pending is None else pending,
        standby=standby or no_pairs(),
        learner=learner or no_pairs(),
        ready=ready or no_pairs(),
        lags=lags or no_lags(),
        draining=np.zeros(count, dtype=np.bool_) if draining is None else draining,
        racks=racks,
        rack=(
            np.full(count, -1, dtype=np.int32)
            if rack is None
            else np.fromiter(map(rack_index.__getitem__, rack), dtype=np.int32, count=count)
        ),
        tags=({},) * count if tags is None else tags,
        topics=(None,) * count if topics is None else topics,
        static=(frozenset[str](),) * count if static is None else static,
        protocols=((),) * count if protocols is None else protocols,
        also_active=also_active or no_pairs(),
        report_order=report_order,
        config_offsets=(
            np.full(count, -1, dtype=np.int64) if config_offsets is None else config_offsets
        ),
        now_ms=now_ms,
        memory=memory,
        whole_generation=whole_generation,
        config_offset=config_offset,
    )


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one task moved.

    Attributes:
        task: task index.
        role: the role that moved.
        source, destination: member indexes, `NO_MEMBER` = none.
        text: for a person: what the move gains, or what forces it.
    """

    task: int
    role: Role
    source: int
    destination: int
    text: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Placement:
    """An assignor's answer.

    Attributes:
        active: int32[T], owner of each active in this generation; `NO_MEMBER` where the assignor
            leaves it unassigned on purpose (a Connect round stops it first, it waits for a delay,
            no member may take it).
        destination: int32[T], owner of each active in the end.
        standby, learner: pairs this generation asks for.
        reasons: one for every active, standby and learner that changes hands.
        revoked: pairs whose present active copy must stop in this round (Connect).
        unassigned: indexes of tasks no member can take (reported, not an error).
        delay_ms: how long lost work waits (Connect); 0 = no delay runs.
        followup_ms: run the assignor again after this long; None = not needed.
        again: run it again as soon as every release of this placement is acknowledged (Connect).
        cost, cost_lower_bound: objective reached and a proven bound; equal = optimal.
        memory: what the assignor gets back at its next call; None = nothing.
        warnings: what could not be honoured, one line each.
    """

    active: IntArray
    destination: IntArray
    standby: Pairs = field(default_factory=no_pairs)
    learner: Pairs = field(default_factory=no_pairs)
    reasons: Sequence[Reason] = ()
    revoked: Pairs = field(default_factory=no_pairs)
    unassigned: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    delay_ms: int = 0
    followup_ms: int | None = None
    again: bool = False
    cost: int = 0
    cost_lower_bound: int = 0
    memory: Mapping[str, object] | None = None
    warnings: tuple[str, ...] = ()


class Assignor(Protocol):
    """Places tasks. The answer depends on the view alone."""

    name: str

    def assign(self, view: GroupView) -> Placement:
        """Place every task of the view.

        Raises:
            AssignorError: the assignor has no answer; the group keeps its target.
        """
        ...
