"""A worker's process in an ordeal: the real `Session`, a clock of its own, and tasks in use.

Its clock runs up to a hundredth fast or slow. What it is asked to stop takes its time. What it uses
is what its guard would let it: an active counts as in use from the moment the session says `Take`
until it has stopped, its process is dead, or the lease and the whole time kept back for stopping
are over. So a process uses its tasks for as long as the contract allows, and not a moment less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from muster.protocol.events import Event, Join, Lag, LagReport, Leave
from muster.protocol.ids import GroupId, MemberId, Role, Task
from muster.protocol.tasks import TaskSet
from muster.simulation.faults import PINNED, STATIC
from muster.simulation.kafka import MemberRecord
from muster.simulation.story import named
from muster.worker.exchange import (
    Acknowledged,
    Action,
    AllStopped,
    Begin,
    CaughtUp,
    ClockMoved,
    End,
    Input,
    Lease,
    LeaveAsked,
    Lose,
    Read,
    Ready,
    Release,
    Released,
    Restored,
    Send,
    Take,
)
from muster.worker.session import Session
from muster.worker.states import State

GROUP = GroupId("g")
DRIFT = 0.01
"""How much faster or slower than true time a process' clock runs at most."""
FOREVER = float("inf")
TELLS = (("ready",), ("lag",), ("lag", "ready"))
"""How a process tells that a copy, a standby or a learner, has caught up."""
RARELY = 0.03
"""How often something takes ten times as long as usual."""


def delay(chance: Random, usual: float) -> float:
    """Mostly about as usual, now and then ten times that; milliseconds."""
    times = 10 if chance.random() < RARELY else 1
    return 0.5 + chance.expovariate(1 / usual) * times


class Around(Protocol):
    """What a process needs of the world it is in."""

    now: float

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Let something happen later."""

    def write(self, sender: Process, event: Event, done: Callable[[], None]) -> None:
        """Write an event; `done` when Kafka has acknowledged it."""

    def end_of(self, sender: Process, answer: Callable[[int], None]) -> None:
        """Ask where the process' partition ends."""

    def uses(self, user: Process, tasks: TaskSet | None) -> None:
        """The process uses these from now on; None = what it used, again."""

    def granted(self, user: Process, tasks: TaskSet, token: tuple[int, int]) -> None:
        """The process is given these, with that fencing token (generation, epoch)."""

    def tell(self, text: str) -> None:
        """A line for the story."""

    @property
    def is_told(self) -> bool:
        """Whether anybody listens to the story."""


