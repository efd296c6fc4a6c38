"""No two members use a task at once: sessions in a small world of delays, freezes and lost time.

The world has true time; every member has a boot-time clock that runs up to half a percent fast or
slow. Events take their time to the log, acknowledgements and records theirs back; brokers are away
for a while, members freeze, coordinators lag and give tasks away the moment they may. What a member
uses is what its guard would let it: until it has stopped, at the latest `stop_ms` after its lease.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.protocol.digest import Holding
from muster.protocol.events import Event, Heartbeat, Join, Leave, Origin, Report
from muster.protocol.ids import GroupId, MemberId, Role
from muster.protocol.records import Fault, MemberAssignment, MemberGone
from muster.protocol.tasks import EMPTY, TaskSet
from muster.worker.exchange import (
    Acknowledged,
    Action,
    AllStopped,
    Begin,
    ClockMoved,
    Input,
    Lease,
    LeaveAsked,
    Lose,
    Read,
    Release,
    Released,
    Send,
    Take,
)
from muster.worker.session import ANYONE, Session
from muster.worker.states import State

GROUP = GroupId("g")
TASKS = tuple(f"0_{n}" for n in range(4))
SESSION_MS, BEAT_MS = 2_000, 400


@dataclass
class Entry:
    """What the small coordinator knows of a member."""

    incarnation: int
    heard_ms: int
    revision: int = 0
    assigned: TaskSet = EMPTY
    revoking: TaskSet = EMPTY
    revoke_revision: int = 0


class Coordinator:
    """Small, eager and correct: it gives a task away the moment the contract allows."""

    def __init__(self) -> None:
        self.members: dict[MemberId, Entry] = {}
        self.generation = 0

    def take(self, event: Event) -> list[MemberAssignment | MemberGone]:
        """One event of the log, in its order; the answer is what is published."""
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
        return records + self._place()

    def _expire(self, now_ms: int) -> list[MemberAssignment | MemberGone]:
        gone = [m for m, e in self.members.items() if now_ms >= e.heard_ms + SESSION_MS]
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

    def _place(self) -> list[MemberAssignment | MemberGone]:
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

    def __init__(self, rng: random.Random, count: int) -> None:
        self.rng = rng
        self.now = 0.0
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.coordinator = Coordinator()
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
        """To the log, in order; the acknowledgement comes back later."""
        appended = max(self.now + self.delay(8), self.away_until + self.delay(20), self.log_ready)
        self.log_ready = appended

        def append() -> None:
            at_ms = int(self.now)
            self.read_ready = max(self.read_ready, self.now + self.delay(40))
            origin = Origin("m", 0, next(self.order), at_ms)
            event = replace(sent.event, origin=origin)
            self.at(self.read_ready, lambda: self.coordinate(event))
            self.at(self.now + self.delay(8), lambda: self.give(member, Acknowledged(sent)))

        self.at(appended, append)

    def coordinate(self, event: Event) -> None:
        """The coordinator reads an event; its records reach their members in order."""
        for record in self.coordinator.take(event):
            (member,) = (m for m in self.members if m.name == record.member)
            arrives = max(self.now + self.delay(10), self.away_until, self.inboxes[record.member])
            self.inboxes[record.member] = arrives
            self.at(arrives, lambda m=member, r=record: self.give(m, Read(r)))

    # ---- what fate does

    def trouble(self) -> None:
        """Something goes wrong, and the next thing is put on the agenda."""
        member = self.rng.choice(self.members)
        match self.rng.randrange(3):
            case 0:
                member.frozen_until = self.now + self.rng.uniform(100, 2 * SESSION_MS)
                self.at(member.frozen_until, lambda: self.give(member, ClockMoved()))
            case 1:
                self.away_until = self.now + self.rng.uniform(100, 1.5 * SESSION_MS)
            case 2:
                self.read_ready = self.now + self.rng.uniform(100, SESSION_MS)
        self.at(self.now + self.rng.uniform(100, 1_500), self.trouble)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4))
def test_no_task_has_two_users(seed: int, count: int) -> None:
    """Whatever goes wrong, no two members use one task at one moment of true time."""
    world = World(random.Random(seed), count)
    for number, member in enumerate(world.members):
        world.at(number * 50.0, lambda m=member: world.give(m, Begin()))
    world.at(1_000, world.trouble)
    world.run(20_000)
    assert world.overlaps == []


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4))
def test_after_the_trouble_everything_is_owned_again(seed: int, count: int) -> None:
    """When nothing goes wrong any more, every task is used and every session well."""
    world = World(random.Random(seed), count)
    for number, member in enumerate(world.members):
        world.at(number * 50.0, lambda m=member: world.give(m, Begin()))
    world.at(1_000, world.trouble)
    world.run(8_000)
    world.trouble = lambda: None  # type: ignore[method-assign]
    world.run(30_000)
    assert {m.session.state for m in world.members} == {State.MEMBER}
    assert [t for t in TASKS if not any(world.uses(m, t) for m in world.members)] == []
    for member in world.members:
        assert member.session.holding == Holding(active=TaskSet.of(member.using))
    assert world.overlaps == []


def test_the_world_is_troubled_enough() -> None:
    """The property above is not empty: tasks change hands often, sessions are lost and regained."""
    world = World(random.Random(7), 3)
    for member in world.members:
        world.at(0, lambda m=member: world.give(m, Begin()))
    world.at(1_000, world.trouble)
    world.run(60_000)
    assert world.owner_changes > 30
    assert len({m.session.incarnation for m in world.members} & {0}) == 0
    assert world.coordinator.generation > 30


def test_leaving_in_trouble() -> None:
    """A member that leaves a troubled group ends, and its tasks are somebody else's."""
    world = World(random.Random(3), 2)
    for member in world.members:
        world.at(0, lambda m=member: world.give(m, Begin()))
    world.at(1_000, world.trouble)
    world.run(5_000)
    world.trouble = lambda: None  # type: ignore[method-assign]
    world.give(world.members[0], LeaveAsked())
    world.run(20_000)
    assert world.members[0].session.state is State.ENDED
    assert sorted(world.members[1].using) == sorted(TASKS)
    assert world.overlaps == []
