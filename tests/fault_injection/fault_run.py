"""A simulation of one group under many kinds of faults, whose checker knows the true time.

The sessions and the coordinators are real; the log loses nothing. A run plays faults from a list.
Between them events travel to the log, coordinators take batches, and records travel back. The
processes and the broker have random generators of their own, so leaving out one fault changes
little else. The same seed and the same faults give the same run.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from random import Random

from fault_injection import faults
from fault_injection.checker import CheckedJob, Checker, LawBroken, Token, unsettled
from fault_injection.faults import PINNED, STATIC, Fault, JobFault, ProcessFault, Timed
from fault_injection.history import History, NotingProcess

from muster.protocol.events import Drain, Event, GroupConfig, GroupDeleted, Lag, LagReport, Tick
from muster.protocol.ids import MemberId
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import TaskSet
from muster.simulation.jobs import Job, Jobs
from muster.simulation.log import Log, MemberRecord
from muster.simulation.process import GROUP, Process, delay
from muster.simulation.trace import Trace
from muster.state.errors import InvariantViolation
from muster.worker.states import State

BEGINNING_MS = 1_000_000
CALM_MS = 90_000
"""A group must have settled this long after the last fault. In the slowest case a session of 5 s
expires, a member that does not release is fenced (4 s), a second session expires, lost tasks wait
2 s for their owner, then six learners restore two at a time, each known only from a heartbeat whose
digest differs."""
CALM_STOP_MS = 300
"""Longest time a process takes to stop tasks once the faults have stopped."""
LOOK_MS = 250
TICK_AGAIN_MS = 1_000


class FaultRun:
    """The simulated world and its queue of calls. Times are milliseconds of true time.

    Attributes:
        now: true time.
        away_until: true time until which the broker is away.
        processes: all that run, oldest first.
        jobs: the coordinators.
        trace: what happened, if it is kept.
        history: what the processes note about their ownership.
    """

    def __init__(self, seed: int, *, traced: bool = False, job: type[Job] = CheckedJob) -> None:
        self.now = float(BEGINNING_MS)
        self.away_until = 0.0
        self.log = Log()
        self.processes: list[Process] = []
        self.trace = Trace(kept=traced)
        self.history = History()
        self._checker = Checker()
        self._seed = seed
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._chance = Random(f"broker/{seed}")
        self._numbers: dict[str, int] = {}
        self._ticked = 0
        self._config = faults.Configures(seed % len(faults.ASSIGNORS), 0, 0)
        self.jobs = Jobs(self, self.log, self._chance, job)
        self.configure(self._config)
        self.jobs.begin()

    @property
    def generations(self) -> int:
        """Generations opened so far, by all coordinators."""
        return self.jobs.generations

    @property
    def changes(self) -> int:
        """How often a task was used by a different process than before."""
        return self._checker.changes

    @property
    def clock_ms(self) -> float:
        """True time since the beginning."""
        return self.now - BEGINNING_MS

    # ------------------------------------------------------------------------------- true time

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Call `what` at a time."""
        heapq.heappush(self._agenda, (max(when, self.now), next(self._order), what))

    def run(self, until_ms: float) -> None:
        """Simulate until `until_ms`, counted from the beginning.

        Raises:
            LawBroken: the checker saw a law broken, or an invariant of the group does not hold.
        """
        until = BEGINNING_MS + until_ms
        agenda = self._agenda
        try:
            while agenda and agenda[0][0] <= until:
                self.now, _, what = heapq.heappop(agenda)
                what()
        except InvariantViolation as violation:
            raise LawBroken(str(violation)) from violation
        self.now = max(self.now, until)

    def play(self, stream: Iterable[Timed]) -> None:
        """Simulate faults, each at its time.

        Raises:
            LawBroken: as `run`.
        """
        for at_ms, fault in stream:
            self.run(at_ms)
            self.happen(fault)

    # ----------------------------------------------------------------------- what processes need

    def write(self, sender: Process, event: Event, done: Callable[[], None]) -> None:
        """Write an event to the log after a delay, behind earlier events of its sender."""
        arrives = max(self.now + self._delay(4), self.away_until, sender.sent_until)
        sender.sent_until = arrives

        def arrive() -> None:
            self._append(event)
            self.at(self.now + self._delay(3), done)

        self.at(arrives, lambda: self._when_back(arrive))

    def end_of(self, sender: Process, answer: Callable[[int], None]) -> None:
        """Answer with the end offset of a partition, as of the moment of the answer."""

        def look() -> None:
            end = sender.position
            self.at(self.now + self._delay(3), lambda: answer(end))

        self.at(self.now + self._delay(3), lambda: self._when_back(look))

    def uses(self, user: Process, tasks: TaskSet | None) -> None:
        """A process uses these tasks from now on; None = again those it used before."""
        self._checker.uses(user, tasks, self.now)

    def granted(self, user: Process, tasks: TaskSet, token: Token) -> None:
        """A process is granted these tasks, with the token that it shows outside systems."""
        self._checker.granted(user, tasks, token)
        self.history.acquired(user, tasks, token, self.now)

    def trace_line(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.add(self.clock_ms, text)

    @property
    def is_traced(self) -> bool:
        """Whether the trace is kept."""
        return self.trace.kept

    # ------------------------------------------------------------------------------- the broker

    def send(self, event: Event) -> None:
        """A client outside the group writes an event."""
        arrives = self.now + self._delay(4)
        self.at(arrives, lambda: self._when_back(lambda: self._append(event)))

    def deliver(self, record: MemberRecord) -> None:
        """A record has reached its member's partition."""
        for process in self.processes:
            if process.name == record.member:
                process.deliver(record)

    def published(self) -> None:
        """Act as the clock: send a tick when the newest wake-up is due; repeat while it stays."""
        number, wake = self.log.wakes, self.log.wake
        if wake is None or wake.at_ms is None or number == self._ticked:
            return
        self._ticked = number
        tick = Tick(group=GROUP, published=wake.published)

        def ring() -> None:
            if self.log.wakes == number:
                self.send(tick)
                self.at(self.now + TICK_AGAIN_MS, ring)

        self.at(wake.at_ms + self._delay(5), ring)

    def _append(self, event: Event) -> None:
        self.log.append(event, int(self.now))
        self.jobs.wake()

    def _when_back(self, what: Callable[[], None]) -> None:
        """Call `what` now, or when the broker is back."""
        if self.now < self.away_until:
            self.at(self.away_until + self._delay(10), lambda: self._when_back(what))
        else:
            what()

    def _delay(self, usual: float) -> float:
        return delay(self._chance, usual)

    # -------------------------------------------------------------------------- what happens

    def happen(self, fault: Fault) -> None:
        """Simulate a fault now."""
        self.trace_line(f"* {fault}")
        match fault:
            case faults.Starts(name, twin):
                self._start(name, twin=twin)
            case faults.Configures():
                self.configure(fault)
            case faults.Deletes(for_ms):
                self.send(GroupDeleted(group=GROUP))
                self.at(self.now + for_ms, lambda: self.configure(self._config))
            case faults.Drains(name, on):
                self.send(Drain(group=GROUP, member=MemberId(name), on=on))
            case faults.Lags(name, offsets):
                self._lag(name, offsets)
            case faults.BrokerLeaves(for_ms):
                self.away_until = max(self.away_until, self.now + for_ms)
            case faults.FallsBehind() | faults.Skews() | faults.Restarts() | faults.Usurps():
                self._hit_job(fault)
            case _:
                for process in [p for p in self.processes if p.name == fault.member]:
                    self._hit(process, fault)
        self._bury()

    def _hit_job(self, fault: JobFault) -> None:
        match fault:
            case faults.FallsBehind(for_ms):
                self.jobs.fall_behind(for_ms)
            case faults.Skews(topic, for_ms):
                self.jobs.skew(topic, for_ms)
            case faults.Restarts(written, checkpoint):
                self.jobs.restart(written, checkpoint=checkpoint)
            case faults.Usurps(notices_ms, late_ms, starts_ms):
                self.jobs.replace(notices_ms, late_ms, starts_ms)

    def _hit(self, process: Process, fault: ProcessFault) -> None:
        match fault:
            case faults.Stops(_, temporary):
                process.stop(temporary=temporary)
            case faults.Dies():
                process.die(f"{process} is dead")
            case faults.Freezes(_, for_ms):
                process.frozen_until = max(process.frozen_until, self.now + for_ms)
            case faults.Deafens(_, for_ms):
                process.deaf_until = max(process.deaf_until, self.now + for_ms)
            case faults.Dawdles(_, stop_ms):
                process.stop_ms = stop_ms
            case faults.Repeats():
                if process.newest is not None:
                    self.send(process.newest)

    def _start(self, name: str, *, twin: bool) -> None:
        running = sum(p.name == name and p.alive for p in self.processes)
        if running > twin:
            return
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        chance = Random(f"{name}/{number}/{self._seed}")
        instance_id = f"i-{name}" if name in STATIC else None
        static = PINNED.get(name, ())
        process = NotingProcess(
            self, name, number, chance, self.history, instance_id=instance_id, static=static
        )
        self.processes.append(process)

    def _bury(self) -> None:
        self.processes = [process for process in self.processes if process.alive]

    def configure(self, row: faults.Configures) -> None:
        """An operator writes a config."""
        self._config = row
        assignor = faults.ASSIGNORS[row.assignor]
        values = {**faults.USUAL, **faults.VALUES[row.values]}
        settings = parse_settings(values, assignor)
        tasks = faults.TASKS[row.tasks]
        self.send(GroupConfig(group=GROUP, assignor=assignor, settings=settings, tasks=tasks))

    def _lag(self, name: str, offsets: int) -> None:
        for process in self.processes:
            holding = process.session.holding
            copies = sorted(holding.standby | holding.learner)
            if process.name == name and copies:
                lags = tuple(Lag(task, offsets) for task in copies)
                self.send(LagReport(group=GROUP, member=MemberId(name), lags=lags))

    # --------------------------------------------------------------------------- when it is over

    def settle(self) -> float:
        """Simulate without faults until the group has settled; return how long it took, in ms.

        Raises:
            LawBroken: it does not settle within `CALM_MS`, another law is broken meanwhile, or the
                ownership history of the whole run is not that of locks (`history.py`).
        """
        began = self.clock_ms
        self.trace_line("* no more faults")
        for process in self.processes:
            process.stop_ms = min(process.stop_ms, CALM_STOP_MS)
        if all(process.session.state is State.ENDED for process in self.processes):
            self._start(faults.NAMES[0], twin=False)
        wrong: str | None = "not looked at"
        while self.clock_ms - began < CALM_MS:
            self.run(self.clock_ms + LOOK_MS)
            self._bury()
            if isinstance(self.log.inputs["config"][-1], GroupDeleted):
                self.configure(self._config)  # the delete arrived after the config that undoes it
            if not self.processes:
                self._start(faults.NAMES[0], twin=False)
            wrong = self._unsettled()
            if wrong is None:
                if no_lock := self.history.broken():
                    raise LawBroken(no_lock)
                return self.clock_ms - began
        raise LawBroken(f"the group has not settled {CALM_MS:,} ms after the last fault: {wrong}")

    def _unsettled(self) -> str | None:
        if self.jobs.newest is None:
            return "there is no coordinator"
        if len(self.jobs.running) > 1:
            return f"there are {len(self.jobs.running)} coordinators"
        return unsettled(self.jobs.newest.group, self.processes, self.now)
