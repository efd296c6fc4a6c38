"""Whether the process is ready, and well, as a supervisor asks; whether it works, for its signs.

*Ready*: the job holds the claim and the query has caught up once, so the process answers members;
or it is a standby that waits and can take over at once. A coordinator stays ready while it
processes new rows, as long as it is well.

*Well*: the query makes progress and no thread of the process has died, whether it is the
coordinator, stands by or starts. Progress is a finished batch, or a look for rows that found none.
A query without progress for `stall_s` is stuck, whether the batch hangs in Python, in the JVM or in
the sink. A query that reports no rows while Kafka has rows for it makes no progress either. A
restart helps in each of these cases. While Kafka does not answer, a restart would not help, so that
time does not count. A process that is starting needs no progress to be well, because every step
before the query runs has its own time limit.

*Works*: what a process must do so that it goes on writing its sign of life; a standby takes over
when it reads none. A coordinator that starts must finish steps; later its JVM must answer.

Times are `now_s` of a monotonic clock. The caller passes them, so the rules need no clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

STEP_S_MAX = 60.0
"""A coordinator that starts writes no signs of life when no step of the start was done for so long.

The start may have any number of steps: each group that is read back and loaded takes some. One step
may take as long as one group batch may, and half as long again (`muster.group.cpu.ms`).
"""
JVM_S_MAX = 2.0
"""A coordinator whose JVM has not answered for this long writes no signs of life."""


class Answer(NamedTuple):
    """The answer to a probe, and its reason."""

    fine: bool
    why: str


class Health:
    """What is known of the query, Kafka and the claim. Any thread may call any method.

    Args:
        stall_s: how long the query may make no progress while Kafka answers, in seconds.
        holds_claim: whether no other job has claimed to be the coordinator.
        group_cpu_s: CPU time that one group batch may take, in seconds.

    Attributes:
        is_standby: whether the process waits as a standby, and is warm.
    """

    def __init__(
        self, stall_s: float, holds_claim: Callable[[], bool], group_cpu_s: float = 0.0
    ) -> None:
        self._stall_s = stall_s
        self._step_s_max = max(STEP_S_MAX, 1.5 * group_cpu_s)
        self._holds_claim = holds_claim
        self._parts: dict[str, Callable[[], bool]] = {}
        self._lock = threading.Lock()
        self._started_s: float | None = None
        self._moved_s = 0.0
        self._caught_up = False
        self._read: int | None = None
        self._is_left = False
        self.is_standby = False

    def depends_on(self, part: str, alive: Callable[[], bool]) -> None:
        """Register a part without which the process is not well; `part` is its name in answers."""
        self._parts[part] = alive

    def running(self, now_s: float) -> None:
        """Note that the query has been started."""
        with self._lock:
            self._started_s = self._moved_s = now_s
            self._caught_up = False  # the short run that loads groups does not count

    def gets_on(self, now_s: float) -> None:
        """Note a step of the start, such as a group that was read back or published."""
        with self._lock:
            if self._started_s is None:
                self._moved_s = now_s

    def moved(self, now_s: float) -> None:
        """Note that a batch is done."""
        with self._lock:
            self._moved_s = now_s
            self._is_left = False

    def caught_up(self, now_s: float) -> None:
        """Note that the query found no rows; ignored while Kafka knows of rows that it left."""
        with self._lock:
            if self._is_left:
                return
            self._caught_up = True
            self._moved_s = now_s

    def waiting(self, rows: int, read: int) -> None:
        """Note how many rows wait for the query, by Kafka's offsets.

        If rows wait and `read` (the sum of the offsets up to which the query reports to have read)
        is the same as at the last look, the rows are *left*: a query that finds no rows then has
        missed them.
        """
        with self._lock:
            self._is_left = rows > 0 and read == self._read
            self._read = read

    def silent(self, now_s: float) -> None:
        """Note that Kafka did not answer; the time until now does not count as a stall."""
        with self._lock:
            self._moved_s = now_s

    def ready(self, now_s: float | None = None) -> Answer:
        """Whether this process answers members; with a time, whether it is also well then."""
        if not self._holds_claim():
            return Answer(False, "superseded: another job has claimed to be the coordinator")
        if not self.is_standby and self._started_s is None:
            return Answer(False, "starting")
        if not self.is_standby and not self._caught_up:
            return Answer(False, "catching up: the query has not yet read all there is")
        well = Answer(True, "") if now_s is None else self.well(now_s)
        return Answer(True, "standby" if self.is_standby else "ready") if well.fine else well

    @property
    def dead_part(self) -> str:
        """A part of the process that has died; empty = none has."""
        return next((part for part, alive in [*self._parts.items()] if not alive()), "")

    def well(self, now_s: float) -> Answer:
        """Whether the process is well; if it is not, a restart helps."""
        if part := self.dead_part:
            return Answer(False, f"the {part} has died")
        with self._lock:
            if self._started_s is None:
                return Answer(True, "standby" if self.is_standby else "starting")
            stalled_s = now_s - self._moved_s
        if stalled_s > self._stall_s:
            return Answer(False, f"stalled: no progress for {stalled_s:.0f} s, and Kafka answers")
        return Answer(True, "ok")

    def works(self, now_s: float, *, has_claimed: bool, jvm_answered_s: float) -> bool:
        """Whether a standby, or a coordinator that starts or runs, writes its sign of life now.

        Args:
            now_s: the time.
            has_claimed: whether the steps of a coordinator's start have begun.
            jvm_answered_s: when the JVM last answered.
        """
        if not self.well(now_s).fine:
            return False
        with self._lock:
            is_started, still_s = self._started_s is not None, now_s - self._moved_s
        if not is_started:
            return not has_claimed or still_s < self._step_s_max
        return now_s - jvm_answered_s < JVM_S_MAX
