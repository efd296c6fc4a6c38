"""A simulated member: a process that obeys every record.

The member holds the tasks that a record adds at once. It stops tasks that a record lacks: the first
takes `ack_ms`, each further one `ack_step_ms` more. It reports stopped tasks, gathered for 50 ms. A
copy, standby or learner, restores for `restore_ms`; then the member reports it ready. A member with
`tells` = `LAG` reports lags instead: one when a copy or an active begins to restore, and 0 when it
has caught up. Members send heartbeats. They have no network and no randomness: the
`SimulatedGroup` decides what a member reads, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from muster.protocol.digest import Holding
from muster.protocol.events import Event, Heartbeat, Join, Lag, Leave, Report
from muster.protocol.ids import Role, Task
from muster.protocol.records import Fault, MemberAssignment, MemberGone
from muster.protocol.tasks import TaskSet
from muster.simulation.disk import Disk
from muster.worker.holdings import tasks_by_role
from muster.worker.session_steps import GATHER_MS

RETRY_MS = 1_000
READY, LAG = "ready", "lag"
TELLS = (READY, LAG)
"""How a member reports that a copy has caught up: as ready, or by its lag."""
_RETRIED = (
    Fault.UNRELEASED_INSTANCE_ID,
    Fault.MEMBER_ID_IN_USE,
    Fault.GROUP_MAX_SIZE_REACHED,
    Fault.GROUP_ID_NOT_FOUND,
)
_ANYBODY = 0


@dataclass(slots=True)
class SimulatedMember:
    """One process.

    Attributes:
        join: its own settings.
        ack_ms: how long the first task of a release takes to stop.
        ack_step_ms: how much longer each further task of the same release takes.
        restore_ms: how long a copy restores; None = until a `Ready` event.
        heartbeat_ms: heartbeat interval.
        tells: how it reports that a copy has caught up: `READY` or `LAG`.
        has_state: returns whether a task already has a changelog, which an active must restore.
        held: role → tasks it holds, including those being released.
        disk: its copies.
        releasing: (role, task) → when it will have stopped.
        stopped_ms: when the first task stopped that is not reported yet; None = there is none.
        alive: whether the process runs.
        crashed: whether it ended without a leave; the coordinator learns that when its session
            ends.
        member: whether the coordinator has admitted it.
        now_ms: its clock, which the world moves.
    """

    join: Join
    ack_ms: int = 0
    restore_ms: int | None = 0
    heartbeat_ms: int = 3_000
    ack_step_ms: int = 0
    tells: str = READY
    has_state: Callable[[Task], bool] = lambda task: False
    held: dict[Role, set[Task]] = field(default_factory=lambda: {role: set() for role in Role})
    disk: Disk = field(default_factory=Disk)
    releasing: dict[tuple[Role, Task], int] = field(default_factory=dict)
    stopped_ms: int | None = None
    alive: bool = True
    crashed: bool = False
    member: bool = False
    epoch: int = 0
    seen: tuple[int, int] = (-1, -1)
    retry_ms: int | None = None
    now_ms: int = 0

    def __post_init__(self) -> None:
        """Give the disk the member's restore time."""
        self.disk.restore_ms = self.restore_ms

    @property
    def id(self) -> str:
        """The member id."""
        return self.join.member

    @property
    def is_heard(self) -> bool:
        """Whether it sends heartbeats: it runs, and the coordinator has admitted it."""
        return self.alive and self.member

    @property
    def ready(self) -> set[Task]:
        """Copies that it reports as ready."""
        if self.tells == LAG:
            return set()
        return self.disk.caught_up & (self.held[Role.STANDBY] | self.held[Role.LEARNER])

    def holding(self) -> Holding:
        """What it holds, as a report has it."""
        return Holding(
            active=TaskSet.of(self.held[Role.ACTIVE]),
            standby=TaskSet.of(self.held[Role.STANDBY]),
            learner=TaskSet.of(self.held[Role.LEARNER]),
            ready=TaskSet.of(self.ready),
            releasing=TaskSet.of({task for _, task in self.releasing}),
        )

    def claim(self, holding: Holding) -> None:
        """Start with these tasks."""
        self.held[Role.ACTIVE] |= set(holding.active)
        self.held[Role.STANDBY] |= set(holding.standby)
        self.held[Role.LEARNER] |= set(holding.learner)
        self.disk.caught_up |= set(holding.active) | set(holding.ready)

    def joining(self) -> Join:
        """The join it writes now."""
        self.retry_ms = None
        lags = {lag.task: lag for lag in self.join.lags}
        if self.tells == LAG:
            lags |= {lag.task: lag for lag in self._lags([*self.disk.left])}
        reported = tuple(lags[task] for task in sorted(lags))
        return replace(self.join, holding=self.holding(), lags=reported)

    def heartbeat(self) -> Heartbeat:
        """The heartbeat it writes now."""
        return Heartbeat(
            group=self.join.group,
            member=self.join.member,
            epoch=self.epoch,
            digest=self.holding().digest(),
        )

    def report(self, changed: Iterable[Task] = ()) -> Report:
        """The report it writes now, with the lags of tasks whose lag has changed."""
        self.stopped_ms = None
        return Report(
            group=self.join.group,
            member=self.join.member,
            incarnation=self.join.incarnation,
            epoch=self.epoch,
            revision=self.seen[1],
            holding=self.holding(),
            lags=self._lags(changed) if self.tells == LAG else (),
        )

    def _lags(self, tasks: Iterable[Task]) -> tuple[Lag, ...]:
        behind = self.disk.behind
        return tuple(Lag(task, behind(task, self.now_ms)) for task in sorted(tasks))

    def leave(self, *, temporary: bool = False) -> Leave:
        """Stop everything and end; return the leave it writes."""
        self.drop()
        self.alive = self.member = False
        return Leave(
            group=self.join.group,
            member=self.join.member,
            incarnation=self.join.incarnation,
            temporary=temporary,
        )

    def drop(self) -> None:
        """Stop all tasks at once; their state stays on the disk."""
        for role in Role:
            self.held[role].clear()
        self.releasing.clear()
        self.stopped_ms = None
        self.disk.stop(self.now_ms)

    def read(self, record: MemberAssignment | MemberGone, now_ms: int) -> list[Event]:
        """Read a record; return the events it writes at once."""
        self.now_ms = now_ms
        if isinstance(record, MemberGone):
            return self.start_over() if self.member else []
        if record.incarnation not in (self.join.incarnation, _ANYBODY):
            return []
        if record.coordinator_epoch < self.seen[0]:
            return []
        if record.fault is not None:
            return self._take_fault(record.fault, now_ms)
        order = (record.coordinator_epoch, record.revision)
        if order <= self.seen:
            return [self.report()] if record.report else []
        newer = record.revision > self.seen[1]
        self.seen = (order[0], max(self.seen[1], record.revision))
        begun = self._obey(record) if newer else set[Task]()
        return [self.report(begun)] if record.report or self._is_news(begun) else []

    def _obey(self, record: MemberAssignment) -> set[Task]:
        """Act on an assignment; return tasks that have a copy now and had none before."""
        self.member, self.epoch, self.retry_ms = True, record.epoch, None
        assigned = {role: set(tasks) for role, tasks in tasks_by_role(record).items()}
        self._switch(assigned)
        self._stop(assigned)
        begun: set[Task] = set()
        for role in Role:
            for task in sorted(assigned[role]):
                self.releasing.pop((role, task), None)
                if task not in self.held[role]:
                    self.held[role].add(task)
                    begun |= {task} if self._starts(role, task) else set()
        return begun

    def _switch(self, assigned: dict[Role, set[Task]]) -> None:
        """Copies that change their role keep their state: they are not stopped or released."""
        for role in (Role.STANDBY, Role.LEARNER):
            for other in Role:
                if other is not role:
                    for task in (self.held[role] - assigned[role]) & assigned[other]:
                        self.held[role].discard(task)
                        self.releasing.pop((role, task), None)

    def _stop(self, assigned: dict[Role, set[Task]]) -> None:
        surplus = [
            (role, task) for role in Role for task in sorted(self.held[role] - assigned[role])
        ]
        to_stop = [pair for pair in surplus if pair not in self.releasing]
        for nth, pair in enumerate(to_stop):
            self.releasing[pair] = self.now_ms + self.ack_ms + nth * self.ack_step_ms

    def _starts(self, role: Role, task: Task) -> bool:
        """A task starts in a role. Return whether it has a copy now and had none before."""
        if role is Role.ACTIVE and not self.has_state(task):
            self.disk.create(task)
            return False
        return self.disk.open(task, self.now_ms)

    def _is_news(self, copies: set[Task]) -> bool:
        """Whether the state of these copies must be reported."""
        return bool(copies) if self.tells == LAG else bool(copies & self.ready)

    def _take_fault(self, fault: Fault, now_ms: int) -> list[Event]:
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
        """Drop everything, leave, and join under a new incarnation."""
        leave = self.leave()
        self.alive = True
        self.join = replace(self.join, incarnation=self.join.incarnation + 1)
        self.seen = (self.seen[0], -1)
        self.epoch = 0
        return [leave, self.joining()]

    @property
    def next_ms(self) -> int | None:
        """When it next acts by itself, apart from heartbeats."""
        if not self.alive:
            return None
        times = [self.disk.next_ms, self.retry_ms, min(self.releasing.values(), default=None)]
        if self.stopped_ms is not None:
            times.append(self.stopped_ms + GATHER_MS)
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def is_due(self, now_ms: int) -> bool:
        """Whether it acts by itself now."""
        at_ms = self.next_ms
        return at_ms is not None and at_ms <= now_ms

    def act(self, now_ms: int) -> list[Event]:
        """Do what is due; return the events it writes."""
        if not self.alive:
            return []
        self.now_ms = now_ms
        written: list[Event] = []
        if self.retry_ms is not None and self.retry_ms <= now_ms:
            written.append(self.joining())
        caught_up = self.disk.catch_up(now_ms)
        is_news = self._is_news(caught_up)
        self._finish_releases()
        stopped_ms = self.stopped_ms
        gathered = stopped_ms is not None and (
            not self.releasing or stopped_ms + GATHER_MS <= now_ms
        )
        if is_news or gathered:
            written.append(self.report(caught_up))
        return written

    def _finish_releases(self) -> None:
        due = [pair for pair, at_ms in self.releasing.items() if at_ms <= self.now_ms]
        for role, task in due:
            del self.releasing[role, task]
            self.held[role].discard(task)
            if not any(task in held for held in self.held.values()):
                self.disk.close([task], self.now_ms)
        if due and self.stopped_ms is None:
            self.stopped_ms = self.now_ms

    def mark_ready(self, tasks: set[Task]) -> bool:
        """These copies have caught up. Return whether one of them had not before."""
        copies = self.held[Role.STANDBY] | self.held[Role.LEARNER]
        newly_ready = (tasks & copies) - self.disk.caught_up
        for task in newly_ready:
            self.disk.create(task)
        return bool(newly_ready)
