"""Waiting for conditions: the only way tests of services may wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 90.0
"""Far more than anything takes; a hang, not slowness, is what it finds."""


def until(
    condition: Callable[[], T],
    what: str,
    *,
    timeout_s: float = PATIENCE_S,
    pause_s: float = 0.05,
    story: Callable[[], object] | None = None,
) -> T:
    """Call `condition` until its answer is true, and give that answer.

    Args:
        condition: looked at again and again.
        what: what is waited for, for the failure.
        timeout_s: how long at most.
        pause_s: between two looks.
        story: adds to the failure what the world looks like.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            told = f"\n{story()}" if story is not None else ""
            raise AssertionError(f"waited {timeout_s:.0f} s in vain until {what}{told}")
        time.sleep(pause_s)
