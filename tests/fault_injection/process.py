"""A simulated worker's process: the real `Session`, a clock of its own, and tasks in use.

The process's clock runs up to 1 % fast or slow, and tasks take time to stop. An active counts as in
use from the session's `Take` until it has stopped, the process has ended, or the lease and the
whole time for stopping have passed. So a process uses its tasks for as long as the rules allow.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from muster.protocol.events import Event, Join, Lag, LagReport, Leave
from muster.protocol.ids import MemberId, Role, Task
from muster.protocol.tasks import TaskSet
from muster.simulation.log import GROUP, MemberRecord, delay
from muster.simulation.trace import tasks_text
from muster.worker.session import Session
from muster.worker.session_messages import (
    Acknowledged,
    Action,
    AllStopped,
    Begin,
    CaughtUp,
    ClockMoved,
    End,
    Input,
    LagsKnown,
    Lease,
    LeaveAsked,
    Lose,
    Read,
    Ready,
    Release,
    Released,
    Send,
    Take,
)
from muster.worker.session_steps import State

if TYPE_CHECKING:
    from fault_injection.fault_run import FaultRun

DRIFT = 0.01
"""Greatest difference between the rates of a process' clock and of true time."""
FOREVER = float("inf")
TELLS = (("ready",), ("lag",), ("lag", "ready"))
"""How a process reports that a copy has caught up."""


