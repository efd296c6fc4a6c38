"""Is the process ready, is it well? Two questions of a supervisor, with true answers.

*Ready*: the claim is held, and the query has caught up once, so it answers members now. It stays
ready while it works off what comes, as long as it is well.

*Well*: it gets on. A query that neither finishes a batch nor finds nothing waiting for `stall_s` is
stuck, and so is a process one of whose threads has died: a restart is what helps. While Kafka does
not answer nothing can get on, and a restart would not help: that time does not count. Before the
query runs, every step has its own limit, so a start is never called stuck.

Times are `now_s` of a monotonic clock; the caller's, so that the rules can be read without one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple


class Answer(NamedTuple):
    """What a probe says."""

    fine: bool
    why: str


class Health:
    """What is known of the query, Kafka and the claim. Threads may ask and tell at will.

    Args:
        stall_s: how long the query may get nowhere while Kafka answers.
        holds_claim: whether no other job has claimed to be the coordinator.
    """

    def __init__(self, stall_s: float, holds_claim: Callable[[], bool]) -> None:
        self._stall_s = stall_s
        self._holds_claim = holds_claim
        self._parts: dict[str, Callable[[], bool]] = {}
        self._lock = threading.Lock()
        self._started_s: float | None = None
        self._moved_s = 0.0
        self._caught_up = False

    def depends_on(self, part: str, alive: Callable[[], bool]) -> None:
        """A part of the process without which it is not well; `part` is a word for people."""
        self._parts[part] = alive

    def running(self, now_s: float) -> None:
        """The query has been started."""
        with self._lock:
            self._started_s = self._moved_s = now_s
            self._caught_up = False  # a run that only loaded groups does not count

    def moved(self, now_s: float) -> None:
        """A batch is done."""
        with self._lock:
            self._moved_s = now_s

    def caught_up(self, now_s: float) -> None:
        """The query looked, and nothing was waiting."""
        with self._lock:
            self._caught_up = True
            self._moved_s = now_s

    def silent(self, now_s: float) -> None:
        """Kafka did not answer us."""
        with self._lock:
            self._moved_s = now_s

    def ready(self, now_s: float | None = None) -> Answer:
        """Whether members are answered by this process now.

        Args:
            now_s: the time; a process that is not well then is not ready either. None = it is not
                asked whether it is well.
        """
        if not self._holds_claim():
            return Answer(False, "superseded: another job has claimed to be the coordinator")
        if self._started_s is None:
            return Answer(False, "starting")
        if not self._caught_up:
            return Answer(False, "catching up: the query has not yet read all there is")
        well = Answer(True, "") if now_s is None else self.well(now_s)
        return Answer(True, "ready") if well.fine else well

    def well(self, now_s: float) -> Answer:
        """Whether a restart would not help."""
        with self._lock:
            if self._started_s is None:
                return Answer(True, "starting")
            stalled_s = now_s - self._moved_s
        for part, alive in self._parts.items():
            if not alive():
                return Answer(False, f"the {part} has died")
        if stalled_s > self._stall_s:
            return Answer(False, f"stalled: no progress for {stalled_s:.0f} s, and Kafka answers")
        return Answer(True, "ok")
