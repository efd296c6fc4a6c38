"""The end of a worker, waited for by threads and by coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable


class Ending:
    """Comes once."""

    def __init__(self) -> None:
        self._came = threading.Event()
        self._tell: list[Callable[[], object]] = []

    def come(self) -> None:
        """It is the end: everybody who waits goes on."""
        self._came.set()
        for tell in self._tell:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                tell()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait; False when `timeout_s` came first."""
        return self._came.wait(timeout_s)

    async def awaited(self) -> None:
        """`wait`, for coroutines."""
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        self._tell.append(lambda: loop.call_soon_threadsafe(told.set))
        if not self._came.is_set():  # it comes first, then tells
            await told.wait()
