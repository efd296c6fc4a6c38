"""Calls the user's callbacks: one at a time, in order, in a thread of their own.

The session goes on while a callback runs. docs/worker.md has the rules for callbacks that raise and
for losses. The group does not learn of an `on_assigned` or `on_learn` that raises: a task that
fails here would fail one member after the other. After a stop that kept failing it is unknown
whether the tasks stopped, so the worker fails without reporting them as released.

While `on_revoked` or `on_forget` runs, `Caller.released` reports tasks that have stopped before the
others. When the callback returns, the rest has stopped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from typing import Final, TypeAlias

from tenacity import RetryCallState, Retrying, stop_after_attempt, wait_exponential
from tenacity.wait import wait_base

from muster.protocol.ids import Role, Task
from muster.protocol.tasks import EMPTY, TaskSet
from muster.worker.arguments import check_callable, is_coroutine_function
from muster.worker.assignment import Assignment
from muster.worker.errors import CallbackFailed
from muster.worker.machine import THIS_MACHINE, Machine
from muster.worker.session_messages import AllStopped, Input, Released

log = logging.getLogger("muster.worker")

Callback: TypeAlias = Callable[[tuple[Task, ...], Assignment], Awaitable[None] | None]

STOP_ATTEMPTS: Final = 5
"""How often a callback that stops tasks is called before the worker fails."""
HUNG_S: Final = 10.0
"""A callback that has run for this long, or 2, 4, 8, … times as long, is logged."""
LOOK_AGAIN_S: Final = 0.01
_STOP_PAUSE = wait_exponential(multiplier=0.05, max=1)
_START_PAUSE = wait_exponential(multiplier=0.2, max=30)
"""Longest pauses after the first, second, ... failure; the pause is a random part of it."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The user's callbacks, all optional. `on_lost` defaults to `on_revoked` and `on_forget`."""

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_learn: Callback | None = None
    on_forget: Callback | None = None
    on_lost: Callback | None = None
    on_wanted: Callback | None = None

    def check(self) -> None:
        """Refuse callbacks that cannot be called.

        Raises:
            ConfigError: names one, and what would be right.
        """
        for field in fields(self):
            check_callable(field.name, getattr(self, field.name), "tasks", "assignment")

    def starts(self, role: Role) -> Callback | None:
        """The callback that starts tasks in a role."""
        return self.on_assigned if role is Role.ACTIVE else self.on_learn

    def stops(self, role: Role) -> Callback | None:
        """The callback that stops tasks in a role."""
        return self.on_revoked if role is Role.ACTIVE else self.on_forget

    def any_of(self, role: Role) -> bool:
        """Whether a callback gets tasks in this role. For copies `on_lost` alone does not count."""
        lost = self.on_lost if role is Role.ACTIVE else None
        callbacks = (self.starts(role), self.stops(role), lost)
        return any(callback is not None for callback in callbacks)

    def loses(self, role: Role) -> Callback | None:
        """The callback for tasks that are lost."""
        return self.on_lost or self.stops(role)

    @property
    def any_coroutine(self) -> bool:
        """Whether one of them needs an event loop."""
        callbacks = (getattr(self, field.name) for field in fields(self))
        return any(is_coroutine_function(callback) for callback in callbacks)


@dataclass(frozen=True, slots=True)
class _Call:
    """A queued call that starts or stops tasks, or names wanted copies.

    `era` is the number of losses before it: a call of an older era is dropped. `due_s` is on the
    monotonic clock.
    """

    start: bool
    role: Role
    tasks: TaskSet
    assignment: Assignment
    era: int
    wanted: bool = False
    attempt: int = 1
    due_s: float = 0.0


_Lost: TypeAlias = dict[Role, tuple[TaskSet, Assignment]]


