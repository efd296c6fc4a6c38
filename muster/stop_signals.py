"""Lets a command end in order at the first SIGTERM or Ctrl-C; the second ends it at once.

Python runs a handler only between two instructions of the main thread. If the signal arrives just
before the main thread waits, or in another thread, that is when the wait has ended. So `wait` reads
a pipe into which the C part of the handler writes at once (`signal.set_wakeup_fd`).

The handler raises nothing and takes no lock, because it may run in the middle of any statement.

A container without an init runs the command as process 1. There the kernel drops a signal that has
no handler, also one that would end any other process (`end_at_once`).
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 0.2
"""How often a command that waits for another thing looks for a stop signal, in seconds."""


def end_at_once(number: int) -> None:
    """From now on the signal ends this process, also if it is process 1."""
    if os.getpid() == 1:
        signal.signal(number, lambda signum, _: os._exit(128 + signum))
    else:
        signal.signal(number, signal.SIG_DFL)


class StopRequest:
    """Whether a stop signal has arrived; `pipe` is a descriptor that gives the signals' numbers."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._has_arrived = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the first stop signal. False when `timeout_s` passed first; None = no limit."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._has_arrived:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not select.select([self._pipe], [], [], left_s)[0]:
                return False
            self._has_arrived = any(number in STOP_SIGNALS for number in os.read(self._pipe, 64))
        return True


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Within the block, SIGTERM and SIGINT ask the command to stop; only for the main thread."""
    pipe, entrance = os.pipe()
    os.set_blocking(entrance, False)
    entrance_before = signal.set_wakeup_fd(entrance, warn_on_full_buffer=False)
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def on_signal(*_: object) -> None:
        for number in STOP_SIGNALS:
            end_at_once(number)

    for number in STOP_SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield StopRequest(pipe)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(entrance_before)
        os.close(entrance)
        os.close(pipe)