class Process:
    """One process.

    Attributes:
        name: member id.
        using: actives in use, as far as it has not stopped or its guard has not ended them.
        guard_ends: true time at which the guard has ended everything.
        stop_ms: how long stopping takes.
    """

    def __init__(self, around: Around, name: str, number: int, chance: Random) -> None:
        self.name = name
        self.number = number
        self.alive = True
        self.using: set[Task] = set()
        self.guard_ends = FOREVER
        self.stop_ms = 30
        self.frozen_until = self.deaf_until = self.sent_until = 0.0
        self.newest: Event | None = None
        self._around = around
        self._chance = chance
        self._rate = 1 + chance.choice((-DRIFT, DRIFT, chance.uniform(-DRIFT, DRIFT)))
        self._offset = chance.randrange(10**9)
        self._stopped_by: float = 0.0
        self._wanted: int | None = None
        self._inbox: deque[MemberRecord] = deque()
        self._read = self._arrived = 0  # records given to the session, records on their way too
        self._ends: list[tuple[int, int]] = []  # (end of the partition, when it was asked for)
        join = Join(
            group=GROUP,
            member=MemberId(name),
            incarnation=0,
            instance_id=f"i-{name}" if name in STATIC else None,
            capacity=chance.choice((1, 1, 2)),
            static=PINNED.get(name, ()),
        )
        self._tells = chance.choice(TELLS)
        self.session = Session(join, chance.getrandbits(62))
        around.at(around.now + delay(chance, 5), lambda: self.give(Begin()))

    # ------------------------------------------------------------------------------------- time

    def clock_ms(self) -> int:
        """What its clock shows now."""
        return int(self._around.now * self._rate) + self._offset

    def _true(self, clock_ms: float) -> float:
        return (clock_ms - self._offset) / self._rate

    @property
    def is_frozen(self) -> bool:
        """Whether it does nothing at present."""
        return self._around.now < self.frozen_until

    # ----------------------------------------------------------------------------------- inputs

    def give(self, given: Input) -> None:
        """A step of the session; a frozen process takes it when it wakes."""
        if not self.alive:
            return
        if self.is_frozen:
            self._around.at(self.frozen_until, lambda: self.give(given))
            return
        for action in self.session.step(given, self.clock_ms()):
            self._act(action)
        wanted = self.session.deadline_ms
        if wanted is not None and wanted != self._wanted:
            self._wanted = wanted
            self._around.at(self._true(wanted) + 0.5, lambda: self._alarm(wanted))

    def _alarm(self, wanted_ms: int) -> None:
        if self._wanted != wanted_ms:
            return
        if self.session.deadline_ms == wanted_ms and self.clock_ms() >= wanted_ms:
            self._wanted = None
            self.give(ClockMoved())
        elif self.session.deadline_ms == wanted_ms:
            self._around.at(self._around.now + 1, lambda: self._alarm(wanted_ms))

    def deliver(self, record: MemberRecord) -> None:
        """A record was written to the process' partition; it is read after a while, in order."""
        self._arrived += 1
        self._inbox.append(record)
        self._around.at(
            max(self._around.now + delay(self._chance, 6), self.deaf_until), self._take_in
        )

    def _take_in(self) -> None:
        if not self.alive or not self._inbox:
            return
        later = max(self.deaf_until, self.frozen_until)
        if self._around.now < later:
            self._around.at(later, self._take_in)
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
                    self._around.granted(self, tasks, (record.generation, record.epoch))
                self._take(role, tasks)
            case Lease(until_ms, stop_ms):
                was, self.guard_ends = self.guard_ends, self._true(until_ms + stop_ms)
                self._stopped_by = stop_ms
                if was <= self._around.now < self.guard_ends and self.using:
                    self._around.uses(self, None)
            case Release(role, tasks):
                after = self.stop_ms if self.stop_ms > 100 else delay(self._chance, self.stop_ms)
                number = self.session.incarnation
                released = self._around.now + after
                self._around.at(released, lambda: self._release(number, role, tasks))
            case Lose(reason):
                self._lose(reason)
            case End():
                self.die(f"{self} ends: {action.message}")
            case _:
                pass

    def _send(self, sent: Send) -> None:
        self.newest = sent.event
        self._around.write(self, sent.event, lambda: self.give(Acknowledged(sent)))
        if isinstance(sent.event, Leave | LagReport):
            return

        def answer(end: int) -> None:
            if self.alive:
                self._ends.append((end, sent.sent_ms))
                self._look_at_ends()

        self._around.end_of(self, answer)

    @property
    def position(self) -> int:
        """How much of its partition has been written since it stood at the end."""
        return self._arrived

    def _take(self, role: Role, tasks: TaskSet) -> None:
        if self._around.is_told:
            self._around.tell(f"{self} takes {named(tasks)} ({role})")
        if role is Role.ACTIVE:
            self.using |= set(tasks)
            self._around.uses(self, tasks)
            return
        number = self.session.incarnation
        restored = self._around.now + self._chance.choice((20, 200, 800))
        self._around.at(restored, lambda: self._restore(number, tasks))

    def _restore(self, number: int, tasks: TaskSet) -> None:
        if self.session.incarnation != number or self.session.state is not State.MEMBER:
            return
        if "lag" in self._tells:
            self.give(Restored(tuple(Lag(task, 0) for task in tasks)))
        if "ready" in self._tells:
            self.give(Ready(tasks))

    def _release(self, number: int, role: Role, tasks: TaskSet) -> None:
        if not self.alive:
            return
        if self.is_frozen:
            self._around.at(self.frozen_until, lambda: self._release(number, role, tasks))
            return
        if self.session.incarnation == number and self.session.record is not None:
            if self._around.is_told:
                self._around.tell(f"{self} has stopped {named(tasks)} ({role})")
            if role is Role.ACTIVE:
                self.using -= set(tasks)
            self.give(Released(role, tasks))

    def _lose(self, reason: str) -> None:
        if self._around.is_told:
            self._around.tell(f"{self} loses everything: {reason}")
        left = max(0.0, min(self.guard_ends - self._around.now, self._stopped_by))
        after = left * self._chance.choice((0, 1, self._chance.random()))
        incarnation = self.session.incarnation
        self._around.at(self._around.now + after, lambda: self._lost(incarnation))

    def _lost(self, incarnation: int) -> None:
        if not self.alive or self.session.incarnation != incarnation:
            return
        if self.is_frozen:
            self._around.at(self.frozen_until, lambda: self._lost(incarnation))
            return
        self.using.clear()
        self.guard_ends = FOREVER
        self.give(AllStopped())

    # ------------------------------------------------------------------------------- its end

    def stop(self, *, temporary: bool) -> None:
        """Ask it to end."""
        self.give(LeaveAsked(temporary))

    def die(self, story: str) -> None:
        """It is gone, and everything of it."""
        if self.alive and self._around.is_told:
            self._around.tell(story)
        self.alive = False
        self.using.clear()

    def __str__(self) -> str:
        return self.name if self.number == 1 else f"{self.name} (process {self.number})"
