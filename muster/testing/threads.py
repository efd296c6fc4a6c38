"""Threads on simulated time: one runs at a time, and none runs while the time moves.

Each is a thread of the operating system. The driver lets one run, and waits until that thread waits
for a time, a queue or a flag of the environment. A seed decides which of several ready threads runs
next, so a test can be repeated exactly, and other seeds give other orders.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from muster.protocol.errors import MusterError
from muster.simulation.kafka import SimulatedKafka

if TYPE_CHECKING:
    from muster.testing.simulated_machine import VirtualMachine

HANGS_S: Final = 60.0
"""Real time after which a thread counts as hanging: it waits for something not simulated."""
FOREVER: Final = float("inf")
_real_sleep = time.sleep


class CallbackHangs(MusterError):
    """Code under test waits for something that the environment does not simulate.

    Operator action: the message shows where; let it wait with `time.sleep`, `asyncio.sleep` or
    `Environment.sleep`, and start its threads with `Environment.thread`.
    """


class EnvironmentClosed(BaseException):
    """Ends a thread, because the environment is closed."""


class VirtualThread(threading.Thread):
    """A thread of a simulated process."""

    def __init__(
        self, threads: Threads, owner: VirtualMachine, name: str, target: Callable[[], None]
    ) -> None:
        super().__init__(name=f"{owner.name}-{name}", daemon=True)
        self.owner = owner
        self.threads = threads
        self.until = FOREVER
        self.ready: Callable[[], bool] | None = None  # None = it can run
        self.has_ended = False
        self.is_abandoned = False  # it hangs, and the driver does not wait for it any more
        self.failure: BaseException | None = None
        self.may_run = threading.Lock()
        self.may_run.acquire()
        self._work = target

    def start(self) -> None:
        """Let it run when the driver next looks for a thread."""
        self.threads.add(self)
        super().start()

    def run(self) -> None:
        """The body; called in the new thread."""
        self.may_run.acquire()
        try:
            if not self.threads.is_closing:
                self._work()
        except EnvironmentClosed:
            pass
        except BaseException as failure:  # the driver raises it
            self.failure = failure
        finally:
            self.has_ended = True
            if not self.is_abandoned:
                self.threads.driver_may_run.release()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, in simulated time."""
        self.threads.wait(lambda: self.has_ended, timeout)


class Threads:
    """All threads of an environment, and the driver that moves the time.

    Attributes:
        is_closing: every thread ends as soon as it runs or waits.
        driver_may_run: released by a thread that waits or ends.
    """

    def __init__(self, kafka: SimulatedKafka, seed: int) -> None:
        self.is_closing = False
        self.driver_may_run = threading.Lock()
        self.driver_may_run.acquire()
        self._kafka = kafka
        self._all: list[VirtualThread] = []
        self._rng = Random(f"threads/{seed}")  # noqa: S311 — no secret
        self._driver = threading.current_thread()

    def add(self, thread: VirtualThread) -> None:
        """Add a thread that is about to start.

        Raises:
            EnvironmentClosed: the environment is closed.
        """
        if self.is_closing:
            raise EnvironmentClosed
        self._all.append(thread)

    def wait(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Let the calling thread wait; return whether it became ready in time.

        A thread of the environment lets others run. The thread of the test moves the time. Any
        other thread waits in real time until the simulated time has come.
        """
        if self.is_closing and threading.current_thread() is not self._driver:
            raise EnvironmentClosed
        if ready():
            return True
        if timeout_s is not None and timeout_s <= 0:
            return False
        until = FOREVER if timeout_s is None else self._kafka.now + timeout_s * 1000
        thread = threading.current_thread()
        if isinstance(thread, VirtualThread) and thread.threads is self:
            if thread.is_abandoned:
                raise EnvironmentClosed
            thread.ready, thread.until = ready, until
            self.driver_may_run.release()
            thread.may_run.acquire()
            if self.is_closing:
                raise EnvironmentClosed
        elif thread is self._driver:
            self.drive(until, ready)
        else:
            while not ready() and self._kafka.now < until and not self.is_closing:
                _real_sleep(0.001)
        return ready()

    def drive(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Run threads and move the time up to `until` (true time in ms), or until `stop()`.

        Raises:
            CallbackHangs: a thread waits for something that the environment does not simulate.
        """
        kafka = self._kafka
        while not stop():
            if can_run := [thread for thread in self._all if self._can_run(thread)]:
                self._switch(self._rng.choice(can_run))
                continue
            wakes = min((t.until for t in self._all if t.owner.runs), default=FOREVER)
            due = min(wakes, kafka.next_at)
            if due > until or due == FOREVER:
                kafka.now = max(kafka.now, until) if until < FOREVER else kafka.now
                return
            if kafka.next_at <= wakes:
                kafka.call_next()
            else:
                kafka.now = max(kafka.now, wakes)

    def _can_run(self, thread: VirtualThread) -> bool:
        if not thread.owner.runs:
            return False
        return thread.ready is None or self._kafka.now >= thread.until or thread.ready()

    def _switch(self, thread: VirtualThread) -> None:
        thread.ready, thread.until = None, FOREVER
        thread.may_run.release()
        if not self.driver_may_run.acquire(timeout=HANGS_S):
            thread.is_abandoned = True
            self._all.remove(thread)
            frame = sys._current_frames().get(thread.ident or 0)
            where = "".join(traceback.format_stack(frame)[-3:]) if frame is not None else ""
            raise CallbackHangs(
                f"{thread.name} neither returned nor slept in {HANGS_S:.0f} s of real time;"
                f" it is here:\n{where}"
            )
        if thread.has_ended:
            self._all.remove(thread)
            if thread.failure is not None and not self.is_closing:
                raise thread.failure

    def close(self) -> None:
        """End every thread.

        Raises:
            CallbackHangs: a thread does not end; the others have ended.
        """
        self.is_closing = True
        hangs: list[CallbackHangs] = []
        for thread in list(self._all):
            try:
                while not thread.has_ended:
                    self._switch(thread)
            except CallbackHangs as hang:
                hangs.append(hang)
        if hangs:
            raise hangs[0]


class VirtualQueue(queue.SimpleQueue[Any]):
    """A queue whose readers wait in simulated time."""

    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self._threads = threads

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401
        """Take the oldest item; wait for one.

        Raises:
            queue.Empty: none came within `timeout` seconds.
        """
        self._threads.wait(lambda: not self.empty(), timeout if block else 0)
        return super().get(block=False)


class VirtualFlag(threading.Event):
    """A flag for which threads wait in simulated time."""

    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self._threads = threads

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False when `timeout` seconds passed first."""
        return self._threads.wait(self.is_set, timeout)


def current_machine() -> VirtualMachine | None:
    """The machine of the calling thread; None if it is not a thread of an environment."""
    thread = threading.current_thread()
    return thread.owner if isinstance(thread, VirtualThread) else None
