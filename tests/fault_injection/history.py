"""The ownership history of a run, and whether a lock with fencing tokens could have answered so.

Each task is a lock. A process acquires it with a token when it begins to use the task, and releases
it when the task has stopped, when the process is dead, or when its guard has stopped every task. A
history is *linearizable* (Herlihy and Wing) if its operations can be put in one order, each at a
moment between its call and its return, in which the lock would have answered as it did: it gives
itself to one owner at a time, and each owner has a newer token than the one before.

This check shares nothing with the one of overlaps in `checker.py`: it sees only what processes
noted, and searches for an order (Wing and Gong's algorithm).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple, TypeAlias

from muster.protocol.ids import Task
from muster.simulation.process import FOREVER, Around, Process

Token: TypeAlias = tuple[int, int]
"""A fencing token: generation and epoch of the assignment in force."""
NEVER = float("inf")


class Operation(NamedTuple):
    """An operation on the lock of a task. Times are true time in ms.

    Attributes:
        hold: number of the period of ownership that it begins or ends.
        owner: name of the process; one that starts again has the same.
        token: the fencing token of an acquire; None = this is the release.
        called: the earliest moment at which it can have happened.
        returned: the latest such moment.
    """

    hold: int
    owner: str
    token: Token | None
    called: float
    returned: float

    def __str__(self) -> str:
        what = "releases" if self.token is None else f"acquires with token {self.token}"
        at_ms = self.called if self.token is None else self.returned
        return f"{at_ms:,.1f} ms  {self.owner} {what}"


class Lock(NamedTuple):
    """A lock with fencing tokens.

    Attributes:
        hold: number of the period for which it is owned; None = it is free.
        newest: token of the newest owner.
        owner: name of the newest owner.
    """

    hold: int | None = None
    newest: Token = (-1, -1)
    owner: str = ""

    def after(self, operation: Operation) -> Lock | None:
        """The lock after an operation; None = it would have answered otherwise.

        A member that returns under its name may get the token that it had.
        """
        token = operation.token
        if token is None:
            return self._replace(hold=None) if self.hold == operation.hold else None
        is_newer = token > self.newest or (token == self.newest and operation.owner == self.owner)
        if self.hold is not None or not is_newer:
            return None
        return Lock(operation.hold, token, operation.owner)


def unexplained(operations: Iterable[Operation]) -> list[Operation]:
    """The operations around the first one that no order of all explains; empty = there is an order.

    Args:
        operations: of one task.
    """
    waiting = sorted(operations, key=lambda each: (each.returned, each.called))
    count = len(waiting)
    longest: tuple[int, ...] = ()
    seen: set[tuple[int, Lock]] = set()
    # Each entry: the operations that are in order (one bit each), the lock after them, the order.
    stack: list[tuple[int, Lock, tuple[int, ...]]] = [(0, Lock(), ())]
    while stack:
        done, lock, order = stack.pop()
        if len(order) > len(longest) or not longest:
            longest = order
        rest = [index for index in range(count) if not done >> index & 1]
        if not rest or all(waiting[index].returned == NEVER for index in rest):
            return []  # what has not returned need not have happened
        soonest = min(waiting[index].returned for index in rest)
        for index in reversed(rest):
            operation = waiting[index]
            if operation.called > soonest:
                continue  # another one has returned before it was called
            then = lock.after(operation)
            if then is None:
                continue
            place = (done | 1 << index, then)
            if place not in seen:
                seen.add(place)
                stack.append((*place, (*order, index)))
    stuck = next(index for index in range(count) if index not in longest)
    return [waiting[index] for index in sorted({*longest[-6:], stuck})]


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
            taken = Operation(self._count, user.name, token, -NEVER, now)
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
                ended = Operation(hold, user.name, None, at_ms, NEVER)
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
        around: Around,
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
