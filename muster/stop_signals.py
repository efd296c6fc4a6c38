"""Lets a command end in order at the first SIGTERM or Ctrl-C; the second ends it at once.

The handler of the signal only writes a byte into a pipe. Python may run it in the middle of any
statement of the main thread, so it raises nothing and takes no lock. An exception there makes
`Thread.join` take a running thread for an ended one, and `Event.set` waits forever if the
interrupted statement holds the event's lock.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 0.2
"""How often a command that waits for another thing looks for a stop signal, in seconds."""


class StopRequest:
    """Whether a stop signal has arrived.

    Args:
        pipe: file descriptor that can be read once a signal has arrived.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the first stop signal. False when `timeout_s` passed first; None = no limit."""
        return bool(select.select([self._pipe], [], [], timeout_s)[0])


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Within the block, SIGTERM and SIGINT ask the command to stop; only for the main thread."""
    pipe, entrance = os.pipe()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def on_signal(*_: object) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.write(entrance, b"!")

    for number in STOP_SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield StopRequest(pipe)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(entrance)
        os.close(pipe)
