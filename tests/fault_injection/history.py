"""The ownership history of a simulated run: what its processes note about the tasks they use.

Each task is a lock (`support/worker/locks.py`). A process acquires it with a token when it begins
to use the task, and releases it when the task has stopped, when the process is dead, or when its
guard has stopped every task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING

from fault_injection.process import FOREVER, Process
from support.worker.locks import NEVER, Operation, Token, unexplained

from muster.protocol.ids import Task

if TYPE_CHECKING:
    from fault_injection.fault_run import FaultRun


class History:
    """What the processes of a run note about their ownership."""

    def __init__(self) -> None:
        self._operations: dict[Task, list[Operation]] = defaultdict(list)
        self._held: dict[tuple[Process, Task], int] = {}
        self._tokens: dict[tuple[Process, Task], Token] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """Periods of ownership so far."""
        return self._count

    def acquired(self, user: Process, tasks: Iterable[Task], token: Token, now: float) -> None:
        """A process begins to use tasks."""
        for task in tasks:
            self.released(user, [task], now)  # it goes on under a newer token
            self._count += 1
            self._held[user, task], self._tokens[user, task] = self._count, token
            taken = Operation(self._count, user.identity, token, -NEVER, now)
            self._operations[task].append(taken)

    def again(self, user: Process, tasks: Iterable[Task], now: float) -> None:
        """A process whose guard had stopped tasks uses them again, with the tokens they had."""
        for task in tasks:
            if (user, task) not in self._held and (user, task) in self._tokens:
                self.acquired(user, [task], self._tokens[user, task], now)

    def released(self, user: Process, tasks: Iterable[Task], at_ms: float) -> None:
        """A process does not use tasks any more from a moment on."""
        for task in tasks:
            hold = self._held.pop((user, task), None)
            if hold is not None:
                ended = Operation(hold, user.identity, None, at_ms, NEVER)
                self._operations[task].append(ended)

    def held(self, user: Process) -> list[Task]:
        """The tasks that a process uses."""
        return [task for process, task in self._held if process is user]

    def broken(self) -> str:
        """How the history of a task is not that of a lock; empty = each one is."""
        for process in {process for process, _ in self._held}:
            if isinstance(process, NotingProcess):
                process.note()  # a frozen one has not noted yet that its guard has stopped tasks
        for task, operations in self._operations.items():
            lines = unexplained(operations)
            if lines:
                story = "; ".join(map(str, lines))
                return f"{task} is no lock with fencing tokens: {story}"
        return ""


class NotingProcess(Process):
    """A process that notes in a history what it uses."""

    def __init__(
        self,
        around: FaultRun,
        name: str,
        number: int,
        rng: Random,
        history: History,
        *,
        instance_id: str | None = None,
        static: Sequence[str] = (),
    ) -> None:
        self._history = history
        self._guard = FOREVER
        self._clock = around
        super().__init__(around, name, number, rng, instance_id=instance_id, static=tuple(static))

    @property
    def guard_ends(self) -> float:
        """True time at which the guard has killed every task."""
        return self._guard

    @guard_ends.setter
    def guard_ends(self, until: float) -> None:
        self._note_guard()
        self._guard = until
        if until > self._clock.now:
            self._history.again(self, getattr(self, "using", ()), self._clock.now)

    def _note_guard(self) -> None:
        if self._guard <= self._clock.now:
            self._history.released(self, self._history.held(self), self._guard)

    def note(self) -> None:
        """Note the tasks that have stopped."""
        self._note_guard()
        stopped = [task for task in self._history.held(self) if task not in self.using]
        self._history.released(self, stopped, self._clock.now)

    def _release(self, *given: object) -> None:
        super()._release(*given)  # type: ignore[arg-type]
        self.note()

    def _lost(self, incarnation: int) -> None:
        super()._lost(incarnation)
        self.note()

    def die(self, line: str) -> None:
        """The process ends with all its tasks."""
        super().die(line)
        self.note()
