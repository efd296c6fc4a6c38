"""A group as a value: its members, and which member holds and should hold each task.

A `Group` is never changed; `draft.Draft` is its mutable twin and has copies of the same parts. The
published record and the liveness bytes are the whole group: a record is published whenever anything
but liveness changed, and the bytes have what the record does not. `Group.recover` makes a group
of the record alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.protocol.digest import table_hashes
from muster.protocol.ids import GroupId, Role
from muster.protocol.records import GroupSnapshot, GroupState, KeptDrain, MemberEntry, Move
from muster.protocol.settings import CONNECT_ASSIGNORS, DEFAULT_ASSIGNOR, Settings
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import IntArray, TaskTable
from muster.state import assignor_outcome, expected_digests, stored_orphans
from muster.state.assignor_outcome import Outcome
from muster.state.liveness import DEAF, FENCED, MUTE, NEVER, Liveness, later
from muster.state.ownership import (
    COPY_ROLES,
    NO_MEMBER,
    Codes,
    Copies,
    Lags,
    Ownership,
    codes,
    slot_of,
    task_of,
    union,
    unowned,
)
from muster.state.roster import Roster

Member: TypeAlias = MemberEntry
UNPROVED = np.iinfo(np.int64).max
"""`Recovery.unverified_until_ms` until a record proves to be younger than the coordinator."""


@dataclass(slots=True, eq=False, kw_only=True)
class Target:
    """The newest placement.

    Attributes:
        generation: the generation that it places.
        placed_ms: the group clock at that time, epoch milliseconds.
        active: int32[T], slot that each active is to have now.
        destination: int32[T], slot that it belongs to when the copy there is ready.
        moves: the tasks that change owner, with reasons.
        memory: what the assignor wants to see at the next placement.
        again: the assignor wants another round when all releases are acknowledged (Connect).
        deferred: an outcome which the next batch applies (`assignor_outcome.py`).
        asked_ms: group clock when a placement was asked for that is computed aside, and not
            applied yet; None = there is none. If no generation is pending, it is asked for a
            follow-up.
        is_overtaken: causes for another generation came since then; the batch after the one that
            applies the answer opens it.
    """

    generation: int = 0
    placed_ms: int = 0
    active: IntArray = field(default_factory=lambda: unowned(0))
    destination: IntArray = field(default_factory=lambda: unowned(0))
    moves: tuple[Move, ...] = ()
    memory: Mapping[str, object] | None = None
    again: bool = False
    deferred: Outcome | None = None
    asked_ms: int | None = None
    is_overtaken: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Timers:
    """Deadlines on the group clock, epoch milliseconds; None = none (`deadlines.py`).

    Attributes:
        followup_ms: the assignor wants to be asked again.
        delay_until_ms: the assignor decides what becomes of lost work (Connect).
        drain_until_ms: slot → time from which placements leave a draining member out.
    """

    followup_ms: int | None = None
    delay_until_ms: int | None = None
    drain_until_ms: dict[int, int] = field(default_factory=dict)

    def drained(self, now_ms: int) -> list[int]:
        """Slots of the members that placements leave out because their drain has lasted so long."""
        return sorted(slot for slot, at_ms in self.drain_until_ms.items() if at_ms <= now_ms)


@dataclass(slots=True, eq=False, kw_only=True)
class Recovery:
    """What is left of a start without a checkpoint (`recovery.py`).

    Attributes:
        asked: slots of the members that have not reported yet; nothing is granted before.
        unverified_until_ms: members that join until then are asked for a report, because another
            coordinator may have admitted them. None = the group is verified.
        since_epoch: epoch of the coordinator that started this group without a checkpoint; a
            coordinator that continues from its checkpoint has a higher one. None = no batch yet.
        snapshot_epoch: epoch of the coordinator that wrote the snapshot the group was read back
            from; None after the first batch, and for other groups.
        is_doubtful: a superseded coordinator may have written that snapshot. The questions then
            grant nothing.
        predecessors_obey: no earlier coordinator takes an event of the group that lies behind the
            first tick of this one, because all of them obey such ticks.
        has_lost_events: a quarantine dropped events that an attempt before it may have acted on, so
            processes may hold tasks that the group does not know as members.
        successor: epoch of a later coordinator, which a tick has named. This one then takes no
            event of the group any more. None = no tick has named one.
        floor: an earlier coordinator whose last batch is lost may have used generations up to this
            one in fencing tokens; the next placement gets a higher one.
    """

    asked: Set[int] = frozenset()
    unverified_until_ms: int | None = None
    since_epoch: int | None = None
    snapshot_epoch: int | None = None
    is_doubtful: bool = False
    predecessors_obey: bool = False
    has_lost_events: bool = False
    successor: int | None = None
    floor: int = 0


def drained_at_ms(settings: Settings, now_ms: int) -> int | None:
    """When placements leave out a member that is drained now; None = never."""
    at_ms = later(now_ms, settings.scale_down_timeout_ms)
    return None if at_ms == NEVER else at_ms


def places(table: TaskTable, assignor: str) -> bool:
    """Whether the group's generations are placed; a group without tasks waits for a config.

    Connect's assignors run without tasks too: they must see that connectors were deleted.
    """
    return len(table) > 0 or assignor in CONNECT_ASSIGNORS


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Group:
    """A group. Attributes not explained here are those of `GroupSnapshot`.

    Attributes:
        hashes: uint64[T], digest hash of every task.
        roster: the members.
        drains: drains that outlive their member (`drains.py`), by member id.
        sources, found: tasks that come from Kafka (`found_topics.py`).
        dead: the group was deleted; its last members are stopping their tasks.
        sessions: the liveness: sessions, clocks and offsets, which every batch changes.
    """

    id: GroupId
    coordinator_epoch: int = 0
    generation: int = 0
    cause: str = ""
    assignor: str = DEFAULT_ASSIGNOR
    settings: Settings = field(default_factory=Settings)
    table: TaskTable = field(default_factory=lambda: TaskTable(()))
    hashes: NDArray[np.uint64] = field(default_factory=lambda: table_hashes(TaskTable(())))
    roster: Roster = field(default_factory=Roster)
    drains: tuple[KeptDrain, ...] = ()
    dead: bool = False
    sources: tuple[Source, ...] = ()
    found: tuple[Found, ...] = ()
    owned: Ownership = field(default_factory=Ownership)
    target: Target = field(default_factory=Target)
    timers: Timers = field(default_factory=Timers)
    recovery: Recovery = field(default_factory=Recovery)
    sessions: Liveness = field(default_factory=Liveness.new)

    @classmethod
    def new(cls, group: GroupId, *, unverified: bool = False) -> Group:
        """A group without history; `unverified`: a checkpoint may have been lost."""
        until_ms = UNPROVED if unverified else None
        recovery = Recovery(unverified_until_ms=until_ms, floor=int(unverified))
        return cls(id=group, recovery=recovery)

    @classmethod
    def restore(cls, record: GroupSnapshot, liveness: bytes) -> Group:
        """The group that published `record` last and whose `liveness()` was these bytes.

        Raises:
            ValueError: the bytes are not a liveness of this version.
        """
        sessions, end = Liveness.from_bytes(liveness)
        orphans, end = stored_orphans.from_bytes(liveness, end)
        rest = json.loads(liveness[end:])
        recovery = Recovery(
            asked=frozenset(record.recovering),
            unverified_until_ms=rest["wary"],  # stored under its former name
            since_epoch=rest.get("since"),
            is_doubtful=rest.get("doubtful", False),
            predecessors_obey=rest.get("fenced", False),
            has_lost_events=rest.get("lost", False),
            successor=rest.get("successor"),
            floor=rest.get("floor", 0),
        )
        group = _of_record(record, sessions, recovery)
        group.target.again = rest["again"]
        group.target.deferred = assignor_outcome.from_json(rest.get("kept"))
        group.target.asked_ms = rest.get("asked")
        group.target.is_overtaken = rest.get("overtaken", False)
        group.timers.drain_until_ms = dict(rest["drain"])
        group.owned.duplicate = np.array(rest["duplicate"], dtype=np.int64)
        group.owned.orphans = orphans or stored_orphans.of_json(rest["orphans"])
        every_slot = np.arange(len(sessions.digest) + 1) < len(sessions.digest)
        sessions.digest = expected_digests.of_members(group.owned, group.hashes, every_slot)
        return group

    @classmethod
    def recover(
        cls,
        record: GroupSnapshot,
        *,
        unverified: bool = True,
        predecessors_obey: bool = False,
        has_lost_events: bool = False,
    ) -> Group:
        """The group of a published record whose liveness is lost.

        Every member gets a fresh session and is asked for a report. Nothing is granted or revoked
        until each of them has reported, left or expired. The time of a drain begins again.

        Args:
            record: the newest one of the group.
            unverified: the checkpoint is lost, so an earlier coordinator may still run. False = the
                record is of this checkpoint, and only the liveness cannot be read.
            predecessors_obey: the coordinator before this one obeys the first tick of this one, and
                all events of the group behind the record are read.
            has_lost_events: see `Recovery`; the group is unverified for a session then.
        """
        sessions = Liveness.new(max((m.slot + 1 for m in record.members), default=0))
        sessions.clock_ms = sessions.session_ms = sessions.covered_ms = record.clock_ms
        sessions.listened_ms = record.clock_ms if record.apart else 0
        sessions.through = {(t, p): o for t, p, o in record.through}
        for member in record.members:
            sessions.start(member.slot, member.session_timeout_ms)
            sessions.flags[member.slot] = MUTE if member.away else 0
        for slot in record.apart:
            sessions.offer(slot, offered=True, apart=True)
        recovery = Recovery(
            asked=frozenset(member.slot for member in record.members if not member.away),
            unverified_until_ms=UNPROVED if unverified else None,
            # Of a group without members, a join that the record lacks may not be read again.
            predecessors_obey=predecessors_obey and unverified and bool(record.members),
            has_lost_events=has_lost_events,
            # The lost batch may have granted tasks under this one.
            floor=max(record.generation, record.floor) + 1,
        )
        epoch = record.coordinator_epoch
        if recovery.asked:
            recovery.snapshot_epoch, epoch = epoch if unverified else None, -1
        group = _of_record(record, sessions, recovery, epoch)
        group.target.again = bool((record.target == NO_MEMBER).any())  # Connect may have wanted it
        drained_ms = drained_at_ms(record.settings, record.clock_ms)
        if drained_ms is not None:
            draining = (member.slot for member in record.members if member.draining)
            group.timers.drain_until_ms = dict.fromkeys(draining, drained_ms)
        return group

    def is_left_to_a_later_one(self, coordinator_epoch: int) -> bool:
        """Whether a tick has named a later coordinator than the one of this epoch."""
        successor = self.recovery.successor
        return successor is not None and successor > coordinator_epoch

    def liveness(self) -> bytes:
        """What the record does not have: `Liveness`, many orphans, then the rest in JSON."""
        orphans = stored_orphans.to_bytes(self.owned.orphans)
        rest = {
            "again": self.target.again,
            "drain": sorted(self.timers.drain_until_ms.items()),
            "duplicate": self.owned.duplicate.tolist(),
            "floor": self.recovery.floor,
            "kept": assignor_outcome.to_json(self.target.deferred),
            "orphans": () if orphans else self.owned.orphans,
            "since": self.recovery.since_epoch,
            "wary": self.recovery.unverified_until_ms,
        }
        if self.recovery.is_doubtful:
            rest["doubtful"] = True
        if self.target.asked_ms is not None or self.target.is_overtaken:
            rest |= {"asked": self.target.asked_ms, "overtaken": self.target.is_overtaken}
        if self.recovery.predecessors_obey:
            rest["fenced"] = True
        if self.recovery.has_lost_events:
            rest["lost"] = True
        if self.recovery.successor is not None:
            rest["successor"] = self.recovery.successor
        text = json.dumps(rest, separators=(",", ":")).encode()
        return self.sessions.to_bytes() + orphans + text

    def snapshot(self) -> GroupSnapshot:
        """The record to publish for the group as it is."""
        owned, target, timers, lags = self.owned, self.target, self.timers, self.owned.lags
        standby, learner = (owned.copies[role] for role in COPY_ROLES)
        deadlines = (timers.delay_until_ms, timers.followup_ms, *timers.drain_until_ms.values())
        sessions = self.sessions
        return GroupSnapshot(
            group=self.id,
            coordinator_epoch=self.coordinator_epoch,
            generation=self.generation,
            target_generation=target.generation,
            state=self.state,
            assignor=self.assignor,
            settings=self.settings,
            tasks=self.table.units,
            members=tuple(filter(None, self.roster.by_slot)),
            target=target.active,
            holder=owned.holder,
            revoking=owned.revoking,
            destination=target.destination,
            target_standby=_rows(standby.wanted),
            target_learner=_rows(learner.wanted),
            standby=_rows(union(standby.kept, standby.releasing)),
            learner=_rows(union(learner.kept, learner.releasing)),
            standby_revoking=_rows(standby.releasing),
            learner_revoking=_rows(learner.releasing),
            ready=_rows(owned.ready),
            lags=np.column_stack((_rows(lags.pair), lags.offsets)),
            lag_ms=lags.reported_ms,
            moves=target.moves,
            cause=self.cause,
            through=tuple((t, p, o) for (t, p), o in sorted(sessions.through.items())),
            clock_ms=sessions.clock_ms,
            next_ms=min((at for at in deadlines if at is not None), default=None),
            followup_ms=timers.followup_ms,
            delay_until_ms=timers.delay_until_ms,
            generation_ms=target.placed_ms,
            memory="" if target.memory is None else json.dumps(target.memory, sort_keys=True),
            recovering=tuple(sorted(self.recovery.asked)),
            apart=tuple(np.flatnonzero(sessions.apart).tolist()),
            fenced=tuple(np.flatnonzero(sessions.flags & (FENCED | DEAF)).tolist()),
            drained=tuple(timers.drained(sessions.clock_ms)),
            floor=self.recovery.floor,
            drains=self.drains,
            sources=self.sources,
            found=self.found,
        )

    @property
    def state(self) -> GroupState:
        """The first state that applies, in this order."""
        if self.dead:
            return GroupState.DEAD
        if not self.roster:
            return GroupState.EMPTY
        if not places(self.table, self.assignor):
            return GroupState.NOT_READY
        if self.generation > self.target.generation:
            return GroupState.ASSIGNING
        if self.roster.columns.unsettled.any():
            return GroupState.RECONCILING
        return GroupState.STABLE


def _of_record(
    record: GroupSnapshot, sessions: Liveness, recovery: Recovery, epoch: int | None = None
) -> Group:
    """The group of a record, without what only the liveness bytes have."""
    table = TaskTable(record.tasks)
    return Group(
        id=record.group,
        coordinator_epoch=record.coordinator_epoch if epoch is None else epoch,
        generation=record.generation,
        cause=record.cause,
        assignor=record.assignor,
        settings=record.settings,
        table=table,
        hashes=table_hashes(table),
        roster=Roster.of(record.members),
        drains=record.drains,
        dead=record.state is GroupState.DEAD,
        sources=record.sources,
        found=record.found,
        owned=Ownership(
            holder=record.holder,
            revoking=record.revoking,
            copies={
                Role.STANDBY: _copies(
                    record.target_standby, record.standby, record.standby_revoking
                ),
                Role.LEARNER: _copies(
                    record.target_learner, record.learner, record.learner_revoking
                ),
            },
            ready=_codes(record.ready),
            lags=Lags(
                _codes(record.lags[:, :2].astype(np.int32)), record.lags[:, 2], record.lag_ms
            ),
        ),
        target=Target(
            generation=record.target_generation,
            placed_ms=record.generation_ms,
            active=record.target,
            destination=record.destination,
            moves=record.moves,
            memory=json.loads(record.memory) if record.memory else None,
        ),
        timers=Timers(followup_ms=record.followup_ms, delay_until_ms=record.delay_until_ms),
        recovery=recovery,
        sessions=sessions,
    )


def _copies(wanted: IntArray, held: IntArray, going: IntArray) -> Copies:
    leaving = _codes(going)
    return Copies(_codes(wanted), np.setdiff1d(_codes(held), leaving, assume_unique=True), leaving)


def _rows(pairs: Codes) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    if len(pairs) == 0:  # the common case
        return np.empty((0, 2), dtype=np.int32)
    return np.column_stack((task_of(pairs), slot_of(pairs))).astype(np.int32)


def _codes(rows: IntArray) -> Codes:
    return codes(rows[:, 0], rows[:, 1])
