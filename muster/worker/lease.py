"""The lease: how long a member may use its tasks without proof that its session lives.

The coordinator gives a member's tasks away in two cases, and the lease ends before either:

- No event of the member has arrived for the session timeout, by the broker's timestamps. The member
  counts from when it *sent* the newest event that Kafka acknowledged, which is earlier. An
  acknowledgement counts only if it comes before the session of the event counted so far can end:
  the event may have reached Kafka after the coordinator gave the tasks away.
- The member was fenced, because it did not release tasks in time, one session timeout ago. So the
  member counts from when it had last read everything, if that is earlier still.

The lease is shorter than the session by 1 %, because clocks drift, and by the time for stopping.
"""

from __future__ import annotations

from typing import Final

STOP_MS_MAX: Final = 3_000


def stop_ms(session_timeout_ms: int) -> int:
    """Time for stopping at the end of a session: a tenth of the timeout, at most `STOP_MS_MAX`."""
    return min(STOP_MS_MAX, session_timeout_ms // 10)


def lease_until_ms(since_ms: int, session_timeout_ms: int) -> int:
    """When a lease that counts from `since_ms` ends."""
    return session_until_ms(since_ms, session_timeout_ms) - stop_ms(session_timeout_ms)


def session_until_ms(since_ms: int, session_timeout_ms: int) -> int:
    """Until when a session lives for certain whose newest event was sent at `since_ms`."""
    return since_ms + session_timeout_ms * 99 // 100


class Proof:
    """When one session last reached Kafka, and when it had last read all of its partition.

    Times are milliseconds of the member's clock.
    """

    def __init__(self, first_join_ms: int = 0) -> None:
        """Begin with the first join: no record to this session is older."""
        self._first_join_ms = first_join_ms
        self._heard_ms: int | None = None
        self._read_ms = first_join_ms
        self._joins_ms: list[tuple[int, int]] = []  # (sent, acknowledged); empty once admitted

    @property
    def since_ms(self) -> int | None:
        """The moment the lease counts from; None before the session is admitted."""
        return None if self._heard_ms is None else min(self._heard_ms, self._read_ms)

    @property
    def complaint(self) -> str:
        """Why the lease was not renewed."""
        if self._heard_ms is not None and self._read_ms < self._heard_ms:
            return "the lease ran out: assignments could not be read in time"
        return "the lease ran out: Kafka acknowledged nothing in time"

    def wait(self, sent_ms: int, now_ms: int) -> None:
        """Kafka has acknowledged a join that is not answered yet."""
        self._joins_ms.append((sent_ms, now_ms))

    def acknowledge(self, sent_ms: int, now_ms: int, session_timeout_ms: int) -> None:
        """Kafka has acknowledged an event of a member; it counts if the session still lived."""
        assert self._heard_ms is not None
        if now_ms < session_until_ms(self._heard_ms, session_timeout_ms):
            self._heard_ms = max(self._heard_ms, sent_ms)

    def catch_up(self, at_ms: int) -> None:
        """Everything written to the member before `at_ms` has been read."""
        self._read_ms = max(self._read_ms, at_ms)

    def admit(self, session_timeout_ms: int) -> None:
        """The coordinator has answered a join.

        The answer proves that one join is in the log; the first is the safe one to count from. A
        process that was suspended and asks again may read the answer to an earlier join.
        """
        self._heard_ms = self._first_join_ms
        for sent_ms, acknowledged_ms in sorted(self._joins_ms):
            self.acknowledge(sent_ms, acknowledged_ms, session_timeout_ms)
        self._joins_ms.clear()
