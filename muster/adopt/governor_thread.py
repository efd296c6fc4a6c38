"""Runs a governor on a thread of its own, with a queue of its inputs."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from muster.adopt.coordinator_connections import CoordinatorConnection
from muster.adopt.governor import Governor
from muster.adopt.model import GovernorInput, Options, State, Stop
from muster.adopt.muster_topics import MusterTopics
from muster.boottime import boottime_ms
from muster.protocol.errors import MusterError
from muster.protocol.records import GroupSnapshot

log = logging.getLogger("muster.adopt")

IDLE_S: Final = 1.0
RECORD_MS: Final = 5_000
"""How long the reader may take to read a group's snapshots before its governor begins."""
QUIET_S: Final = 0.25
"""If no newer snapshot arrives for this long, the newest has been read."""


class Failed(MusterError):
    """A governor ended because of a defect.

    Operator action: report what the log says; start the command again.
    """


class Runner:
    """One governed group; `start` it once, `stop` it once.

    Args:
        options, connection, topics: see `model`.
        watch_partitions: called with the topics that members read; posts their `AssignableUnits`.
        look_for_governor: called to learn whether another governor is in the group; posts the
            `GovernorPresence`.
    """

    def __init__(
        self,
        options: Options,
        connection: CoordinatorConnection,
        topics: MusterTopics,
        watch_partitions: Callable[[Sequence[str]], None],
        look_for_governor: Callable[[], None],
    ) -> None:
        self.watch_partitions, self.look_for_governor = watch_partitions, look_for_governor
        self._connection, self._group = connection, options.group
        self._is_known = options.is_known
        self._defect: Failed | None = None
        self._has_ended = False
        self._inputs: queue.SimpleQueue[GovernorInput] = queue.SimpleQueue()
        self._governor = Governor(options, connection, topics, self, self.post, boottime_ms)
        self._thread = threading.Thread(
            target=self._run, name=f"muster-governor-{options.group}", daemon=True
        )
        topics.follow(options.group, self.post)

    def post(self, governor_input: GovernorInput) -> None:
        """Queue an input; drop it after the end: other groups may be governed on for months."""
        if not self._has_ended:
            self._inputs.put(governor_input)

    @property
    def failure(self) -> MusterError | None:
        """Why the governor ended by itself; None = it runs, was stopped, or was removed."""
        return self._defect or self._governor.failure

    @property
    def state(self) -> State:
        """The governor's state."""
        return self._governor.state

    def start(self) -> None:
        """Begin to govern."""
        self._thread.start()

    def stop(self) -> None:
        """Begin to hand the group back to its own assignor. Returns at once; see `join`."""
        self.post(Stop())

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
            self._has_ended = True
            self._connection.close()

    def _read_newest_record(self) -> None:
        """Wait for the group's newest snapshot before the governor joins."""
        until_ms = boottime_ms() + RECORD_MS
        seen = False
        while self._governor.state is State.NEW and boottime_ms() < until_ms:
            try:
                governor_input = self._inputs.get(timeout=QUIET_S)
            except queue.Empty:
                if seen:
                    return
                continue
            seen = seen or isinstance(governor_input, GroupSnapshot)
            self._governor.take(governor_input)

    def _govern(self) -> None:
        if self._is_known:
            self._read_newest_record()
        if self._governor.state is State.NEW:
            self._governor.begin()
        while self._governor.state is not State.ENDED:
            due = self._governor.due_ms()
            wait_s = IDLE_S if due is None else max(0.0, (due - boottime_ms()) / 1_000)
            governor_input: GovernorInput | None = None
            with suppress(queue.Empty):
                governor_input = self._inputs.get(timeout=wait_s)
            self._governor.take(governor_input)
