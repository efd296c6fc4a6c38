"""Processes that share work, and end with the process that started them, whatever ends it."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, parent_process
from multiprocessing.context import SpawnContext, SpawnProcess


class _Process(SpawnProcess):
    """A process that Ctrl-C does not reach, not even while it starts."""

    def start(self) -> None:
        """Start it with SIGINT blocked, until it ignores SIGINT (`_end_with_parent`)."""
        mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)


class _Context(SpawnContext):
    Process = _Process


def pool(processes: int, tasks_each: int | None = None) -> ProcessPoolExecutor:
    """Processes for work that is divided.

    They are spawned, not forked, because the caller may have threads (Kafka clients, a test
    runner). They end when the caller ends, also if it is killed; the pools of the standard library
    live on then. Ctrl-C reaches all of a terminal's processes; these leave it to the caller. Each
    is replaced after `tasks_each` tasks, if given.
    """
    return ProcessPoolExecutor(
        processes, _Context(), _end_with_parent, max_tasks_per_child=tasks_each
    )


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None  # this runs in a process of a pool
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, name="muster-parent", daemon=True).start()
