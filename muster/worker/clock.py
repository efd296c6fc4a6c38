"""The one clock of a member: milliseconds since boot, time asleep included.

Leases are measured on it. It never steps, and unlike a plain monotonic clock it also counts the
time a laptop or virtual machine was suspended, so a member that wakes up knows its lease is over.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS counts sleep in MONOTONIC


def boottime_ms() -> int:
    """Milliseconds since boot."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
