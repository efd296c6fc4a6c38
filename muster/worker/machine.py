"""What a worker asks of its machine: the time, sleep, random numbers, threads and ways to wait.

`muster.testing` has a machine whose time is simulated; on it the same worker code runs.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final

from muster.boottime import boottime_ms


class Machine:
    """The machine that this process runs on.

    Attributes:
        look_up_s: longest time that a thread may wait for something before it looks at the clock
            again; waiting threads do not notice that the machine was suspended. None = it is never
            suspended unnoticed.
    """

    look_up_s: float | None = 1.0

    def boottime_ms(self) -> int:
        """Milliseconds since boot, suspended time included; leases are measured on it."""
        return boottime_ms()

    def monotonic_s(self) -> float:
        """A clock in seconds that never steps."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait."""
        time.sleep(seconds)

    def seed(self) -> int:
        """63 random bits that no other process has."""
        return secrets.randbits(63)

    def between(self, low: float, high: float) -> float:
        """A random number, evenly distributed."""
        return random.uniform(low, high)  # noqa: S311 — no secret

    def queue(self) -> SimpleQueue[Any]:
        """A new queue."""
        return SimpleQueue()

    def flag(self) -> threading.Event:
        """A new flag, not set."""
        return threading.Event()

    def thread(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """A new thread, not started; the process may end before it does."""
        return threading.Thread(target=target, name=name, daemon=True)

    def result(self, future: Future[None]) -> None:
        """Wait for the end of a coroutine that runs on an event loop.

        Raises:
            BaseException: what the coroutine raised.
        """
        future.result()


THIS_MACHINE: Final = Machine()
