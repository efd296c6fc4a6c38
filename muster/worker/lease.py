"""How long a member may use its tasks without hearing that it is still alive to the coordinator.

The coordinator gives tasks away in two cases. It has heard nothing for the session timeout, which
it counts from the broker's timestamp of an event; the member counts from the moment it *sent* the
newest event that Kafka acknowledged, which was earlier. Or it asked for tasks and was not obeyed
for the rebalance timeout: a member whose reader hangs while its heartbeats go out. So the member
counts from the older of two moments: that one, and the newest at which it had read everything that
was written to it. A rebalance timeout no shorter than the session timeout makes that soon enough.

It stops early: by a hundredth, for clocks that run apart, and by the time that stopping takes.
"""

from __future__ import annotations

from typing import Final

STOP_MS_MAX: Final = 3_000


def stop_ms(session_timeout_ms: int) -> int:
    """Time kept back at the end of a session for stopping: a tenth, at most `STOP_MS_MAX`."""
    return min(STOP_MS_MAX, session_timeout_ms // 10)


def lease_until_ms(since_ms: int, session_timeout_ms: int) -> int:
    """When the lease ends that counts from `since_ms`."""
    return since_ms + session_timeout_ms * 99 // 100 - stop_ms(session_timeout_ms)


class Proof:
    """What one session can show: when it was heard at the latest, and when it had read all.

    Times are milliseconds of the member's clock. Before it is admitted it can show nothing.
    """

    def __init__(self, first_join_ms: int = 0) -> None:
        """Begin with the first join: no record to this session can be older than that."""
        self._first_join_ms = first_join_ms
        self._heard_ms: int | None = None
        self._read_ms = first_join_ms
        self._joins_ms: list[int] = []  # when joins that Kafka has were sent; until admitted

    @property
    def since_ms(self) -> int | None:
        """What the lease counts from; None before the session is admitted."""
        return None if self._heard_ms is None else min(self._heard_ms, self._read_ms)

    @property
    def complaint(self) -> str:
        """Why a lease that ran out was not renewed."""
        if self._heard_ms is not None and self._read_ms < self._heard_ms:
            return "the lease ran out: assignments could not be read in time"
        return "the lease ran out: Kafka acknowledged nothing in time"

    def acknowledge(self, sent_ms: int) -> None:
        """Kafka has an event that was sent then."""
        if self._heard_ms is None:
            self._joins_ms.append(sent_ms)
        else:
            self._heard_ms = max(self._heard_ms, sent_ms)

    def catch_up(self, at_ms: int) -> None:
        """Everything written by then has been read."""
        self._read_ms = max(self._read_ms, at_ms)

    def admit(self, session_timeout_ms: int) -> None:
        """The first answer was read.

        It proves that the log has a join; of several, the first is the safe one to count from. The
        others count if no session could end in between: a process that slept and asks again may
        read an answer to what it asked before it slept.
        """
        self._heard_ms = self._first_join_ms
        for sent_ms in sorted(self._joins_ms):
            if sent_ms < lease_until_ms(self._heard_ms, session_timeout_ms):
                self._heard_ms = max(self._heard_ms, sent_ms)
        self._joins_ms.clear()