class Caller:
    """The thread that calls the callbacks, and the tasks that they have started."""

    def __init__(
        self,
        callbacks: Callbacks,
        post: Callable[[Input], None],
        fail: Callable[[BaseException], None],
        lease_runs: Callable[[], bool],
        machine: Machine = THIS_MACHINE,
    ) -> None:
        self._callbacks = callbacks
        self._post = post
        self._fail = fail
        self._lease_runs = lease_runs
        self._machine = machine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: queue.SimpleQueue[_Call | None] = machine.queue()
        self._again: list[_Call] = []  # failed calls to repeat; used by the thread only
        self._lock = threading.Lock()
        self._era = 0
        self._running: _Call | None = None
        self._released_early = EMPTY  # tasks of the running call, released before it returned
        self._since_s = 0.0  # when the running call began
        self._hung_s = HUNG_S  # how long it may run before it is logged
        self._started: _Lost = {}
        self._unstopped = 0  # calls that `AllStopped` still waits for
        self._thread = machine.thread("muster-callbacks", self._run)
        self._losing: list[threading.Thread] = []  # threads that call `on_lost`

    # ----------------------------------------------------------------- called by the worker's loop

    def open(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Start; with a loop, callbacks run on it."""
        self._loop = loop
        self._thread.start()

    def close(self, wait_s: float) -> None:
        """Stop after the queued calls; wait at most `wait_s` seconds for them and `on_lost`."""
        self._queue.put(None)
        until_s = self._machine.monotonic_s() + wait_s
        for thread in (self._thread, *self._losing):
            thread.join(max(0.0, until_s - self._machine.monotonic_s()))

    @property
    def inside(self) -> bool:
        """Whether callbacks may wait for the calling code.

        It runs in one of them, or on the event loop that runs them.
        """
        thread = threading.current_thread()
        if thread is self._thread or thread in self._losing:
            return True
        return self._loop is not None and _running_loop() is self._loop

    def hung(self) -> str | None:
        """A log line about the running callback, when it has run for long; otherwise None."""
        with self._lock:
            call, runs_s = self._running, self._machine.monotonic_s() - self._since_s
            if call is None or runs_s < self._hung_s:
                return None
            self._hung_s *= 2
            running_tasks = ", ".join(map(str, call.tasks - self._released_early))
        if call.start:
            verb, effect = "start", "callbacks behind it wait"
        else:
            verb, effect = "stop", "the group waits for it, and fences a member that is too slow"
        tasks = running_tasks or "tasks that were released"
        return f"the callback that is to {verb} {tasks} has run for {runs_s:.0f} s; {effect}"

    def start(self, role: Role, tasks: TaskSet, assignment: Assignment) -> None:
        """Queue the start of tasks."""
        if not self._callbacks.any_of(role):
            return
        self._queue.put(_Call(True, role, tasks, assignment, self._era))

    def want(self, tasks: TaskSet, assignment: Assignment) -> None:
        """Queue `on_wanted` for copies to restore before others."""
        if self._callbacks.on_wanted is not None:
            self._queue.put(_Call(True, Role.LEARNER, tasks, assignment, self._era, True))

    def stop(self, role: Role, tasks: TaskSet, assignment: Assignment) -> None:
        """Queue the stop of tasks; `Released` is posted when they have stopped."""
        if not self._callbacks.any_of(role):
            self._post(Released(role, tasks))  # no callback started them, so none has to stop them
            return
        self._queue.put(_Call(False, role, tasks, assignment, self._era))

    def released(self, tasks: TaskSet) -> None:
        """Tasks of the running stop callback have stopped; other tasks are ignored.

        Any thread may call this.
        """
        with self._lock:
            call = self._running
            if call is None or call.start or call.era != self._era:
                return
            stopped = (tasks & call.tasks) - self._released_early
            if stopped:
                self._released_early = self._released_early | stopped
                self._note(replace(call, tasks=stopped))
                self._post(Released(call.role, stopped))

    def lose(self) -> None:
        """Stop everything at once; `AllStopped` is posted when everything has stopped."""
        with self._lock:
            self._era += 1
            lost, self._started = self._started, {}
            self._unstopped = 1 if self._running is None else 2
        thread = self._machine.thread("muster-lost", lambda: self._call_lost(lost))
        self._losing = [*(t for t in self._losing if t.is_alive()), thread]
        thread.start()

    # --------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        while (call := self._next()) is not None:
            with self._lock:
                if call.era != self._era:
                    continue
                self._running, self._released_early = call, EMPTY
                self._since_s, self._hung_s = self._machine.monotonic_s(), HUNG_S
            try:
                called = self._start(call) if call.start else self._stop(call)
            except BaseException as error:  # whatever a callback raises, the worker must fail
                with self._lock:
                    self._running = None
                    if call.start:  # it may have begun: these tasks are lost with the others
                        self._note(call)
                self._fail(error)
                return
            self._finish(call, called)

    def _next(self) -> _Call | None:
        while True:
            due = min(self._again, key=lambda c: c.due_s, default=None)
            try:
                wait_s = None if due is None else max(0.0, due.due_s - self._machine.monotonic_s())
                return self._queue.get(timeout=wait_s)
            except queue.Empty:
                assert due is not None
                self._again.remove(due)
                return due

    def _start(self, call: _Call) -> bool:
        callback = self._callbacks.on_wanted if call.wanted else self._callbacks.starts(call.role)
        # After a freeze this thread may run before the worker's loop has checked the lease.
        while not self._lease_runs() and call.era == self._era:
            self._machine.sleep(LOOK_AGAIN_S)
        if callback is None or call.era != self._era:
            return False
        if call.role is Role.ACTIVE:
            self._forget_failed(call)  # a failed `on_learn` of these tasks is not repeated
        try:
            self._invoke(callback, call.tasks, call.assignment)
        except Exception:
            pause_s = self._machine.between(0, pause_s_of(_START_PAUSE, call.attempt))
            names = ", ".join(map(str, call.tasks))
            log.exception(
                "starting %s failed; again in %.1f s", names, pause_s, extra=call.assignment.about
            )
            due_s = self._machine.monotonic_s() + pause_s
            self._again.append(replace(call, attempt=call.attempt + 1, due_s=due_s))
        return True

    def _stop(self, call: _Call) -> bool:
        self._forget_failed(call)
        callback = self._callbacks.stops(call.role)
        if callback is not None:
            self._insist(callback, call.tasks, call.assignment, lambda: self._released_early)
        return True

    def _forget_failed(self, call: _Call) -> None:
        """Do not repeat failed starts of these tasks, in any role."""
        remaining = []
        for again in self._again:
            if again.era == call.era:
                again = replace(again, tasks=again.tasks - call.tasks)
            if again.tasks and again.era == call.era:
                remaining.append(again)
        self._again = remaining

    def _finish(self, call: _Call, called: bool) -> None:
        with self._lock:
            self._running = None
            if call.era == self._era:
                if call.start:
                    self._note(call)
                elif remaining := call.tasks - self._released_early:
                    self._note(replace(call, tasks=remaining))
                    self._post(Released(call.role, remaining))
                return
        # All tasks were lost while the callback ran.
        if call.start and called:
            self._call_lost({call.role: (call.tasks, call.assignment)})
        else:
            self._count_stopped()

    def _note(self, call: _Call) -> None:
        for role, (tasks, assignment) in self._started.items():
            self._started[role] = (tasks - call.tasks, assignment)
        if call.start:
            tasks = self._started.get(call.role, (EMPTY, call.assignment))[0]
            self._started[call.role] = (tasks | call.tasks, call.assignment)

    # -------------------------------------------------------------------------------------- losing

    def _call_lost(self, lost: _Lost) -> None:
        try:
            for role, (tasks, assignment) in lost.items():
                callback = self._callbacks.loses(role)
                if tasks and callback is not None:
                    self._insist(callback, tasks, assignment)
        except BaseException as error:  # whatever a callback raises, the worker must fail
            self._fail(error)
            return
        self._count_stopped()

    def _count_stopped(self) -> None:
        with self._lock:
            self._unstopped -= 1
            all_stopped = self._unstopped == 0
        if all_stopped:
            self._post(AllStopped())

    # ------------------------------------------------------------------------------------- calling

    def _insist(
        self,
        callback: Callback,
        tasks: TaskSet,
        assignment: Assignment,
        stopped: Callable[[], TaskSet] = lambda: EMPTY,
    ) -> None:
        """Call until it returns, each time with those of `tasks` that have not `stopped` yet."""

        def log_failure(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome is not None else None
            log.error(
                "%s failed, again: %r",
                _name(callback),
                error,
                exc_info=error,
                extra=assignment.about,
            )

        def call() -> None:
            if remaining := tasks - stopped():
                self._invoke(callback, remaining, assignment)

        retrying = Retrying(
            stop=stop_after_attempt(STOP_ATTEMPTS),
            wait=lambda state: self._machine.between(0, _STOP_PAUSE(state)),
            sleep=self._machine.sleep,
            before_sleep=log_failure,
            reraise=True,
        )
        try:
            retrying(call)
        except Exception as error:
            raise CallbackFailed(_name(callback), tuple(map(str, tasks - stopped()))) from error

    def _invoke(self, callback: Callback, tasks: TaskSet, assignment: Assignment) -> None:
        if self._loop is None:
            _refuse_awaitable(callback, callback(tuple(tasks), assignment))
            return
        coroutine = _awaited(callback, tuple(tasks), assignment)
        try:
            called = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise
        self._machine.result(called)


async def _awaited(callback: Callback, tasks: tuple[Task, ...], assignment: Assignment) -> None:
    result = callback(tasks, assignment)
    if inspect.isawaitable(result):
        await result


def _refuse_awaitable(callback: Callback, result: object) -> None:
    """Nothing awaits it here: the callback would count as done although nothing of it ran."""
    if not inspect.isawaitable(result):
        return
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError(
        f"{_name(callback)} returned an awaitable ({type(result).__name__}), which nothing awaits;"
        " use `async with Worker(...)`, or a callback that returns when its work is done"
    )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _name(callback: Callback) -> str:
    return getattr(callback, "__qualname__", repr(callback))


def pause_s_of(rule: wait_base, attempt: int) -> float:
    """The pause that a rule of tenacity gives after this many failed attempts, in seconds."""
    state = RetryCallState(retry_object=Retrying(), fn=None, args=(), kwargs={})
    state.attempt_number = attempt
    return float(rule(state))
