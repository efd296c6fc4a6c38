"""SIGTERM and SIGINT end the job within a few seconds, at any moment of its life.

The main thread looks at the event that `signals` gives whenever it can. It cannot while a call into
Kafka's client or into the JVM blocks it: Python runs a signal's handler only between two
instructions of its own. The C part of the handler runs at once, though, and writes a byte into a
pipe. A thread reads that pipe, gives the main thread its grace, and then ends the process. What is
cut off does no harm: the next start repeats the batch. The JVM ends by itself when the pipe to its
parent closes.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

START_GRACE_S = 3.0
"""Grace while the job starts: nothing runs yet that is worth an orderly end."""
RUN_GRACE_S = 10.0
"""Grace while the query runs: longer than a stop takes on a busy machine with Kafka at hand."""
STOPPED = 0
"""Exit code of a job that was told to stop."""
_STOPPING = (signal.SIGTERM, signal.SIGINT)


class Stop(threading.Event):
    """Set when the job is told to stop.

    Attributes:
        grace_s: how long the main thread may take to end from then on.
    """

    grace_s = START_GRACE_S


@contextmanager
def signals(end: Callable[[int], object] = os._exit) -> Iterator[Stop]:
    """Within the block, SIGTERM and SIGINT set the event, and the block must end in its grace.

    Args:
        end: ends the process with an exit code; for tests.
    """
    stop, left = Stop(), threading.Event()
    before = {number: signal.getsignal(number) for number in _STOPPING}
    pipe, entrance = socket.socketpair()
    entrance.setblocking(False)
    entrance_before = signal.set_wakeup_fd(entrance.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        if _is_told_to_stop(pipe):
            stop.set()
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
    """Let the signals set the event; again after PySpark has put a handler of its own on SIGINT."""
    for number in _STOPPING:
        signal.signal(number, lambda *_: stop.set())


def _is_told_to_stop(pipe: socket.socket) -> bool:
    """Wait for a signal that asks to stop; False when the block has ended without one."""
    while numbers := pipe.recv(64):
        if any(number in numbers for number in _STOPPING):
            return True
    return False
