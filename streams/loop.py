"""A thread beside the work: it runs from entering to leaving a ``with`` block."""

from __future__ import annotations

import threading
from typing import Self


class Loop:
    """Starts `_run` in a thread of its own; leaving waits until it has seen that it is to end.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        """Until `_closing` is set."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
