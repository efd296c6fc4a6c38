"""Spans of time for people: "57 s", "12 min", "3 h", "4 d"."""

from __future__ import annotations

import time

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"))


def span(spent_ms: int) -> str:
    """A span in the largest unit that it has at least two of; below 0 counts as 0."""
    for unit_ms, unit in _UNITS:
        if spent_ms >= 2 * unit_ms:
            return f"{spent_ms // unit_ms} {unit}"
    return f"{max(spent_ms, 0) // 1000} s"


def ago(now_ms: int, at_ms: int) -> str:
    """The span from `at_ms` to `now_ms`, both epoch milliseconds; "0 s ago" if `at_ms` is later."""
    return f"{span(now_ms - at_ms)} ago"


def wall_ms() -> int:
    """This machine's time, epoch milliseconds."""
    return time.time_ns() // 1_000_000
