"""Spans of time as people say them: "57 s", "12 min", "3 h", "4 d"."""

from __future__ import annotations

import time

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"))


def span(spent_ms: int) -> str:
    """Seconds, minutes, hours or days, whichever says it shortest. Below 0 counts as 0."""
    for unit_ms, unit in _UNITS:
        if spent_ms >= 2 * unit_ms:
            return f"{spent_ms // unit_ms} {unit}"
    return f"{max(spent_ms, 0) // 1000} s"


def ago(now_ms: int, at_ms: int) -> str:
    """How long a moment is past, both in epoch milliseconds; clocks may differ a little."""
    return f"{span(now_ms - at_ms)} ago"


def wall_ms() -> int:
    """This machine's time, epoch milliseconds."""
    return time.time_ns() // 1_000_000
