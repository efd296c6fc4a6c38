"""`Environment`: a group with its coordinator and workers in one process, on simulated time."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from muster import plugins
from muster.assignor import registry
from muster.assignor.model import Assignor
from muster.errors import BadInput
from muster.protocol.events import Drain, GroupConfig
from muster.protocol.ids import MemberId, Task, parse_task
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import TaskTable
from muster.simulation.jobs import Job
from muster.simulation.log import GROUP
from muster.state.errors import InvariantViolation
from muster.testing.fault_player import Player
from muster.testing.fault_scripts import Fault
from muster.testing.kafka_with_history import KafkaWithHistory
from muster.testing.settled import unsettled
from muster.testing.simulated_machine import (
    VirtualMachine,
    end_simulated_time,
    simulate_time,
)
from muster.testing.tasks import Tasks, units_of
from muster.testing.threads import FOREVER, Threads, current_machine
from muster.testing.worker import SimulatedWorker
from muster.worker.lease import stop_ms

SETTLE_S: Final = 900.0
"""How long `settle` waits, in simulated time: a session, a rebalance timeout and a probing interval
of their default length, one after the other."""
OWNED_S: Final = 180.0
"""How long `assert_owned` waits, in simulated time. With default settings it takes less until the
tasks of a worker that hangs are free: the worker is fenced after the rebalance timeout, and removed
a session timeout later."""
EXPIRED_S: Final = 5.0
"""How long `expire` keeps a worker frozen after its session, so that others have its tasks."""
LOOK_MS: Final = 100.0
NOWHERE: Final = "simulated:9092"


class Environment:
    """A group without Kafka and Spark: the real coordinator, real workers, your callbacks.

    Time is simulated: it moves only in `advance`, `settle`, `assert_owned` and while the test waits
    for a worker, and a simulated hour takes seconds. The same seed gives the same run.

    Use it as a context manager, in the thread that made it::

        with Environment(tasks={"orders": 4}) as env:
            env.worker("W1", on_assigned=start, on_revoked=stop)
            env.settle()
            env.assert_never_two_owners()

    Args:
        tasks: subtopology → partitions; or rows as in ``muster config set --tasks``
            (``docs/formats.md``), for state, weights and connectors.
        assignor: a name, a class or object with `assign`.
        config: settings of the group (``docs/settings.md``).
        seed: decides delays, and which of several threads runs first.

    Raises:
        BadInput, ConfigError: tasks or settings that cannot be used.

    Attributes:
        group: name of the group.
        workers: member id → its newest process.
        changelogs: (topic, partition) → end offset, for workers with `lag_from_changelog`.
    """

    def __init__(
        self,
        tasks: Tasks,
        assignor: str | type | Assignor = "sticky",
        config: Mapping[str, object] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.group = str(GROUP)
        self.changelogs: dict[tuple[str, int], int] = {}
        self._assignor, lookup = _lookup(assignor)
        self._config = dict(config or {})
        self._units = units_of(tasks)
        self._tables = [TaskTable(self._units)]  # of every configuration so far
        self._seed = seed
        self.workers: dict[str, SimulatedWorker] = {}
        self._recipes: dict[str, dict[str, Any]] = {}
        self._numbers: dict[str, int] = {}
        self._processes: list[SimulatedWorker] = []  # also those that are not the newest
        job = type("EnvironmentJob", (Job,), {"assignors": staticmethod(lookup)})
        self._kafka = KafkaWithHistory(seed, job)
        self._history = self._kafka.history
        self._threads = Threads(self._kafka, seed)
        self._player = Player(self)
        self._is_open = True
        self._write_config()
        self._kafka.jobs.begin()
        simulate_time()

    # ------------------------------------------------------------------------------- workers

    def worker(self, name: str, **settings: object) -> SimulatedWorker:
        """Start a worker; it joins as time passes.

        Args:
            name: its member id.
            settings: as `muster.Worker` takes them: callbacks, plain or coroutines, and the rest.
        """
        if own := settings.keys() & {"member_id", "group", "bootstrap_servers"}:
            problem = "nothing: its name is the member id, and the environment has the rest"
            raise BadInput(f"worker {name!r}: {', '.join(sorted(own))}: expected {problem}")
        self._recipes[name] = settings
        return self.start(name)

    def start(self, name: str) -> SimulatedWorker:
        """Start a new process of a worker that was started before, with the same settings."""
        self._check_started(name)
        self._check_open()
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        shown = name if number == 1 else f"{name} (process {number})"
        seed = f"{name}/{number}/{self._seed}"
        machine = VirtualMachine(shown, self._kafka, self._threads, seed)
        settings = {"group": self.group, "member_id": name, "bootstrap_servers": NOWHERE}
        worker = SimulatedWorker(
            kafka=self._kafka,
            history=self._history,
            machine=machine,
            changelogs=self.changelogs,
            settings={**self._recipes[name], **settings},
        )
        self.workers[name] = worker
        self._processes.append(worker)
        self._kafka.links.append(worker.link)
        self._log(f"* {shown} starts")
        worker.start()
        return worker

    def stop(self, name: str, *, temporary: bool | None = None) -> None:
        """A worker leaves in order (`Worker.close`); returns when it has, or after 30 s."""
        self._log(f"* {name} is asked to leave")
        self._worker_named(name).close(temporary=temporary)
        self._after()

    def ask_to_leave(self, name: str) -> None:
        """A worker is told to leave, as by SIGTERM; does not wait until it has."""
        self._log(f"* {name} is asked to leave")
        self._worker_named(name).ask_to_leave()

    def kill(self, name: str) -> None:
        """The process of a worker ends, as by SIGKILL. Its code does not run any more."""
        worker = self._worker_named(name)
        self._log(f"* {name} is killed")
        worker.is_alive = worker.machine.runs = False
        worker.link.die()
        self._thawed(worker)
        self._history.end(worker.process, None, self._kafka.now, "it was killed")

    def freeze(self, name: str) -> None:
        """The process of a worker is suspended: none of its threads runs, its clock goes on."""
        worker = self._worker_named(name)
        if worker.is_alive and worker.machine.runs:
            self._log(f"* {name} is frozen")
            worker.machine.runs = False
            worker.process.frozen.append((self._kafka.now, FOREVER))

    def thaw(self, name: str) -> None:
        """A frozen process goes on."""
        worker = self._worker_named(name)
        if worker.is_alive and not worker.machine.runs:
            self._log(f"* {name} goes on")
            worker.machine.runs = True
            self._thawed(worker)

    def partition(self, name: str) -> None:
        """The network between a worker and Kafka is cut; nothing is lost, nothing passes."""
        self._log(f"* {name} does not reach Kafka")
        self._worker_named(name).link.cut()

    def heal(self, name: str) -> None:
        """The network between a worker and Kafka works again."""
        self._log(f"* {name} reaches Kafka again")
        self._worker_named(name).link.heal()

    def expire(self, name: str) -> None:
        """Freeze a worker until the group has given its tasks away, then let it go on.

        One that has not joined yet joins first.
        """
        if self._worker_named(name).can_join:
            joined = lambda: self._is_member(name)  # noqa: E731
            self._until(joined, lambda: f"{name} has not joined, so it cannot expire", SETTLE_S)
        self.freeze(name)
        gone = lambda: self._has_expired(name)  # noqa: E731
        self._until(gone, lambda: f"{name} has not expired", SETTLE_S)
        self.advance(EXPIRED_S)
        self.thaw(name)
        self.advance(0)

    def drain(self, name: str, *, on: bool = True) -> None:
        """An operator drains a member (`muster drain`), or undoes that."""
        self._check_started(name)
        self._log(f"* {name} is drained" if on else f"* the drain of {name} is undone")
        self._kafka.send(Drain(group=GROUP, member=MemberId(name), on=on))

    # --------------------------------------------------------------- the coordinator and Kafka

    def restart_coordinator(self, *, written: int = 100) -> None:
        """The coordinator ends, and starts again from its checkpoint.

        Args:
            written: percentage of the records of the batch under way that reach Kafka.
        """
        self._log("* the coordinator restarts")
        self._kafka.jobs.restart(written, checkpoint=True)

    def lose_checkpoint(self, *, written: int = 100) -> None:
        """The coordinator ends, and starts again without its checkpoint."""
        self._log("* the coordinator restarts without its checkpoint")
        self._kafka.jobs.restart(written, checkpoint=False)

    def coordinator_away(self, seconds: float) -> None:
        """The coordinator takes nothing in for a while."""
        _check_span("coordinator_away", seconds)
        self._log(f"* the coordinator is away for {seconds:g} s")
        jobs, for_ms = self._kafka.jobs, int(seconds * 1000)
        if jobs.newest is None:  # it restarts just now
            jobs.next_behind_until = max(jobs.next_behind_until, self._kafka.now + for_ms)
        jobs.fall_behind(for_ms)

    def kafka_away(self, seconds: float) -> None:
        """Kafka is away for a while, for every worker and the coordinator."""
        _check_span("kafka_away", seconds)
        self._log(f"* Kafka is away for {seconds:g} s")
        self._kafka.away_until = max(self._kafka.away_until, self._kafka.now + seconds * 1000)

    def configure(
        self, *, tasks: Tasks | None = None, config: Mapping[str, object] | None = None
    ) -> None:
        """An operator changes the group's tasks, or some of its settings."""
        units = self._units if tasks is None else units_of(tasks)
        changed = {**self._config, **(config or {})}
        parse_settings(changed, self._assignor)  # raises before anything is changed
        self._log("* the group is configured")
        self._units, self._config = units, changed
        self._tables.append(TaskTable(units))
        self._write_config()

    def play(self, script: Iterable[Fault]) -> None:
        """Carry out faults, one after the other, then end all of them (`calm`).

        Raises:
            EnvironmentFailed: a fault is of a worker that was never started.
            BadInput: the script has something else than faults.
        """
        for fault in script:
            if not isinstance(fault, Fault):
                raise BadInput(f"play: {fault!r}: expected faults, as Fault('kill', 'W1')")
            if fault.worker is not None:
                self._check_started(fault.worker)
            self._player.carry_out(fault)
            self.advance(fault.pause_s)
        self.calm()

    def later(self, seconds: float, what: Callable[[], object]) -> None:
        """Call `what` in the thread of the test when that much time has passed."""
        _check_span("later", seconds)
        self._kafka.at(self._kafka.now + seconds * 1000, lambda: self._is_open and what())

    def calm(self) -> None:
        """End every fault: each worker runs and reaches Kafka, and no member is drained.

        The coordinator takes events in again, and no fault of a script is ended a second time.

        If Kafka is away, this waits until it is back: requests that are on their way to it arrive
        then, and not before.
        """
        self._log("* no more faults")
        self._player.forget_ends()
        self._kafka.jobs.catch_up()
        for name, worker in list(self.workers.items()):
            self.thaw(name)
            if worker.link.is_cut:
                self.heal(name)
            self.drain(name, on=False)
            if worker.has_ended:
                self.start(name)
        if self._kafka.now < self._kafka.away_until:
            self.advance((self._kafka.away_until - self._kafka.now) / 1000)

    # ----------------------------------------------------------------------------------- time

    @property
    def now(self) -> float:
        """Simulated seconds since the beginning."""
        return self._kafka.clock_ms / 1000

    def advance(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            AssertionError: an assertion failed in a callback.
            CallbackHangs: a callback waits for something that is not simulated.
            BadInput: `seconds` is no span.
        """
        _check_span("advance", seconds)
        self._drive(self._kafka.now + seconds * 1000)

    def sleep(self, seconds: float) -> None:
        """Wait in a callback or a thread of a worker; there, `time.sleep` does the same."""
        self._threads.wait(lambda: False, seconds)

    def thread(self, target: Callable[[], None], worker: str | None = None) -> None:
        """Start a thread of a worker, on simulated time.

        Args:
            target: the code.
            worker: member id; None = the worker in whose callback this is called.
        """
        machine = current_machine() if worker is None else self._worker_named(worker).machine
        if machine is None:
            raise self._history.failed("name the worker of a thread that no callback starts")
        machine.thread("thread", target).start()

    def settle(self, within: float = SETTLE_S) -> float:
        """Let time pass until nothing is left to do; return how many seconds that took.

        Raises:
            EnvironmentFailed: something is still to be done after `within` seconds.
        """
        began = self.now
        self._until(lambda: not self._unsettled(), lambda: "the group has not settled", within)
        return self.now - began

    # ------------------------------------------------------------------- questions and checks

    @property
    def story(self) -> str:
        """Everything that happened so far, one line each."""
        return self._history.story()

    def owner(self, task: Task | str) -> str | None:
        """The worker that runs a task now, as its callbacks show; None = none does.

        Raises:
            EnvironmentFailed: the group has had no such task.
        """
        parsed = parse_task(task) if isinstance(task, str) else task
        if all(table.find(parsed) is None for table in self._tables):
            raise self._history.failed(f"the group never had a task {str(parsed)!r}")
        worker = self._runner(parsed)
        return None if worker is None else worker.member_id

    def owners(self) -> dict[str, str | None]:
        """Each task of the newest configuration → the worker that runs it; None = none does."""
        return {str(task): self.owner(task) for task in self._tasks()}

    def use(self, task: Task | str) -> None:
        """Say that the code that calls this uses a task: it processes, writes or commits.

        Call it in a callback or a thread of a worker. `assert_never_two_owners` fails if the worker
        does not hold the task at this moment.
        """
        parsed = parse_task(task) if isinstance(task, str) else task
        machine = current_machine()
        worker = next((w for w in self._processes if w.machine is machine), None)
        if worker is None:
            raise self._history.failed("call `use` in a callback or a thread of a worker")
        wrong = None
        if not worker.holds(parsed):
            owner = self.owner(parsed)
            other = f"; {owner} runs it" if owner not in (None, worker.member_id) else ""
            wrong = f"when it did not hold the task{other}"
        self._history.use(worker.process, parsed, self._kafka.now, wrong)

    def assert_never_two_owners(self) -> None:
        """Check that no task was run by two workers at one time, or used by one without it.

        Raises:
            EnvironmentFailed: it was; the message says when, by whom, and what happened before.
        """
        settings = parse_settings(self._config, self._assignor)
        violations = self._history.violations(self._kafka.now, stop_ms(settings.session_timeout_ms))
        if violations:
            first_ms = min(violation.at_ms for violation in violations)
            raise self._history.failed("\n".join(v.text for v in violations), first_ms)

    def assert_owned(self, within: float = OWNED_S) -> None:
        """Let time pass until every task is run by a worker.

        Raises:
            EnvironmentFailed: a task is not, after `within` seconds.
        """
        idle = self._idle
        self._until(lambda: not idle(), lambda: f"no worker runs {', '.join(idle())}", within)

    # ------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """End every worker and thread at once; callbacks are not called any more."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._threads.close()
        finally:
            end_simulated_time()

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._after()  # an assertion of a callback that the test has not seen yet
        finally:
            self.close()

    # ----------------------------------------------------------------------------- the inside

    def _log(self, text: str) -> None:
        self._history.add_line(self._kafka.now, text)

    def _check_open(self) -> None:
        if not self._is_open:
            raise self._history.failed("the environment is closed: ask within its `with`")

    def _check_started(self, name: str) -> None:
        if name not in self._recipes:
            known = ", ".join(self._recipes) or "none"
            raise self._history.failed(f"there was no worker {name!r} yet; there are: {known}")

    def _worker_named(self, name: str) -> SimulatedWorker:
        worker = self.workers.get(name)
        if worker is None:
            raise self._history.failed(f"there is no worker {name!r}")
        return worker

    def _thawed(self, worker: SimulatedWorker) -> None:
        frozen = worker.process.frozen
        if frozen and frozen[-1][1] == FOREVER:
            frozen[-1] = (frozen[-1][0], self._kafka.now)

    def _write_config(self) -> None:
        settings = parse_settings(self._config, self._assignor)
        name, units = self._assignor, self._units
        self._kafka.send(GroupConfig(group=GROUP, assignor=name, settings=settings, tasks=units))

    def _drive(self, until: float) -> None:
        self._check_open()
        if current_machine() is not None:
            raise self._history.failed(
                "only the test moves the time; a callback waits with `sleep`"
            )
        try:
            self._threads.drive(until)
        except InvariantViolation as violation:
            raise self._history.failed(f"the group broke a rule of its own: {violation}") from None
        self._after()

    def _after(self) -> None:
        failures = [failure for worker in self._processes for failure in worker.failures()]
        if failures:
            raise failures[0]

    def _until(self, stop: Callable[[], bool], why: Callable[[], str], within: float) -> None:
        """Let time pass until `stop()`; if it does not come, `why` says what is wrong."""
        _check_span("within", within)
        until = self._kafka.now + within * 1000
        while not stop():
            if self._kafka.now >= until:
                unsettled = self._unsettled(in_words=True)
                text = f"after {within:g} s {why()}" + (f": {unsettled}" if unsettled else "")
                raise self._history.failed(text)
            self._drive(min(until, self._kafka.now + LOOK_MS))

    def _tasks(self) -> list[Task]:
        table = self._tables[-1]
        return [table.task(index) for index in range(len(table))]

    def _runner(self, task: Task) -> SimulatedWorker | None:
        processes = self._history.runners(task, self._kafka.now)
        runs = [w for w in self._processes if w.machine.runs and w.process in processes]
        return runs[-1] if runs else None

    def _idle(self) -> list[str]:
        tasks = self._tasks()
        return [str(task) for task in tasks if self._is_idle(task)] if tasks else ["any task"]

    def _is_idle(self, task: Task) -> bool:
        worker = self._runner(task)
        if worker is None:
            return True
        return task in worker.not_begun["on_assigned"]

    def _is_member(self, name: str) -> bool:
        job = self._kafka.jobs.newest
        return job is None or MemberId(name) in job.group.roster.by_id

    def _has_expired(self, name: str) -> bool:
        """Whether the group has given its tasks away; Connect's assignors first wait for it."""
        job = self._kafka.jobs.newest
        if job is None or self._is_member(name):
            return False
        return job.group.timers.delay_until_ms is None

    def _unsettled(self, *, in_words: bool = False) -> str | None:
        if self._kafka.has_unread_orders:
            return "no coordinator has read what the operator wrote"
        workers, now = self.workers.values(), self._kafka.now
        doing = unsettled(self._kafka.jobs, workers, now, in_words=in_words)
        if doing is None and self._kafka.has_unread_news:
            return "no coordinator has read what the workers wrote"
        return doing


def _check_span(name: str, seconds: object) -> None:
    """Check that a span of time can pass.

    Raises:
        BadInput: it is no number, or negative, or endless.
    """
    is_span = isinstance(seconds, int | float) and 0 <= seconds < math.inf
    if not is_span or isinstance(seconds, bool):
        raise BadInput(f"{name}: {seconds!r}: expected seconds, 0 or more")


def _lookup(assignor: str | type | Assignor) -> tuple[str, Callable[[str], Assignor]]:
    """The name of an assignor, and the function that looks assignors up by name."""
    if isinstance(assignor, str):
        plugins.get(assignor)
        return assignor, plugins.get
    assignor_class = assignor if inspect.isclass(assignor) else type(assignor)
    name = f"{assignor_class.__module__}:{assignor_class.__qualname__}"
    instance = assignor() if inspect.isclass(assignor) else assignor
    guarded = plugins.Guarded(registry.adapted(name, instance))
    return name, lambda asked: guarded if asked == name else plugins.get(asked)
