"""A member's process as a value: the real `Session`, and what is under way around it.

An active is in use from the session's `Take` until it has stopped, the process is dead, or the
lease and the whole time for stopping have ended.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from exploration.values import Values, digest

from muster.protocol.events import Join, Lag, LagReport, Leave
from muster.protocol.ids import GroupId, MemberId, Role, Task
from muster.worker.session import Session
from muster.worker.session_messages import (
    Acknowledged,
    AllStopped,
    Begin,
    CaughtUp,
    ClockMoved,
    End,
    Failed,
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

GROUP = GroupId("g")
FOREVER = 1 << 62
BEHIND = 1_000_000
"""The lag, in offsets, of a copy that is far behind."""


class Process(NamedTuple):
    """A process that runs. Sessions, sends and records are numbers of `Values`.

    Attributes:
        name: member id.
        session: its session.
        using: actives that it has taken and not stopped.
        guard_ms: when the last of them is stopped by force.
        outbox: sends that Kafka has not stored yet, oldest first.
        inbox: records to be read, in order; a negative number -t among them is an end of the
            partition that was asked for at time t.
        stopping: releases of which the tasks run on, as (role, tasks).
        losing: everything is being stopped.
        copies: copies that restore.
        ended: the session is over.
        slow_ms: how much its clock is behind true time.
        told: its oldest copy has reported that it is behind.
    """

    name: str
    session: int
    using: frozenset[Task] = frozenset()
    guard_ms: int = FOREVER
    outbox: tuple[int, ...] = ()
    inbox: tuple[int, ...] = ()
    stopping: tuple[tuple[Role, Any], ...] = ()
    losing: bool = False
    copies: tuple[Any, ...] = ()
    ended: bool = False
    slow_ms: int = 0
    told: bool = False

    def clock_ms(self, now: int) -> int:
        """The time on its own clock, by which everything happens in it."""
        return now - self.slow_ms

    def relative(self, values: Values, true: int) -> tuple[Any, ...]:
        """The process without its moments."""
        now = self.clock_ms(true)
        return (
            self.name,
            values.relative(self.session, now),
            tuple(sorted(map(str, self.using))),
            max(self.guard_ms - now, 0) if self.guard_ms < FOREVER else None,
            tuple([values.relative(n, now) for n in self.outbox]),
            tuple([values.relative(n, true) if n > 0 else n + now for n in self.inbox]),
            tuple([(role.name, str(tasks)) for role, tasks in self.stopping]),
            self.losing,
            tuple(map(str, self.copies)),
            self.ended,
            self.told,
        )


class Outcome(NamedTuple):
    """What a process is after an input, and with which tokens it was granted tasks."""

    process: Process
    granted: tuple[tuple[Task, tuple[int, int]], ...]


def fork(session: Session) -> Session:
    """An independent copy of a session. Events and records are immutable and are shared."""
    twin = copy.copy(session)
    for name, value in vars(twin).items():
        if hasattr(value, "__dict__") and type(value).__module__.startswith("muster.worker"):
            part = copy.copy(value)
            for inner, held in vars(part).items():
                if isinstance(held, (dict, list, set)):
                    setattr(part, inner, copy.copy(held))
            setattr(twin, name, part)
    return twin


def living(session: Session) -> dict[str, Any]:
    """What a session may still read: beyond `JOINING` nothing of its joins."""
    parts = dict(vars(session))
    if session.state not in (State.NEW, State.JOINING):
        proof = parts["_proof"]
        parts["_proof"] = (proof._heard_ms, proof._read_ms)
        del parts["_retry_ms"], parts["_attempt"]
    return parts


class Members:
    """What processes do; each (session, input, time) is computed once."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.seen: Callable[[Session], Any] = living
        self._steps: dict[tuple[int, Any, int], tuple[int, tuple[Any, ...]]] = {}
        self._relative: dict[tuple[Process, int], bytes] = {}

    def relative(self, process: Process, now: int) -> bytes:
        """A digest that two processes share if they are equal but for when that is."""
        place = (process, now)
        known = self._relative.get(place)
        if known is None:
            known = self._relative[place] = digest(process.relative(self.values, now))
        return known

    def start(
        self, name: str, number: int, now: int, instance: str | None = None, *, apart: bool = False
    ) -> Outcome:
        """A process begins; its reader is at the end of its partition."""
        join = Join(group=GROUP, member=MemberId(name), incarnation=0, instance_id=instance)
        seed = sum(ord(letter) for letter in name) * 1_000 + number * 100
        session = self.values.put(Session(join, seed), self.seen)
        return self.give(Process(name, session), Begin(apart), "begin", now)

    def session(self, process: Process) -> Session:
        """The session of a process; not to be changed."""
        return self.values[process.session]

    def give(self, process: Process, given: Input, key: Any, now: int) -> Outcome:
        """Give the session an input that `key` stands for, and perform its actions."""
        now = process.clock_ms(now)
        place = (process.session, key, now)
        known = self._steps.get(place)
        if known is None:
            session = fork(self.session(process))
            actions = session.step(given, now)
            known = self._steps[place] = (
                self.values.put(session, self.seen),
                self._numbered(actions),
            )
        session, actions = known
        return self._acted(process._replace(session=session), actions, now)

    def _numbered(self, actions: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self.values.put(a) if isinstance(a, Send) else a for a in actions)

    def _acted(self, process: Process, actions: tuple[Any, ...], now: int) -> Outcome:
        granted: list[tuple[Task, tuple[int, int]]] = []
        for action in actions:
            match action:
                case int():
                    process = process._replace(outbox=(*process.outbox, action))
                case Take(Role.ACTIVE, tasks, record):
                    token = (record.generation, record.epoch)
                    granted += [(task, token) for task in tasks]
                    process = process._replace(using=process.using | set(tasks))
                case Take(_, tasks, _):
                    process = process._replace(copies=(*process.copies, tasks))
                case Lease(until_ms, stop_ms):
                    process = process._replace(guard_ms=until_ms + stop_ms)
                case Release(role, tasks, _):
                    process = process._replace(stopping=(*process.stopping, (role, tasks)))
                case Lose():
                    process = process._replace(losing=True, stopping=(), copies=(), told=False)
                case End():
                    process = process._replace(
                        ended=True, using=frozenset(), stopping=(), losing=False, inbox=()
                    )
        return Outcome(process, tuple(granted))

    # ------------------------------------------------------------------------------- its steps

    def is_due(self, process: Process, now: int) -> bool:
        """Whether the session needs a `ClockMoved`."""
        deadline_ms = None if process.ended else self.session(process).deadline_ms
        return deadline_ms is not None and deadline_ms <= process.clock_ms(now)

    def clock(self, process: Process, now: int) -> Outcome:
        """Time has passed."""
        return self.give(process, ClockMoved(), "clock", now)

    def stored(self, process: Process, number: int, now: int, *, acked: bool) -> Outcome:
        """Kafka has stored an event; the end of the partition is asked for at the same time."""
        sent: Send = self.values[number]
        if process.ended:
            return Outcome(process, ())
        if acked:
            sent = self._own(process, sent)
            process = self.give(process, Acknowledged(sent), ("stored", number), now).process
        if isinstance(sent.event, Leave | LagReport):
            return Outcome(process, ())
        inbox = process.inbox
        if inbox and inbox[-1] < 0:
            inbox = inbox[:-1]
        return self._caught_up(process._replace(inbox=(*inbox, -sent.sent_ms)), now)

    def failed(self, process: Process, number: int, now: int) -> Outcome:
        """The client has given up to write an event."""
        sent = self._own(process, self.values[number])
        return self.give(process, Failed(sent), ("failed", number), now)

    def _own(self, process: Process, sent: Send) -> Send:
        """The session compares its heartbeat by identity: an equal value is the same here."""
        for held in vars(self.session(process)).values():
            if isinstance(held, Send) and held == sent:
                return held
        return sent

    def read(self, process: Process, now: int) -> Outcome:
        """Read the next record."""
        number, *rest = process.inbox
        process = process._replace(inbox=tuple(rest))
        given = self.give(process, Read(self.values[number]), ("read", number), now)
        return Outcome(self._caught_up(given.process, now).process, given.granted)

    def _caught_up(self, process: Process, now: int) -> Outcome:
        if not process.inbox or process.inbox[0] > 0:
            return Outcome(process, ())
        at_ms, rest = -process.inbox[0], process.inbox[1:]
        process = process._replace(inbox=rest)
        return self.give(process, CaughtUp(at_ms), ("caught up", at_ms), now)

    def stopped(self, process: Process, index: int, now: int) -> Outcome:
        """The tasks of a release have stopped."""
        role, tasks = process.stopping[index]
        stopping = process.stopping[:index] + process.stopping[index + 1 :]
        using = process.using - set(tasks) if role is Role.ACTIVE else process.using
        process = process._replace(stopping=stopping, using=using)
        return self.give(process, Released(role, tasks), ("stopped", role, tasks), now)

    def lost(self, process: Process, now: int) -> Outcome:
        """Every task has stopped after a loss."""
        process = process._replace(losing=False, using=frozenset(), guard_ms=FOREVER)
        return self.give(process, AllStopped(), "all stopped", now)

    def ready(self, process: Process, now: int, *, lags: bool) -> Outcome:
        """The oldest copies that restore have caught up; `lags`: their lags say so."""
        tasks, *rest = process.copies
        process = process._replace(copies=tuple(rest), told=False)
        if lags:
            return self._restored(process, tasks, 0, now)
        return self.give(process, Ready(tasks), ("ready", tasks), now)

    def behind(self, process: Process, now: int) -> Outcome:
        """The oldest copies that restore report that they are far behind."""
        return self._restored(process._replace(told=True), process.copies[0], BEHIND, now)

    def _restored(self, process: Process, tasks: Any, offsets: int, now: int) -> Outcome:
        lags = tuple(Lag(task, offsets) for task in tasks)
        return self.give(process, LagsKnown(lags), ("restored", lags), now)

    def leave(self, process: Process, now: int, *, temporary: bool) -> Outcome:
        """The user closes the worker."""
        return self.give(process, LeaveAsked(temporary), ("leave", temporary), now)

    def may_leave(self, process: Process) -> bool:
        """Whether the session is that of a member in order."""
        return not process.ended and self.session(process).state is State.MEMBER
