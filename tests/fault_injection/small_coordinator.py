"""A small coordinator: correct, and as eager as the protocol allows.

It tests the members' half of the protocol. `advance` is more careful than the protocol requires,
and a session could depend on that. This coordinator grants a task at the earliest moment allowed.
It counts sessions in broker time and assigns tasks by name, without racks, copies or config. It
must not be late by more than a rebalance timeout, because it asks for no proof that a member could
read what it was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fault_injection.faults import BEAT_MS, REBALANCE_MS, SESSION_MS
from fault_injection.faulty_jobs import FaultyJob

from muster.protocol.events import Event, Heartbeat, Join, Leave, Report
from muster.protocol.ids import MemberId
from muster.protocol.records import Fault, MemberAssignment, MemberGone
from muster.protocol.tasks import EMPTY, TaskSet
from muster.simulation.log import GROUP, MemberRecord
from muster.state.machine import Step
from muster.worker.session_steps import ANYONE

TASKS = tuple(f"0_{n}" for n in range(4))


@dataclass
class Entry:
    """What the coordinator stores about a member."""

    incarnation: int
    heard_ms: int
    revision: int = 0
    assigned: TaskSet = EMPTY
    revoking: TaskSet = EMPTY
    revoke_revision: int = 0
    revoked_ms: int = 0


class SmallCoordinator:
    """Handles the events of one group, one by one.

    Attributes:
        members: those with a live session.
        generation: number of assignments it made.
        reserved: until when, in broker time, fenced members may still use which tasks.
    """

    def __init__(self) -> None:
        self.members: dict[MemberId, Entry] = {}
        self.generation = 0
        self.reserved: list[tuple[int, TaskSet]] = []

    def take(self, event: Event) -> list[MemberRecord]:
        """Handle an event; return the records to publish."""
        now_ms = event.origin.at_ms
        records = [*self._expire(now_ms), *self._fence(now_ms)]
        match event:
            case Join():
                records.append(self._join(event))
            case Leave():
                entry = self.members.get(event.member)
                if entry is not None and entry.incarnation == event.incarnation:
                    records.append(self._remove(event.member))
            case Report() | Heartbeat():
                records += self._take_report(event)
        return records + self._place(now_ms)

    def _expire(self, now_ms: int) -> list[MemberRecord]:
        over = [m for m, entry in self.members.items() if now_ms >= entry.heard_ms + SESSION_MS]
        return [self._remove(member) for member in over]

    def _fence(self, now_ms: int) -> list[MemberRecord]:
        """Remove members that did not release in time; their tasks stay theirs for a session."""
        late = [
            member
            for member, entry in self.members.items()
            if entry.revoking and now_ms >= entry.revoked_ms + REBALANCE_MS
        ]
        for member in late:
            entry = self.members[member]
            self.reserved.append((now_ms + SESSION_MS, entry.assigned | entry.revoking))
        return [self._remove(member) for member in late]

    def _remove(self, member: MemberId) -> MemberGone:
        del self.members[member]
        return MemberGone(group=GROUP, member=member)

    def _join(self, event: Join) -> MemberAssignment:
        fresh = Entry(event.incarnation, event.origin.at_ms)
        entry = self.members.setdefault(event.member, fresh)
        if entry.incarnation != event.incarnation:
            return self._fault(event.member, event.incarnation, Fault.MEMBER_ID_IN_USE)
        entry.heard_ms = event.origin.at_ms
        return self._record(event.member)

    def _take_report(self, event: Report | Heartbeat) -> list[MemberRecord]:
        entry = self.members.get(event.member)
        if entry is None:
            return [self._fault(event.member, ANYONE, Fault.UNKNOWN_MEMBER_ID)]
        if isinstance(event, Report) and event.incarnation != entry.incarnation:
            return []
        entry.heard_ms = event.origin.at_ms
        if isinstance(event, Report) and event.revision >= entry.revoke_revision:
            entry.revoking = entry.revoking & event.holding.active
        return []

    def _place(self, now_ms: int) -> list[MemberRecord]:
        names = sorted(self.members)
        self.reserved = [
            (until_ms, tasks) for until_ms, tasks in self.reserved if now_ms < until_ms
        ]
        held = TaskSet.of(task for _, tasks in self.reserved for task in tasks)
        for entry in self.members.values():
            held = held | entry.assigned | entry.revoking
        records: list[MemberRecord] = []
        for position, name in enumerate(names):
            entry = self.members[name]
            target = TaskSet.of(TASKS[position :: len(names)])
            surplus, free = entry.assigned - target, target - held
            if surplus or free:
                self.generation += 1
                if surplus and not entry.revoking:
                    entry.revoked_ms = now_ms
                entry.assigned = (entry.assigned - surplus) | free
                entry.revoking = entry.revoking | surplus
                records.append(self._record(name))
                if surplus:
                    entry.revoke_revision = entry.revision
        return records

    def _record(self, member: MemberId) -> MemberAssignment:
        entry = self.members[member]
        entry.revision += 1
        return replace(
            self._fault(member, entry.incarnation, None),
            revision=entry.revision,
            active=entry.assigned,
        )

    def _fault(self, member: MemberId, incarnation: int, fault: Fault | None) -> MemberAssignment:
        return MemberAssignment(
            group=GROUP,
            member=member,
            incarnation=incarnation,
            coordinator_epoch=1,
            generation=self.generation,
            epoch=self.generation,
            revision=0,
            fault=fault,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=BEAT_MS,
        )


class SmallJob(FaultyJob):
    """The small coordinator in a run. It stores nothing, so it must not be restarted."""

    _small: SmallCoordinator | None = None

    def decide(self, events: Sequence[Event]) -> Step:
        """Handle the events one by one."""
        small = self._small = self._small or SmallCoordinator()
        records = tuple(record for event in events for record in small.take(event))
        self.generations = small.generation
        return Step(self.group, records, None, changed=False)
