"""The lease: how long a member may use its tasks without proof that its session lives.

The coordinator gives a member's tasks away in two cases, and the lease ends before either:

- No event of the member has arrived for the session timeout, by the broker's timestamps. The member
  counts from when it *sent* the newest event that Kafka acknowledged, which is earlier. An
  acknowledgement counts only if it comes before the session of the event counted so far can end:
  the event may have reached Kafka after the coordinator gave the tasks away.
- The member was fenced, because it did not release tasks in time, one session timeout ago. So the
  member counts from when it had last read everything, if that is earlier still.

The lease is shorter than the session by 1 %, because clocks drift, and by the time for stopping.

The session timeout may change meanwhile: see `Timeout`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class Timeout:
    """The session timeout of a member whose group may change it.

    For the coordinator a longer timeout counts at once. A shorter one counts from the first report
    of the member that names a record with it, and that report is the newest event then. The member
    does not learn whether the coordinator has the report. So from the report on a session ends at
    the earlier of two moments: by the former timeout, or by the shorter one if it is not counted
    from before the report. The events sent before had the rhythm of the former timeout.

    Attributes:
        ms: the timeout of the newest record.
        former_ms: the longest timeout that may count as long as no event since the report proves
            the session; equal to `ms` if there is none.
        reported_ms: when the report on the shorter timeout was sent; None = it was not. If the
            timeout changes again before the report has proved the session, its time stays: the
            coordinator may have counted from then on.
    """

    ms: int
    former_ms: int
    reported_ms: int | None = None

    @classmethod
    def of(cls, ms: int) -> Timeout:
        """A timeout that has not changed."""
        return cls(ms, ms)

    @property
    def awaits_report(self) -> bool:
        """Whether the timeout is shorter than before and no report was sent since."""
        return self.ms < self.former_ms and self.reported_ms is None

    def changed(self, ms: int, since_ms: int) -> Timeout:
        """As a newer record has it; the session is proved up to `since_ms`."""
        is_proved = self.reported_ms is not None and since_ms >= self.reported_ms
        longest_ms = self.ms if is_proved else self.former_ms
        if ms >= longest_ms:
            return Timeout.of(ms)
        return Timeout(ms, longest_ms, None if is_proved else self.reported_ms)

    def reported(self, now_ms: int) -> Timeout:
        """After a report on the newest record; the first one counts."""
        return replace(self, reported_ms=now_ms) if self.awaits_report else self

    def session_until_ms(self, since_ms: int) -> int:
        """Until when a session lives for certain that is proved up to `since_ms`."""
        former_until_ms = session_until_ms(since_ms, self.former_ms)
        if self.reported_ms is None:
            return former_until_ms
        return min(former_until_ms, session_until_ms(max(since_ms, self.reported_ms), self.ms))

    def lease_until_ms(self, since_ms: int) -> int:
        """When a lease that counts from `since_ms` ends."""
        return self.session_until_ms(since_ms) - stop_ms(self.ms)


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

    def acknowledge(self, sent_ms: int, now_ms: int, timeout: Timeout) -> None:
        """Kafka has acknowledged an event of a member; it counts if the session still lived."""
        assert self._heard_ms is not None
        if now_ms < timeout.session_until_ms(self._heard_ms):
            self._heard_ms = max(self._heard_ms, sent_ms)

    def catch_up(self, at_ms: int) -> None:
        """Everything written to the member before `at_ms` has been read."""
        self._read_ms = max(self._read_ms, at_ms)

    def admit(self, timeout: Timeout) -> None:
        """The coordinator has answered a join.

        The answer proves that one join is in the log; the first is the safe one to count from. A
        process that was suspended and asks again may read the answer to an earlier join.
        """
        self._heard_ms = self._first_join_ms
        for sent_ms, acknowledged_ms in sorted(self._joins_ms):
            self.acknowledge(sent_ms, acknowledged_ms, timeout)
        self._joins_ms.clear()