class Process:
    """One process.

    Attributes:
        name: member id.
        identity: instance id of a static member, else its member id.
        using: actives that it has taken and not stopped.
        guard_ends: true time at which the guard has killed every task.
        stop_ms: how long stopping takes.
    """

    def __init__(
        self,
        simulation: FaultRun,
        name: str,
        number: int,
        rng: Random,
        *,
        instance_id: str | None = None,
        static: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.identity = instance_id or name
        self.number = number
        self.alive = True
        self.using: set[Task] = set()
        self.guard_ends = FOREVER
        self.stop_ms = 30
        self.frozen_until = self.deaf_until = self.sent_until = 0.0
        self.newest: Event | None = None
        self._simulation = simulation
        self._rng = rng
        self._rate = 1 + rng.choice((-DRIFT, DRIFT, rng.uniform(-DRIFT, DRIFT)))
        self._offset = rng.randrange(10**9)
        self._stopped_by: float = 0.0
        self._alarm_ms: int | None = None
        self._inbox: deque[MemberRecord] = deque()
        self._arrived = 0  # records written to its partition
        self._read = 0  # records that the session has read
        self._ends: list[tuple[int, int]] = []  # (end offset, when it was asked for)
        join = Join(
            group=GROUP,
            member=MemberId(name),
            incarnation=0,
            instance_id=instance_id,
            capacity=rng.choice((1, 1, 2)),
            static=static,
        )
        self._tells = rng.choice(TELLS)
        self.session = Session(join, rng.getrandbits(62))
        begins = simulation.now + delay(rng, 5)
        simulation.at(begins, lambda: self.give(Begin(simulation.offers_apart(self))))

    # ------------------------------------------------------------------------------------- time

    def clock_ms(self) -> int:
        """The time on its clock."""
        return int(self._simulation.now * self._rate) + self._offset

    def _true(self, clock_ms: float) -> float:
        return (clock_ms - self._offset) / self._rate

    @property
    def is_frozen(self) -> bool:
        """Whether it is suspended now."""
        return self._simulation.now < self.frozen_until

    # ----------------------------------------------------------------------------------- inputs

    def give(self, session_input: Input) -> None:
        """Give the session an input; a frozen process takes it when it resumes."""
        if not self.alive:
            return
        if self.is_frozen:
            self._simulation.at(self.frozen_until, lambda: self.give(session_input))
            return
        for action in self.session.step(session_input, self.clock_ms()):
            self._act(action)
        deadline_ms = self.session.deadline_ms
        if deadline_ms is not None and deadline_ms != self._alarm_ms:
            self._alarm_ms = deadline_ms
            self._simulation.at(self._true(deadline_ms) + 0.5, lambda: self._alarm(deadline_ms))

    def _alarm(self, alarm_ms: int) -> None:
        if self._alarm_ms != alarm_ms:
            return
        if self.session.deadline_ms == alarm_ms and self.clock_ms() >= alarm_ms:
            self._alarm_ms = None
            self.give(ClockMoved())
        elif self.session.deadline_ms == alarm_ms:
            self._simulation.at(self._simulation.now + 1, lambda: self._alarm(alarm_ms))

    def deliver(self, record: MemberRecord) -> None:
        """A record was written to the process' partition; the process reads it later, in order."""
        self._arrived += 1
        self._inbox.append(record)
        self._simulation.at(
            max(self._simulation.now + delay(self._rng, 6), self.deaf_until), self._take_in
        )

    def _take_in(self) -> None:
        if not self.alive or not self._inbox:
            return
        later = max(self.deaf_until, self.frozen_until)
        if self._simulation.now < later:
            self._simulation.at(later, self._take_in)
            return
        self._read += 1
        self.give(Read(self._inbox.popleft()))
        self._look_at_ends()

    def _look_at_ends(self) -> None:
        reached = [asked for end, asked in self._ends if end <= self._read]
        if reached:
            self._ends = [pair for pair in self._ends if pair[0] > self._read]
            self.give(CaughtUp(max(reached)))

    # ---------------------------------------------------------------------------------- actions

    def _act(self, action: Action) -> None:
        match action:
            case Send():
                self._send(action)
            case Take(role, tasks, record):
                if role is Role.ACTIVE:
                    self._simulation.granted(self, tasks, (record.generation, record.epoch))
                self._take(role, tasks)
            case Lease(until_ms, stop_ms):
                before, self.guard_ends = self.guard_ends, self._true(until_ms + stop_ms)
                self._stopped_by = stop_ms
                if before <= self._simulation.now < self.guard_ends and self.using:
                    self._simulation.uses(self, None)
            case Release(role, tasks):
                after = self.stop_ms if self.stop_ms > 100 else delay(self._rng, self.stop_ms)
                number = self.session.incarnation
                released = self._simulation.now + after
                self._simulation.at(released, lambda: self._release(number, role, tasks))
            case Lose(reason):
                self._lose(reason)
            case End():
                self.die(f"{self} ends: {action.message}")
            case _:
                pass

    def _send(self, sent: Send) -> None:
        self.newest = sent.event
        done = partial(self.give, Acknowledged(sent))
        self._simulation.write_event(self, sent, done)
        if isinstance(sent.event, Leave | LagReport):
            return

        def answer(end: int) -> None:
            if self.alive:
                self._ends.append((end, sent.sent_ms))
                self._look_at_ends()

        self._simulation.end_of(self, answer)

    @property
    def position(self) -> int:
        """End offset of its partition, counted from where its reader began."""
        return self._arrived

    def _take(self, role: Role, tasks: TaskSet) -> None:
        if self._simulation.is_traced:
            self._simulation.trace_line(f"{self} takes {tasks_text(tasks)} ({role})")
        if role is Role.ACTIVE:
            self.using |= set(tasks)
            self._simulation.uses(self, tasks)
            return
        number = self.session.incarnation
        restored = self._simulation.now + self._rng.choice((20, 200, 800))
        self._simulation.at(restored, lambda: self._restore(number, tasks))

    def _restore(self, number: int, tasks: TaskSet) -> None:
        if self.session.incarnation != number or self.session.state is not State.MEMBER:
            return
        if "lag" in self._tells:
            self.give(LagsKnown(tuple(Lag(task, 0) for task in tasks)))
        if "ready" in self._tells:
            self.give(Ready(tasks))

    def _release(self, number: int, role: Role, tasks: TaskSet) -> None:
        if not self.alive:
            return
        if self.is_frozen:
            self._simulation.at(self.frozen_until, lambda: self._release(number, role, tasks))
            return
        if self.session.incarnation == number and self.session.record is not None:
            if self._simulation.is_traced:
                self._simulation.trace_line(f"{self} has stopped {tasks_text(tasks)} ({role})")
            if role is Role.ACTIVE:
                self.using -= set(tasks)
            self.give(Released(role, tasks))

    def _lose(self, reason: str) -> None:
        if self._simulation.is_traced:
            self._simulation.trace_line(f"{self} loses everything: {reason}")
        left = max(0.0, min(self.guard_ends - self._simulation.now, self._stopped_by))
        after = left * self._rng.choice((0, 1, self._rng.random()))
        incarnation = self.session.incarnation
        self._simulation.at(self._simulation.now + after, lambda: self._lost(incarnation))

    def _lost(self, incarnation: int) -> None:
        if not self.alive or self.session.incarnation != incarnation:
            return
        if self.is_frozen:
            self._simulation.at(self.frozen_until, lambda: self._lost(incarnation))
            return
        self.using.clear()
        self.guard_ends = FOREVER
        self.give(AllStopped())

    # ------------------------------------------------------------------------------- its end

    def stop(self, *, temporary: bool) -> None:
        """Ask the process to end."""
        self.give(LeaveAsked(temporary))

    def die(self, line: str) -> None:
        """The process ends with all its tasks; `line` says so in the trace."""
        if self.alive and self._simulation.is_traced:
            self._simulation.trace_line(line)
        self.alive = False
        self.using.clear()

    def __str__(self) -> str:
        return self.name if self.number == 1 else f"{self.name} (process {self.number})"
