"""Sessions in a small world of delays, freezes and lost time.

The world has true time; every member has a boot-time clock that runs up to half a percent fast or
slow. Events take their time to the log, acknowledgements and records theirs back; brokers are away
for a while, members freeze, their readers hang while their producers work, coordinators lag and
give tasks away the moment they may. What a member
uses is what its guard would let it: until it has stopped, at the latest `stop_ms` after its lease.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from muster.protocol.events import (
    Event,
    Heartbeat,
    Join,
    LagReport,
    Leave,
    Mark,
    Origin,
    Report,
    Tick,
)
from muster.protocol.ids import GroupId, MemberId, Role
from muster.protocol.records import Fault, MemberAssignment, MemberGone, WakeUp
from muster.protocol.tasks import EMPTY, TaskSet
from muster.worker.exchange import (
    Acknowledged,
    Action,
    AllStopped,
    Begin,
    CaughtUp,
    ClockMoved,
    Input,
    Lease,
    Lose,
    Read,
    Release,
    Released,
    Send,
    Take,
)
from muster.worker.session import ANYONE, Session

GROUP = GroupId("g")
TASKS = tuple(f"0_{n}" for n in range(4))
SESSION_MS, BEAT_MS = 2_000, 400
REBALANCE_MS = 2 * SESSION_MS
"""How long a member may leave a revocation unanswered; a coordinator may lag a session by then."""


class Coordinator(Protocol):
    """The coordinator of a world."""

    def take(self, events: Sequence[Event]) -> Sequence[object]:
        """A batch of the log, in its order; the answer is what is published."""

    def wake_ms(self) -> int | None:
        """When it wants a tick at the latest."""


@dataclass
class Entry:
    """What the small coordinator knows of a member."""

    incarnation: int
    heard_ms: int
    revision: int = 0
    assigned: TaskSet = EMPTY
    revoking: TaskSet = EMPTY
    revoke_revision: int = 0
    revoked_ms: int = 0


class SmallCoordinator:
    """Small, eager and correct: it gives a task away the moment the contract allows."""

    def __init__(self) -> None:
        self.members: dict[MemberId, Entry] = {}
        self.generation = 0

    def wake_ms(self) -> int | None:
        """It gives tasks away only when somebody speaks."""
        return None

    def take(self, events: Sequence[Event]) -> list[MemberAssignment | MemberGone]:
        """Event by event."""
        return [record for event in events for record in self._take(event)]

    def _take(self, event: Event) -> list[MemberAssignment | MemberGone]:
        records = self._expire(event.origin.at_ms)
        match event:
            case Join():
                records += self._join(event)
            case Leave():
                entry = self.members.get(event.member)
                if entry is not None and entry.incarnation == event.incarnation:
                    del self.members[event.member]
                    records.append(MemberGone(group=GROUP, member=event.member))
            case Report() | Heartbeat():
                records += self._hear(event)
        return records + self._place(event.origin.at_ms)

    def _expire(self, now_ms: int) -> list[MemberAssignment | MemberGone]:
        gone = [
            m
            for m, e in self.members.items()
            if now_ms >= e.heard_ms + SESSION_MS
            or (e.revoking and now_ms >= e.revoked_ms + REBALANCE_MS)
        ]
        for member in gone:
            del self.members[member]
        return [MemberGone(group=GROUP, member=member) for member in gone]

    def _join(self, event: Join) -> list[MemberAssignment | MemberGone]:
        entry = self.members.get(event.member)
        if entry is not None and entry.incarnation != event.incarnation:
            return [self._fault(event.member, event.incarnation, Fault.MEMBER_ID_IN_USE)]
        if entry is None:
            self.members[event.member] = Entry(event.incarnation, event.origin.at_ms)
            return [self._record(event.member)]
        entry.heard_ms = event.origin.at_ms
        return [self._record(event.member)]

    def _hear(self, event: Report | Heartbeat) -> list[MemberAssignment | MemberGone]:
        entry = self.members.get(event.member)
        if entry is None:
            return [self._fault(event.member, ANYONE, Fault.UNKNOWN_MEMBER_ID)]
        if isinstance(event, Report) and event.incarnation != entry.incarnation:
            return []
        entry.heard_ms = event.origin.at_ms
        if isinstance(event, Report) and event.revision >= entry.revoke_revision:
            entry.revoking = entry.revoking & event.holding.active
        return []

    def _place(self, now_ms: int) -> list[MemberAssignment | MemberGone]:
        names = sorted(self.members)
        if not names:
            return []
        held = EMPTY
        for entry in self.members.values():
            held = held | entry.assigned | entry.revoking
        records = []
        for position, name in enumerate(names):
            entry = self.members[name]
            target = TaskSet.of(TASKS[position :: len(names)])
            beyond, free = entry.assigned - target, target - held
            if beyond or free:
                self.generation += 1
                if beyond and not entry.revoking:
                    entry.revoked_ms = now_ms
                entry.assigned = (entry.assigned - beyond) | free
                entry.revoking = entry.revoking | beyond
                records.append(self._record(name))
                if beyond:
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


@dataclass
class Member:
    """A session, its clock, and what its task processes use."""

    name: MemberId
    rate: float
    seed: int
    session: Session = field(init=False)
    frozen_until: float = 0
    deaf_until: float = 0  # its reader hangs, all else works
    using: dict[str, float] = field(default_factory=dict)  # task -> since when
    lease_ends: float = 0
    guard_ends: float = 0

    def __post_init__(self) -> None:
        self.session = Session(Join(group=GROUP, member=self.name, incarnation=0), self.seed)

    def clock_ms(self, now: float) -> int:
        """What its clock shows at a true time."""
        return int(now * self.rate) + self.seed % 100_000

    def true(self, clock_ms: float) -> float:
        """The true time at which its clock shows this."""
        return (clock_ms - self.seed % 100_000) / self.rate


class World:
    """True time, a heap of what happens when, and everybody in it."""

    def __init__(self, rng: random.Random, count: int, coordinator: Coordinator) -> None:
        self.rng = rng
        self.now = 0.0
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.offsets = itertools.count()
        self.coordinator = coordinator
        self.batch: list[Event] = []
        self.tick_at = 0.0
        self.published: Mark | None = None
        self.away_until = 0.0  # the broker
        self.log_ready = 0.0  # appends and reads keep their order
        self.read_ready = 0.0
        self.members = [
            Member(MemberId(f"W{n}"), rng.uniform(0.995, 1.005), rng.getrandbits(60))
            for n in range(count)
        ]
        self.inboxes = dict.fromkeys((m.name for m in self.members), 0.0)
        self.owner_changes = 0
        self.overlaps: list[str] = []
        self.owner: dict[str, MemberId] = {}

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Put on the agenda."""
        heapq.heappush(self.agenda, (max(when, self.now), next(self.order), what))

    def run(self, until: float) -> None:
        """Let it happen."""
        while self.agenda and self.agenda[0][0] <= until:
            self.now, _, what = heapq.heappop(self.agenda)
            what()
            self.look()

    def look(self) -> None:
        """Whether a task is used by two."""
        for task in TASKS:
            users = [m.name for m in self.members if self.uses(m, task)]
            if len(users) > 1:
                self.overlaps.append(f"{task} by {users} at {self.now:.0f}")
            if users and self.owner.get(task) != users[0]:
                self.owner[task] = users[0]
                self.owner_changes += 1

    def uses(self, member: Member, task: str) -> bool:
        """Whether a task's process runs: started, not stopped, not ended by the guard."""
        return task in member.using and self.now < member.guard_ends

    def delay(self, usual: float) -> float:
        """Mostly usual, now and then ten times that."""
        return self.rng.expovariate(1 / usual) * (10 if self.rng.random() < 0.05 else 1)

    # ---- what members do

    def give(self, member: Member, given: Input) -> None:
        """A step; a frozen process takes it when it wakes."""
        if self.now < member.frozen_until:
            self.at(member.frozen_until, lambda: self.give(member, given))
            return
        for action in member.session.step(given, member.clock_ms(self.now)):
            self.act(member, action)
        deadline_ms = member.session.deadline_ms
        if deadline_ms is not None:
            due = member.true(deadline_ms) + 0.5
            self.at(due, lambda: self.tick(member, deadline_ms))

    def tick(self, member: Member, deadline_ms: int) -> None:
        """The clock of a member, if nothing else has come since."""
        if member.session.deadline_ms == deadline_ms:
            self.give(member, ClockMoved())

    def act(self, member: Member, action: Action) -> None:
        """Do what the session says."""
        match action:
            case Send():
                self.send(member, action)
            case Take(_, tasks):
                for task in map(str, tasks):
                    member.using[task] = self.now
            case Lease(until_ms, stop_ms):
                member.lease_ends = member.true(until_ms)
                member.guard_ends = member.true(until_ms + stop_ms * 4 // 5)
            case Release(role, tasks):
                self.at(self.now + self.delay(30), lambda: self.stopped(member, role, tasks))
            case Lose():
                if self.now < member.lease_ends:
                    member.using.clear()  # taken by the coordinator: killed at once
                self.at(max(self.now, member.guard_ends), lambda: self.all_stopped(member))
            case _:
                pass

    def stopped(self, member: Member, role: Role, tasks: TaskSet) -> None:
        """Tasks have stopped, unless the process is frozen before it could say so."""
        for task in map(str, tasks):
            member.using.pop(task, None)
        self.give(member, Released(role, tasks))

    def all_stopped(self, member: Member) -> None:
        """Everything has stopped after a loss."""
        member.using.clear()
        self.give(member, AllStopped())

    def send(self, member: Member, sent: Send) -> None:
        """To the log; the acknowledgement comes back later."""
        if isinstance(sent.event, LagReport):
            return

        def acknowledge() -> None:
            self.at(self.now + self.delay(8), lambda: self.give(member, Acknowledged(sent)))

        self.append(sent.event, acknowledge)
        if not isinstance(sent.event, Leave):
            answer = max(self.now + self.delay(8), self.away_until + self.delay(20))
            self.at(answer, lambda: self.look_at_end(member, sent.sent_ms))

    def look_at_end(self, member: Member, asked_ms: int) -> None:
        """The broker says where the partition ends; all of that is read when the reader has it."""
        has_read = max(self.now, self.inboxes[member.name])
        self.at(has_read, lambda: self.give(member, CaughtUp(asked_ms)))

    def append(self, event: Event, done: Callable[[], None]) -> None:
        """To the log, in order; read by the coordinator, in order."""
        appended = max(self.now + self.delay(8), self.away_until + self.delay(20), self.log_ready)
        self.log_ready = appended

        def arrive() -> None:
            self.read_ready = max(self.read_ready, self.now + self.delay(40))
            origin = Origin("muster.membership", 0, next(self.offsets), int(self.now))
            stamped = replace(event, origin=origin)
            self.at(self.read_ready, lambda: self.coordinate(stamped))
            done()

        self.at(appended, arrive)

    def coordinate(self, event: Event) -> None:
        """The coordinator reads an event; what comes within a moment is one batch."""
        if not self.batch:
            self.at(self.now + self.rng.choice((0, 5, 100)), self.advance)
        self.batch.append(event)

    def advance(self) -> None:
        """The coordinator takes a batch; its records reach their members in order."""
        events, self.batch = self.batch, []
        for record in self.coordinator.take(events):
            if isinstance(record, WakeUp):
                self.published = record.published
            if not isinstance(record, MemberAssignment | MemberGone):
                continue
            (member,) = (m for m in self.members if m.name == record.member)
            soonest = max(self.now + self.delay(10), self.away_until, member.deaf_until)
            arrives = max(soonest, self.inboxes[record.member])
            self.inboxes[record.member] = arrives
            self.at(arrives, lambda m=member, r=record: self.give(m, Read(r)))
        wake_ms = self.coordinator.wake_ms()
        if wake_ms is not None and not self.now < self.tick_at <= wake_ms:
            self.tick_at = max(wake_ms, self.now + 10)
            self.at(self.tick_at, self.write_tick)

    def write_tick(self) -> None:
        """The coordinator's clock writes a tick."""
        self.append(Tick(group=GROUP, published=self.published), lambda: None)

    # ---- what fate does

    def trouble(self) -> None:
        """Something goes wrong, and the next thing is put on the agenda."""
        member = self.rng.choice(self.members)
        match self.rng.randrange(4):
            case 0:
                member.frozen_until = self.now + self.rng.uniform(100, 2 * SESSION_MS)
                self.at(member.frozen_until, lambda: self.give(member, ClockMoved()))
            case 1:
                self.away_until = self.now + self.rng.uniform(100, 1.5 * SESSION_MS)
            case 2:
                lag_until = self.now + self.rng.uniform(100, SESSION_MS)
                self.read_ready = max(self.read_ready, lag_until)
            case 3:
                member.deaf_until = self.now + self.rng.uniform(100, 5 * SESSION_MS)
        self.at(self.now + self.rng.uniform(100, 1_500), self.trouble)

    # ---- how it begins

    def begin(self, trouble_at: float = 1_000) -> None:
        """Every member joins; trouble starts later."""
        for number, member in enumerate(self.members):
            self.at(number * 50.0, lambda m=member: self.give(m, Begin()))
        self.at(trouble_at, lambda: self.trouble())

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self.trouble = lambda: None  # type: ignore[method-assign]
