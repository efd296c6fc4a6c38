"""A background thread that runs while a ``with`` block does."""

from __future__ import annotations

import threading
from typing import Self


class Loop:
    """Runs `_run` in a thread; leaving the block sets `_closing` and waits for the thread's end.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        """Work until `_closing` is set."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
