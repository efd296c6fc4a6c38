"""The machine of a simulated process: simulated time and threads, seeded random numbers.

While an environment is open, `time.sleep`, `time.monotonic` and `time.time` use simulated time in
the environment's threads, and real time in every other thread of the program.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from random import Random
from typing import Final

from muster.simulation.kafka import SimulatedKafka
from muster.testing.threads import (
    EnvironmentClosed,
    Threads,
    VirtualFlag,
    VirtualQueue,
    VirtualThread,
    current_machine,
)
from muster.worker.machine import Machine

EPOCH_S: Final = 1_767_225_600.0
"""`time.time` at the beginning of an environment: 2026-01-01 UTC."""


class VirtualMachine(Machine):
    """Where one simulated process runs.

    Attributes:
        name: for people.
        runs: whether its threads may run now: it is alive and not frozen.
    """

    look_up_s = None

    def __init__(self, name: str, kafka: SimulatedKafka, threads: Threads, seed: str) -> None:
        self.name = name
        self.runs = True
        self._kafka = kafka
        self._threads = threads
        self._rng = Random(seed)  # noqa: S311 — no secret
        self._booted_ms = self._rng.randrange(10**6)

    def boottime_ms(self) -> int:
        """Milliseconds since boot; it goes on while the process is frozen."""
        return int(self._kafka.now) + self._booted_ms

    def monotonic_s(self) -> float:
        """The same clock in seconds."""
        return self._kafka.now / 1000

    def wall_s(self) -> float:
        """The time of day, as `time.time` gives it."""
        return EPOCH_S + self._kafka.clock_ms / 1000

    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait in simulated time."""
        self._threads.wait(lambda: False, seconds)

    def waits(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Let the calling thread wait until `ready()`; False when `seconds` passed first."""
        return self._threads.wait(ready, seconds)

    def seed(self) -> int:
        """63 bits from the environment's seed."""
        return self._rng.getrandbits(63)

    def between(self, low: float, high: float) -> float:
        """A number from the environment's seed."""
        return self._rng.uniform(low, high)

    def queue(self) -> VirtualQueue:
        """A queue on simulated time."""
        return VirtualQueue(self._threads)

    def flag(self) -> VirtualFlag:
        """A flag on simulated time."""
        return VirtualFlag(self._threads)

    def thread(self, name: str, target: Callable[[], None]) -> VirtualThread:
        """A thread on simulated time."""
        return VirtualThread(self._threads, self, name, target)

    def result(self, future: Future[None]) -> None:
        """Wait for the end of a coroutine."""
        self._threads.wait(future.done, None)
        future.result()

    def loop(self) -> VirtualLoop:
        """An event loop on simulated time, which a thread of the process runs."""
        loop = VirtualLoop(self, self._threads)
        self.thread("loop", loop.run_to_the_end).start()
        return loop


class _Selector(selectors.SelectSelector):
    """Waits for file descriptors in simulated time."""

    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self._threads = threads

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._threads.wait(lambda: bool(super(_Selector, self).select(0)), timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop, on simulated time."""

    def __init__(self, machine: VirtualMachine, threads: Threads) -> None:
        super().__init__(_Selector(threads))
        self._machine = machine

    def time(self) -> float:
        """The machine's clock in seconds."""
        return self._machine.monotonic_s()

    def run_to_the_end(self) -> None:
        """Run until the environment is closed."""
        try:
            self.run_forever()
        except EnvironmentClosed:
            for task in asyncio.all_tasks(self):
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # it cannot end
                with suppress(RuntimeError):  # it awaits something on its way out
                    task.get_coro().close()
        finally:
            self.close()


# ------------------------------------------------------------------------ the module `time`

_REAL: Final = (time.sleep, time.monotonic, time.time)
_open = 0


def _sleep(seconds: float) -> None:
    machine = current_machine()
    if machine is None:
        _REAL[0](seconds)
    else:
        machine.sleep(seconds)


def _monotonic() -> float:
    machine = current_machine()
    return _REAL[1]() if machine is None else machine.monotonic_s()


def _time() -> float:
    machine = current_machine()
    return _REAL[2]() if machine is None else machine.wall_s()


def simulate_time() -> None:
    """From now on the module `time` is simulated in threads of environments."""
    global _open
    _open += 1
    time.sleep = _sleep  # type: ignore[assignment]  # its argument has another name
    time.monotonic, time.time = _monotonic, _time


def end_simulated_time() -> None:
    """One environment less is open; after the last one the module `time` is the real one."""
    global _open
    _open -= 1
    if _open == 0:
        time.sleep, time.monotonic, time.time = _REAL
