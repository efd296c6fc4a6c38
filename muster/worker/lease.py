"""How long a member may use its tasks without hearing that it is still alive to the coordinator.

The coordinator counts the session from the broker's timestamp of an event. The member counts from
the moment it *sent* the newest event that Kafka acknowledged, which was earlier, and stops early:
by a hundredth, for clocks that run apart, and by the time that stopping takes.
"""

from __future__ import annotations

from typing import Final

STOP_MS_MAX: Final = 3_000


def stop_ms(session_timeout_ms: int) -> int:
    """Time kept back at the end of a session for stopping: a tenth, at most `STOP_MS_MAX`."""
    return min(STOP_MS_MAX, session_timeout_ms // 10)


def lease_until_ms(sent_ms: int, session_timeout_ms: int) -> int:
    """When the lease ends that an acknowledged event sent at `sent_ms` gives."""
    return sent_ms + session_timeout_ms * 99 // 100 - stop_ms(session_timeout_ms)
