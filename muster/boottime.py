"""Milliseconds since boot, including time the machine was suspended: a clock that never steps.

A member measures its lease on it. Unlike a plain monotonic clock it runs on while a laptop or
virtual machine is suspended, so a member that resumes sees that its lease has ended. The
coordinator's clock counts time with it, because a machine's wall clock may be set.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS counts sleep in MONOTONIC


def boottime_ms() -> int:
    """Milliseconds since boot."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
