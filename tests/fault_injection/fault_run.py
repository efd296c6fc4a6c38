"""A simulation of one group under many kinds of faults, whose checker knows the true time.

The sessions and the coordinators are real; the log loses nothing. A run plays faults from a list.
Between them events travel to the log, coordinators take batches, and records travel back. The
processes and the broker have random generators of their own, so leaving out one fault changes
little else. The same seed and the same faults give the same run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, NamedTuple

from fault_injection import faults
from fault_injection.checker import CheckedJob, Checker, LawBroken, Token, unsettled
from fault_injection.clock import Clock
from fault_injection.faults import PINNED, STATIC, Fault, JobFault, ProcessFault, Timed
from fault_injection.faulty_jobs import FaultyJob, FaultyJobs
from fault_injection.history import History, NotingProcess
from fault_injection.process import Process

from muster.protocol.events import (
    Drain,
    Event,
    GroupConfig,
    GroupDeleted,
    Heartbeat,
    Lag,
    LagReport,
    Tick,
    TopicsFound,
)
from muster.protocol.ids import MemberId
from muster.protocol.records import WakeUp
from muster.protocol.settings import parse_settings
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import Subtopology, TaskSet
from muster.simulation.kafka import BEGINNING_MS, TICK_AGAIN_MS, SimulatedKafka
from muster.simulation.log import GROUP
from muster.state.errors import InvariantViolation
from muster.worker.session_messages import Send
from muster.worker.session_steps import State

CALM_MS = 150_000
"""A group must have settled this long after the last fault. A member that joined before the config
has the default session of 45 s. In the slowest case its process died while the broker was away and
its join is read later: it is fenced after one session and removed after another. Then a session of
5 s expires, lost tasks wait 2 s for their owner, and six learners restore two at a time, each known
only from a heartbeat whose digest differs."""
CALM_STOP_MS = 300
"""Longest time a process takes to stop tasks once the faults have stopped."""
LOOK_MS = 250
PROCESSES_MAX = 12
"""Most processes at once; runs of random faults have fewer."""
LINES_MAX = 400


class Apart(NamedTuple):
    """A heartbeat on its way to the topic of heartbeats."""

    beat: Heartbeat


class FaultRun(SimulatedKafka):
    """The simulated world. Times are milliseconds of true time.

    Attributes:
        processes: all that run, oldest first.
        history: what the processes note about their ownership.
        lines: the newest lines of the trace, if it is kept.
    """

    jobs_type = FaultyJobs

    def __init__(
        self, seed: int, *, traced: bool = False, job: type[FaultyJob] = CheckedJob
    ) -> None:
        super().__init__(seed, traced=traced)
        self.jobs = self.jobs_type(self, self.log, self._rng, job)
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        self.processes: list[Process] = []
        self.history = History()
        self._clock = Clock(seed)
        self._checker = Checker()
        self._seed = seed
        self._apart_rng = Random(f"apart/{seed}")
        self._apart_share = self._apart_rng.choice((0.0, 0.5, 1.0))
        self._numbers: dict[str, int] = {}
        self._reports = deque[Event]()  # of the exporter, on their way
        self._sources: tuple[Source, ...] = ()
        self._config = faults.beginning(seed)
        self.configure(self._config)
        self.jobs.begin()

    def offers_apart(self, process: Process) -> bool:
        """Whether a process that begins can heartbeat apart: in each run none, some or all."""
        return self._apart_rng.random() < self._apart_share

    def clients(self) -> list[Process]:
        """The processes."""
        return self.processes

    @property
    def generations(self) -> int:
        """Generations opened so far, by all coordinators."""
        return self.jobs.generations

    @property
    def changes(self) -> int:
        """How often a task was used by a different process than before."""
        return self._checker.changes

    def run(self, until_ms: float) -> None:
        """Simulate until `until_ms`, counted from the beginning.

        Raises:
            LawBroken: the checker saw a law broken, or an invariant of the group does not hold.
        """
        until = BEGINNING_MS + until_ms
        try:
            while self.next_at <= until:
                self.call_next()
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

    # ------------------------------------------------------------------- heartbeats apart

    def write_event(self, sender: Process, sent: Send, done: Callable[[], None]) -> None:
        """Write an event, a heartbeat to its own topic if it says so."""
        self.write(sender, Apart(sent.event) if sent.apart else sent.event, done)

    def _append(self, event: Any) -> None:
        if isinstance(event, Apart):
            self._clock.heartbeats.append((int(self.now), event.beat))
        else:
            super()._append(event)

    def _ring(self, wake: WakeUp, number: int) -> None:
        """Send a tick with a cover; the agreement of the wake-up may make it needless so far."""
        if self.log.wakes != number:
            return
        now, needless_ms = int(self.now), 0
        if wake.agreement is not None:
            needless_ms = self._clock.needless_until_ms(wake.agreement, now)
        if needless_ms > self.now:
            again = needless_ms + self._delay(5)
        else:
            cover = self._clock.cover(now)
            self.send(Tick(group=GROUP, published=wake.published, cover=cover))
            again = self.now + TICK_AGAIN_MS
        self.at(again, lambda: self._ring(wake, number))

    def trace_line(self, text: str) -> None:
        """Add a line to the trace."""
        if self.is_traced:
            self.lines.append(f"{self.clock_ms:>9,.0f} ms  {text}")

    # ----------------------------------------------------------------------- what processes use

    def uses(self, user: Process, tasks: TaskSet | None) -> None:
        """A process uses these tasks from now on; None = again those it used before."""
        self._checker.uses(user, tasks, self.now)

    def granted(self, user: Process, tasks: TaskSet, token: Token) -> None:
        """A process is granted these tasks, with the token that it shows outside systems."""
        self._checker.granted(user, tasks, token)
        self.history.acquired(user, tasks, token, self.now)

    # -------------------------------------------------------------------------- what happens

    def happen(self, fault: Fault) -> None:
        """Simulate a fault now."""
        self.trace_line(f"* {fault}")
        match fault:
            case faults.Starts(name, twin):
                self._start(name, twin=twin)
            case faults.StartsAs(name, instance_id):
                self._start_as(name, instance_id)
            case faults.Configures():
                self.configure(fault)
            case faults.Finds():
                self._find(fault)
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
            case faults.Usurps(notices_ms, late_ms, starts_ms, obeys):
                notices_ms *= faults.FROZEN if obeys else 1
                self.jobs.replace(notices_ms, late_ms, starts_ms, obeys=obeys)

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
        self._start_as(name, f"i-{name}" if name in STATIC else None)

    def _start_as(self, name: str, instance_id: str | None) -> None:
        if len(self.processes) >= PROCESSES_MAX:
            return
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        rng = Random(f"{name}/{number}/{self._seed}")
        static = PINNED.get(name, ())
        process = NotingProcess(
            self, name, number, rng, self.history, instance_id=instance_id, static=static
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
        config = GroupConfig(
            group=GROUP, assignor=assignor, settings=settings, tasks=tasks, sources=self._sources
        )
        self.send(config)

    def _find(self, fault: faults.Finds) -> None:
        """Discovery writes which topics there are."""
        if not self._sources:
            self._sources = faults.SOURCES
            self.configure(self._config)
        found = tuple(
            Found(source, (Subtopology(source.topics[0], size),), ((name, str(fault.made)),))
            for source, name, size in zip(
                faults.SOURCES, faults.TOPICS_FOUND, (fault.first, fault.second), strict=True
            )
            if size
        )
        self.send(TopicsFound(group=GROUP, found=found))

    def _lag(self, name: str, offsets: int) -> None:
        for process in self.processes:
            holding = process.session.holding
            copies = sorted(holding.standby | holding.learner)
            if process.name == name and copies:
                lags = tuple(Lag(task, offsets) for task in copies)
                self._reports.append(LagReport(group=GROUP, member=MemberId(name), lags=lags))
                self.at(self.now + self._delay(4), lambda: self._when_back(self._report))

    def _report(self) -> None:
        self._append(self._reports.popleft())  # reports arrive in their order

    def _end_lags(self) -> None:
        """The exporter reports that all copies have caught up.

        A group never gives a task to a copy of which the newest report says that it is far behind,
        so a lag that is reported and never taken back is a fault that has not ended.
        """
        for name in sorted({process.name for process in self.processes}):
            self._lag(name, 0)

    # --------------------------------------------------------------------------- when it is over

    def settle(self) -> float:
        """Simulate without faults until the group has settled; return how long it took, in ms.

        Raises:
            LawBroken: it does not settle within `CALM_MS`, another law is broken meanwhile, or the
                ownership history of the whole run is not that of locks (`history.py`).
        """
        began = self.clock_ms
        self.trace_line("* no more faults")
        self._end_lags()
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
