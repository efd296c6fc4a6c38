"""Gives a governor a thread and a queue of what happens to it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final

from muster.adopt.governor import Governor
from muster.adopt.log import Log
from muster.adopt.model import Happening, Jobs, Options, Round, State, Stop, Watched
from muster.adopt.wire import Line
from muster.protocol.errors import MusterError
from muster.protocol.records import GroupSnapshot
from muster.worker.boottime import boottime_ms

log = logging.getLogger("muster.adopt")

IDLE_S: Final = 1.0
RECORD_MS: Final = 5_000
"""How long the reader may take to read a group's records, before its governor begins."""
QUIET_S: Final = 0.25
"""After so long without a newer record the newest has been read."""


class Failed(MusterError):
    """A governor ended because of a defect.

    Operator action: report what the log says; start the command again.
    """


class Runner:
    """One governed group; `start` it once, `stop` it once.

    Args:
        options: how it is governed.
        line: to its coordinator in Kafka.
        topics: muster's.
        needs: called with the topics its members read; answer with `has_jobs`.
        watch: called to find out whether another governor is in the group; answer with `watched`.
        played: called after each round.
    """

    def __init__(
        self,
        options: Options,
        line: Line,
        topics: Log,
        needs: Callable[[Sequence[str]], None],
        watch: Callable[[], None],
        played: Callable[[Round], None],
    ) -> None:
        self.needs, self.watch, self.played = needs, watch, played
        self._line, self._group = line, options.group
        self._is_known = options.is_known
        self._defect: Failed | None = None
        self._happenings: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        post = self._happenings.put
        self._governor = Governor(options, line, topics, self, post, boottime_ms)
        self._thread = threading.Thread(
            target=self._run, name=f"muster-governor-{options.group}", daemon=True
        )
        topics.follow(options.group, post)

    @property
    def failure(self) -> MusterError | None:
        """Why it ended by itself; None = it did not."""
        return self._defect or self._governor.failure

    @property
    def state(self) -> State:
        """Of the governor."""
        return self._governor.state

    def start(self) -> None:
        """Begin to govern."""
        self._thread.start()

    def has_jobs(self, jobs: Jobs) -> None:
        """Kafka's topics or connectors are these now."""
        self._happenings.put(jobs)

    def watched(self, governed: bool | None) -> None:
        """Whether another governor is in the group; None = not known."""
        self._happenings.put(Watched(governed))

    def stop(self) -> None:
        """Hand the group back: it goes on with its own assignor. Returns at once; see `join`."""
        self._happenings.put(Stop())

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end. Return whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._govern()
        except Exception:  # a defect must not look like a group that was handed back
            log.exception("the governor failed", extra={"group": self._group})
            self._defect = Failed(f"the governor of {self._group!r} failed; its log says how")
        finally:
            self._line.close()

    def _read_on(self) -> None:
        """Take the group's newest record in, before anything is said."""
        until_ms = boottime_ms() + RECORD_MS
        seen = False
        while self._governor.state is State.NEW and boottime_ms() < until_ms:
            try:
                happening = self._happenings.get(timeout=QUIET_S)
            except queue.Empty:
                if seen:
                    return
                continue
            seen = seen or isinstance(happening, GroupSnapshot)
            self._governor.take(happening)

    def _govern(self) -> None:
        if self._is_known:
            self._read_on()
        if self._governor.state is State.NEW:
            self._governor.begin()
        while self._governor.state is not State.ENDED:
            due = self._governor.due_ms()
            wait_s = IDLE_S if due is None else max(0.0, (due - boottime_ms()) / 1_000)
            try:
                happening = self._happenings.get(timeout=wait_s)
            except queue.Empty:
                self._governor.take(None)
            else:
                self._governor.take(happening)
