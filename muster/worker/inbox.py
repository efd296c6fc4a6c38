"""The queue of inputs that wait for the worker's loop."""

from __future__ import annotations

import queue
from collections.abc import Callable

from muster.worker.machine import THIS_MACHINE, Machine, Waiting
from muster.worker.messages import Acknowledged, Input


class Inbox:
    """Filled by any thread, emptied by the loop."""

    def __init__(self, machine: Machine = THIS_MACHINE) -> None:
        self._machine = machine
        self._queue: Waiting[Input | None] = machine.queue()

    def put(self, session_input: Input | None) -> None:
        """Add an input; None = abandon the session."""
        self._queue.put(session_input)

    def take(self, deadline_ms: int | None, confirm: Callable[[], None]) -> list[Input | None]:
        """Wait for an input or for the deadline; return all inputs, acknowledgements first.

        Args:
            deadline_ms: on the boot-time clock; None = there is none.
            confirm: puts what Kafka has acknowledged by now.
        """
        wait_s = self._machine.look_up_s
        if deadline_ms is not None:
            left_s = max(0, deadline_ms - self._machine.boottime_ms()) / 1000
            wait_s = left_s if wait_s is None else min(wait_s, left_s)
        try:
            inputs = [self._queue.get(timeout=wait_s)]
        except queue.Empty:
            inputs = []
        confirm()
        while not self._queue.empty():
            inputs.append(self._queue.get())
        return sorted(inputs, key=lambda item: not isinstance(item, Acknowledged))
