"""The end of a worker, which threads and coroutines can wait for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from muster.worker.machine import THIS_MACHINE, Machine


class Ending:
    """An event that is set once."""

    def __init__(self, machine: Machine = THIS_MACHINE) -> None:
        self._event = machine.flag()
        self._wakers: list[Callable[[], object]] = []

    def set(self) -> None:
        """Let every waiting thread and coroutine go on."""
        self._event.set()
        for wake in tuple(self._wakers):  # a coroutine may stop to wait meanwhile
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                wake()

    @property
    def is_set(self) -> bool:
        """Whether it is set."""
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait; False when `timeout_s` passed first."""
        return self._event.wait(timeout_s)

    async def wait_async(self, timeout_s: float | None = None) -> bool:
        """`wait`, for coroutines. It uses no thread, so it cannot wait for a free one."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> object:
            return loop.call_soon_threadsafe(woken.set)

        self._wakers.append(wake)
        try:
            if not self._event.is_set():  # `set` sets the event first, then wakes
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await woken.wait()
        finally:
            self._wakers.remove(wake)  # it may be one of many short waits
        return self._event.is_set()
