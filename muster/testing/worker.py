"""The real `Worker` on a simulated machine; it records each call of a callback."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from muster.kafka.client_settings import ClientSettings
from muster.protocol.ids import Task
from muster.protocol.tasks import TaskSet
from muster.signing.followed_key_file import KeyFile
from muster.simulation.trace import tasks_text
from muster.testing.history import History, Process
from muster.testing.simulated_link import SimulatedLags, SimulatedLink
from muster.testing.simulated_machine import VirtualLoop, VirtualMachine
from muster.testing.threads import EnvironmentClosed
from muster.worker.arguments import is_coroutine_function
from muster.worker.assignment import Assignment
from muster.worker.callbacks import Callbacks
from muster.worker.changelog import Changelog
from muster.worker.session import Session
from muster.worker.session_messages import LeaveAsked
from muster.worker.session_steps import State
from muster.worker.worker import Worker

if TYPE_CHECKING:
    from muster.simulation.kafka import SimulatedKafka

CALLBACKS = ("on_assigned", "on_revoked", "on_learn", "on_forget", "on_lost", "on_wanted")
STOPS = ("on_revoked", "on_lost")
BEGINS = ("on_assigned", "on_learn")
"""The worker calls these again until they return."""


class SimulatedWorker(Worker):
    """A worker in an environment; made by `Environment.worker`.

    Everything that a `Worker` has works, in simulated time.

    Attributes:
        process: its process in the history.
        machine: where it runs.
        link: its connection.
        is_alive: whether its process runs; false after a kill.
        is_to_leave: whether it was asked to leave.
    """

    def __init__(
        self,
        *,
        kafka: SimulatedKafka,
        history: History,
        machine: VirtualMachine,
        changelogs: Mapping[tuple[str, int], int],
        settings: Mapping[str, object],
    ) -> None:
        self._machine = self.machine = machine
        self.process = Process(machine.name)
        self.is_alive = True
        self.is_to_leave = False
        self._kafka = kafka
        self._history = history
        self._changelogs = changelogs
        self._failed: list[AssertionError] = []
        callbacks: dict[str, Any] = {name: settings.get(name) for name in CALLBACKS}
        Callbacks(**callbacks).check()  # the worker below gets callables around them
        self._on_loop = any(map(is_coroutine_function, callbacks.values()))
        # A task runs from one callback to another, so these two are recorded in any case.
        recorded = {
            name: self._recording(name, call)
            for name, call in callbacks.items()
            if call is not None or name in ("on_assigned", "on_revoked")
        }
        merged: dict[str, Any] = {**settings, **recorded}
        super().__init__(**merged)

    @property
    def session(self) -> Session:
        """The real session of this member."""
        return self._session

    @property
    def is_reachable(self) -> bool:
        """Whether its process runs, is not frozen, and reaches Kafka."""
        return self.is_alive and self.machine.runs and not self.link.is_cut

    @property
    def has_ended(self) -> bool:
        """Whether it has left, failed, or was killed."""
        return not self.is_alive or self._ending.wait(0) or self._session.state is State.ENDED

    @property
    def can_join(self) -> bool:
        """Whether it is on its way to join: it runs and reaches Kafka."""
        return self.is_reachable and not self.has_ended

    @property
    def has_news(self) -> bool:
        """Whether something other than heartbeats is on its way from it to Kafka."""
        return not self._inbox.empty() or self.link.has_news

    @property
    def not_begun(self) -> dict[str, dict[Task, str]]:
        """`on_assigned`, `on_learn` → task held for which it raised last → its newest error."""
        held = self._session.holding
        held_for = {"on_assigned": held.active, "on_learn": held.standby | held.learner}
        return {
            name: {task: error for task, error in self.process.raised[name].items() if task in held}
            for name, held in held_for.items()
        }

    def failures(self) -> list[AssertionError]:
        """Assertions that failed in callbacks since the last question."""
        failed, self._failed = self._failed, []
        return failed

    def start(self) -> None:
        """Join the group."""
        loop: VirtualLoop | None = self.machine.loop() if self._on_loop else None
        self._start(loop)

    def ask_to_leave(self) -> None:
        """Leave in order, without waiting for it."""
        self.is_to_leave = True
        self._inbox.put(LeaveAsked(temporary=False))

    async def __aenter__(self) -> Worker:
        self._start(asyncio.get_running_loop())
        return self

    def released(self, *tasks: Task | str) -> None:
        """Report tasks that have stopped; see `Worker.released`."""
        named = set(TaskSet.of(tasks)) & self.process.stopping
        if named:
            self._log_line(f"has released {tasks_text(sorted(named))}")
            self._history.end(self.process, named, self._kafka.now, "it released the task")
        super().released(*tasks)

    def ready(self, *tasks: Task | str) -> None:
        """Report copies that have caught up; see `Worker.ready`."""
        self._log_line(f"reports {tasks_text(TaskSet.of(tasks))} as ready")
        super().ready(*tasks)

    # ------------------------------------------------------------------------ its surroundings

    def _new_link(
        self, clients: ClientSettings, prefix: str, keys: KeyFile | None
    ) -> SimulatedLink:
        self.link = SimulatedLink(self._kafka, self.member_id, self.machine, self._inbox.put)
        return self.link

    def _new_lags(
        self, clients: ClientSettings, positions: Changelog | None, on_disk: TaskSet
    ) -> SimulatedLags:
        return SimulatedLags(self.machine, self._changelogs, positions, on_disk, self._inbox.put)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, EnvironmentClosed):
            self._log_line(f"gives up: {error}")
            super()._fail(error)

    def _abandon(self, waited_s: float) -> None:
        self._log_line(
            f"ends without a leave: its callbacks did not return within {waited_s:.0f} s"
        )
        super()._abandon(waited_s)

    def _log_line(self, text: str) -> None:
        self._history.add_line(self._kafka.now, f"{self.process.name} {text}")

    # --------------------------------------------------------------------- watched callbacks

    def _recording(self, name: str, call: Callable[..., Any] | None) -> Callable[..., Any]:
        if self._on_loop:

            async def watched_coroutine(tasks: tuple[Task, ...], assignment: Assignment) -> None:
                began = self._called(name, tasks)
                try:
                    result = None if call is None else call(tasks, assignment)
                    if inspect.isawaitable(result):
                        await result
                except BaseException as error:
                    self._raised(name, tasks, error)
                    raise
                self._returned(name, tasks, began)

            return _named(watched_coroutine, call)

        def watched(tasks: tuple[Task, ...], assignment: Assignment) -> object:
            began = self._called(name, tasks)
            try:
                result = None if call is None else call(tasks, assignment)
            except BaseException as error:
                self._raised(name, tasks, error)
                raise
            if inspect.isawaitable(result):  # nothing has run; the worker refuses it
                refused = TypeError(
                    "it returned an awaitable, which nothing awaits; give a function that is"
                    " `async` itself, and the worker has an event loop"
                )
                self._raised(name, tasks, refused)
                return result
            self._returned(name, tasks, began)
            return None

        return _named(watched, call)

    def _called(self, name: str, tasks: tuple[Task, ...]) -> float:
        now = self._kafka.now
        self._log_line(f"{name}({tasks_text(tasks)})")
        self.process.doing[name] = now
        if name == "on_assigned":
            self._history.begin(self.process, tasks, now)
        elif name == "on_revoked":
            self.process.stopping = set(tasks)
        return now

    def _returned(self, name: str, tasks: tuple[Task, ...], began: float) -> None:
        now = self._kafka.now
        self.process.doing.pop(name, None)
        self._no_longer_raised(name, tasks)
        if now > began:
            self._log_line(
                f"{name}({tasks_text(tasks)}) has returned after {(now - began) / 1000:.3f} s"
            )
        if name in STOPS:
            self.process.stopping -= set(tasks)
            self._history.end(self.process, tasks, now, f"its {name} returned")

    def _no_longer_raised(self, name: str, tasks: tuple[Task, ...]) -> None:
        raised = self.process.raised.get(name, {})
        for task in tasks:
            raised.pop(task, None)

    def _raised(self, name: str, tasks: tuple[Task, ...], error: BaseException) -> None:
        self.process.doing.pop(name, None)
        if isinstance(error, EnvironmentClosed):
            return
        text = f"{type(error).__name__}: {error}"
        self._log_line(f"{name} raised {text}")
        if name in BEGINS:
            self.process.raised[name] |= dict.fromkeys(tasks, text)
        if isinstance(error, AssertionError):
            self._failed.append(error)


def _named(watching: Callable[..., Any], call: Callable[..., Any] | None) -> Callable[..., Any]:
    """`watching` under the name of the user's callback, by which errors name it."""
    if call is not None:
        watching.__qualname__ = getattr(call, "__qualname__", repr(call))
    return watching
