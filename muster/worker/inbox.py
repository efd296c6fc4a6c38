"""What has happened to a worker and waits for its loop."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Final

from muster.worker.clock import boottime_ms
from muster.worker.exchange import Acknowledged, Input

LOOK_UP_S: Final = 1.0
"""Longest sleep of the loop: a machine that was suspended is noticed within it."""


class Inbox:
    """Filled by any thread, emptied by the loop."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Input | None] = queue.SimpleQueue()

    def put(self, given: Input | None) -> None:
        """Something happened; None = give the session up."""
        self._queue.put(given)

    def take(self, deadline_ms: int | None, confirm: Callable[[], None]) -> list[Input | None]:
        """Wait until something happens or a moment comes; all there is then, confirmations first.

        Args:
            deadline_ms: that moment, on the boot-time clock.
            confirm: puts what Kafka has acknowledged by now.
        """
        wait_s = LOOK_UP_S
        if deadline_ms is not None:
            wait_s = min(wait_s, max(0, deadline_ms - boottime_ms()) / 1000)
        try:
            given = [self._queue.get(timeout=wait_s)]
        except queue.Empty:
            given = []
        confirm()
        while not self._queue.empty():
            given.append(self._queue.get())
        return sorted(given, key=lambda each: not isinstance(each, Acknowledged))
