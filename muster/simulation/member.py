"""A simulated member: honest, with a mind for two delays only.

It does what every record says: what the record adds it holds at once, what it lacks it releases
after `ack_ms` and then reports, and with a learner it is ready after `restore_ms`. It heartbeats.
It knows no network and no chance: whoever plays it decides what it reads and when.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from muster.protocol.digest import Holding
from muster.protocol.events import Event, Heartbeat, Join, Leave, Report
from muster.protocol.ids import Role, Task
from muster.protocol.records import Fault, MemberAssignment, MemberGone
from muster.protocol.tasks import TaskSet

RETRY_MS = 1_000
_RETRIED = (
    Fault.UNRELEASED_INSTANCE_ID,
    Fault.MEMBER_ID_IN_USE,
    Fault.GROUP_MAX_SIZE_REACHED,
)
_ANYBODY = 0


@dataclass(slots=True)
class SimulatedMember:
    """One process.

    Attributes:
        join: what it says of itself.
        ack_ms: how long a release takes.
        restore_ms: how long a learner restores; None = until told.
        heartbeat_ms: how often it says that it is alive.
        held: role → what it holds, what is being released included.
        ready: learners that have caught up.
        releasing: (role, task) → when it will have let go.
        restoring: task → when its learner will be ready.
        alive: whether the process runs.
        crashed: whether it ended without a word, which nobody knows before its session is over.
        member: whether the group has answered its join.
    """

    join: Join
    ack_ms: int = 0
    restore_ms: int | None = 0
    heartbeat_ms: int = 3_000
    held: dict[Role, set[Task]] = field(default_factory=lambda: {role: set() for role in Role})
    ready: set[Task] = field(default_factory=set)
    releasing: dict[tuple[Role, Task], int] = field(default_factory=dict)
    restoring: dict[Task, int] = field(default_factory=dict)
    alive: bool = True
    crashed: bool = False
    member: bool = False
    epoch: int = 0
    seen: tuple[int, int] = (-1, -1)
    retry_ms: int | None = None
    asked: bool = False

    @property
    def id(self) -> str:
        """The member id."""
        return self.join.member

    @property
    def is_heard(self) -> bool:
        """Whether it heartbeats: it runs, and was not turned away."""
        return self.alive and self.retry_ms is None

    def holding(self) -> Holding:
        """What it would report now."""
        return Holding(
            active=TaskSet.of(self.held[Role.ACTIVE]),
            standby=TaskSet.of(self.held[Role.STANDBY]),
            learner=TaskSet.of(self.held[Role.LEARNER]),
            ready=TaskSet.of(self.ready),
            releasing=TaskSet.of({task for _, task in self.releasing}),
        )

    def claim(self, holding: Holding) -> None:
        """Start with this in its hands."""
        self.held[Role.ACTIVE] |= set(holding.active)
        self.held[Role.STANDBY] |= set(holding.standby)
        self.held[Role.LEARNER] |= set(holding.learner)
        self.ready |= set(holding.ready)

    def joining(self) -> Join:
        """The join it writes now."""
        self.retry_ms = None
        return replace(self.join, holding=self.holding())

    def heartbeat(self) -> Heartbeat:
        """The heartbeat it writes now."""
        return Heartbeat(
            group=self.join.group,
            member=self.join.member,
            epoch=self.epoch,
            digest=self.holding().digest(),
        )

    def report(self) -> Report:
        """The report it writes now."""
        return Report(
            group=self.join.group,
            member=self.join.member,
            incarnation=self.join.incarnation,
            epoch=self.epoch,
            revision=self.seen[1],
            holding=self.holding(),
        )

    def leave(self, *, temporary: bool = False) -> Leave:
        """Stop everything and go."""
        self.drop()
        self.alive = self.member = False
        return Leave(
            group=self.join.group,
            member=self.join.member,
            incarnation=self.join.incarnation,
            temporary=temporary,
        )

    def drop(self) -> None:
        """Hold nothing."""
        for role in Role:
            self.held[role].clear()
        self.ready.clear()
        self.releasing.clear()
        self.restoring.clear()

    def read(self, record: MemberAssignment | MemberGone, now_ms: int) -> list[Event]:
        """Obey a record; returns what it writes at once."""
        if isinstance(record, MemberGone):
            return self.start_over() if self.member else []
        if record.incarnation not in (self.join.incarnation, _ANYBODY):
            return []
        if record.coordinator_epoch < self.seen[0]:
            return []
        if record.fault is not None:
            return self._turned_away(record.fault, now_ms)
        order = (record.coordinator_epoch, record.revision)
        if order <= self.seen:
            return [self.report()] if record.report else []
        newer = record.revision > self.seen[1]
        self.seen = (order[0], max(self.seen[1], record.revision))
        if newer:
            self._obey(record, now_ms)
        self.asked |= record.report
        return [self.report()] if self.asked and self._done_asking() else []

    def _obey(self, record: MemberAssignment, now_ms: int) -> None:
        self.member, self.epoch, self.retry_ms = True, record.epoch, None
        for role, tasks in zip(Role, (record.active, record.standby, record.learner), strict=True):
            wanted = set(tasks)
            for task in self.held[role] - wanted:
                self.releasing.setdefault((role, task), now_ms + self.ack_ms)
            for task in wanted:
                self.releasing.pop((role, task), None)
            if role is Role.LEARNER and self.restore_ms is not None:
                for task in wanted - self.held[role]:
                    self.restoring[task] = now_ms + self.restore_ms
            self.held[role] |= wanted

    def _done_asking(self) -> bool:
        self.asked = False
        return True

    def _turned_away(self, fault: Fault, now_ms: int) -> list[Event]:
        if fault in _RETRIED:
            if not self.member:
                self.retry_ms = now_ms + RETRY_MS
            return []
        if fault is Fault.FENCED_INSTANCE_ID:
            self.drop()
            self.alive = self.member = False
            return []
        return self.start_over() if self.member or fault is Fault.FENCED_MEMBER_EPOCH else []

    def start_over(self) -> list[Event]:
        """Drop everything and join as a new process would; the old session is said goodbye to."""
        goodbye = self.leave()
        self.alive = True
        self.join = replace(self.join, incarnation=self.join.incarnation + 1)
        self.seen = (self.seen[0], -1)
        self.epoch = 0
        return [goodbye, self.joining()]

    @property
    def next_ms(self) -> int | None:
        """When it will do something by itself, heartbeats aside."""
        if not self.releasing and not self.restoring and self.retry_ms is None:
            return None
        times = [*self.releasing.values(), *self.restoring.values()]
        if self.retry_ms is not None:
            times.append(self.retry_ms)
        return min(times, default=None) if self.alive else None

    def is_due(self, now_ms: int) -> bool:
        """Whether it does something by itself by now."""
        at_ms = self.next_ms
        return at_ms is not None and at_ms <= now_ms

    def act(self, now_ms: int) -> list[Event]:
        """Do what is due; returns what it writes."""
        if not self.alive:
            return []
        written: list[Event] = []
        if self.retry_ms is not None and self.retry_ms <= now_ms:
            written.append(self.joining())
        caught_up = {task for task, at_ms in self.restoring.items() if at_ms <= now_ms}
        for task in caught_up:
            del self.restoring[task]
        news = self.mark_ready(caught_up)
        due = [key for key, at_ms in self.releasing.items() if at_ms <= now_ms]
        for role, task in due:
            del self.releasing[role, task]
            self.held[role].discard(task)
            if role is Role.LEARNER:
                self.ready.discard(task)
                self.restoring.pop(task, None)
        if news or (due and not self.releasing):
            written.append(self.report())
        return written

    def mark_ready(self, tasks: set[Task]) -> bool:
        """These learners have caught up; whether that was new."""
        new = (tasks & self.held[Role.LEARNER]) - self.ready
        self.ready |= new
        return bool(new)
