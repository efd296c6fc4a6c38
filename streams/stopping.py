"""SIGTERM and SIGINT end the job within a few seconds, whatever it is doing.

The main thread checks the event of `signals` regularly, but not while a call into Kafka's client or
into the JVM blocks it. So a thread reads what the C part of the signal handler writes into a pipe,
waits for the grace of the main thread, and then ends the process. Cutting off a batch does no harm:
the next start repeats it. The JVM ends by itself when the pipe to its parent closes.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

START_GRACE_S = 3.0
"""Grace while the job starts, when no query runs that must be stopped in order."""
RUN_GRACE_S = 10.0
"""Grace while the query runs: longer than a stop takes on a busy machine while Kafka answers."""
STOPPED = 0
"""Exit code of a job that a signal stopped."""
_STOPPING = (signal.SIGTERM, signal.SIGINT)


class Stop(threading.Event):
    """Set when the job has to stop.

    Attributes:
        grace_s: how long the main thread may take to end after a signal, in seconds.
        is_signalled: whether a signal has arrived; the event is set a moment later.
        on_stop: called in a thread when a signal has set it; each must return at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.grace_s = START_GRACE_S
        self.is_signalled = False
        self.on_stop: list[Callable[[], object]] = []


@contextmanager
def signals(end: Callable[[int], object] = os._exit) -> Iterator[Stop]:
    """Within the block, SIGTERM and SIGINT set the event; then the block must end in the grace.

    If it does not, `end` ends the process with an exit code.
    """
    stop, left = Stop(), threading.Event()
    before = {number: signal.getsignal(number) for number in _STOPPING}
    pipe, entrance = socket.socketpair()
    entrance.setblocking(False)
    entrance_before = signal.set_wakeup_fd(entrance.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        if _is_signalled(pipe):
            for call in (stop.set, *stop.on_stop):
                call()
            if not left.wait(stop.grace_s):
                end(STOPPED)

    watcher = threading.Thread(target=watch, name="muster-stopping", daemon=True)
    watcher.start()
    listen(stop)
    try:
        yield stop
    finally:
        left.set()
        signal.set_wakeup_fd(entrance_before)
        entrance.close()  # ends the thread
        watcher.join()
        pipe.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def listen(stop: Stop) -> None:
    """Note the signals; call it again after PySpark has set its handler of SIGINT.

    The handler does not set the event: if it interrupted the main thread while that holds the
    event's lock, it would wait forever.
    """

    def note(*_: object) -> None:
        stop.is_signalled = True

    for number in _STOPPING:
        signal.signal(number, note)


def _is_signalled(pipe: socket.socket) -> bool:
    """Wait for a signal that stops the job; False = the block has ended without one."""
    while numbers := pipe.recv(64):
        if any(number in numbers for number in _STOPPING):
            return True
    return False
