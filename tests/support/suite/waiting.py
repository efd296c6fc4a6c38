"""Waits for conditions: the only way in which tests of services wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 240.0
"""Much longer than anything takes, also where ten other programs want the same cores: it finds
hangs and not slowness."""


def until(
    condition: Callable[[], T],
    what: str,
    *,
    timeout_s: float = PATIENCE_S,
    pause_s: float = 0.05,
    story: Callable[[], object] | None = None,
) -> T:
    """Call `condition` until its answer is true, and return that answer.

    Args:
        condition: called again and again.
        what: description of the condition, for the message of a failure.
        timeout_s: longest wait.
        pause_s: between two calls.
        story: describes the current state, for the message of a failure.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            detail = f"\n{story()}" if story is not None else ""
            raise AssertionError(f"waited {timeout_s:.0f} s in vain until {what}{detail}")
        time.sleep(pause_s)
