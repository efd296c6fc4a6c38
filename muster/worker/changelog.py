"""Computes the lags of copies from their changelogs: positions from the user, ends from Kafka.

A task's lag is the end offset less the restored offset, summed over its partitions, as in Kafka
Streams (`computeTaskLags`, KIP-924). Lags are computed when the assignment changes, every second
while a copy waits to take over or an active still restores, and every 30 s otherwise. Only lags
that changed are posted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from operator import index
from typing import Any, Final, TypeAlias

from confluent_kafka import TopicPartition

from muster.kafka.lasting_admin import LATEST, LastingAdmin, answered
from muster.protocol.errors import ConfigError
from muster.protocol.events import Lag
from muster.protocol.ids import Task
from muster.protocol.records import MemberAssignment
from muster.protocol.tasks import EMPTY, TaskSet
from muster.worker.machine import THIS_MACHINE, Machine
from muster.worker.session_messages import LagsKnown

log = logging.getLogger("muster.worker.kafka")

Positions: TypeAlias = Mapping[tuple[str, int], int]
"""(topic, partition) of a changelog -> the offset up to which it is restored."""
Changelog: TypeAlias = Callable[[Task], Positions | None]
"""Returns the positions of a task; None = there is nothing to restore, or nothing is left."""

ANSWER_S: Final = 3.0
"""How long one question to the brokers may take."""
FIRST_TRIES: Final = 3
"""Attempts before the first join: without these lags the coordinator takes the copies for lost."""
SOON_S: Final = 1.0
RARELY_S: Final = 30.0
LAG_END: Final = 2**63
"""Lags are below it: events have 64 bits for them, one for the sign."""


class ChangelogLags:
    """Computes the lags of a worker's tasks, in a thread of its own."""

    def __init__(
        self,
        config: Mapping[str, Any],
        positions: Changelog | None,
        on_disk: TaskSet,
        post: Callable[[LagsKnown], None],
        machine: Machine = THIS_MACHINE,
    ) -> None:
        """Prepare; nothing is connected yet.

        `positions` is called in this object's thread, for one task at a time; None = no lags are
        computed. `on_disk` are copies that an earlier process left. `post` gets lags that changed.
        """
        self._positions = positions
        self._on_disk = on_disk
        self._post = post
        self._machine = machine
        self._admin = LastingAdmin(config, log)  # used by the thread only
        self._kicked = machine.flag()
        self._closing = False
        self._lock = threading.Lock()
        self._copies = self._active = self._wanted = EMPTY
        self._restored = EMPTY  # actives whose lag is no longer computed
        self._posted: dict[Task, int] = {}
        self._complaints: dict[str, str] = {}  # what was logged -> its error; for the thread only

    # ----------------------------------------------------------------- called by the worker's loop

    def open(self, then: Callable[[], None]) -> None:
        """Compute the lags of copies on the disk, call `then`, and go on in the background."""
        if self._positions is None:
            then()
            return
        positions = self._positions
        self._machine.thread("muster-lags", lambda: self._run(positions, then)).start()

    def assigned(self, record: MemberAssignment) -> None:
        """Follow the tasks of this assignment."""
        with self._lock:
            before = (self._copies, self._active, self._wanted)
            self._copies, self._active = record.standby | record.learner, record.active
            self._wanted = record.learner | record.next
            self._restored = self._restored & self._active
            has_changed = before != (self._copies, self._active, self._wanted)
        if has_changed:
            self._kicked.set()

    def lost(self) -> None:
        """Every task is lost. Their state is still on the disk, so the next join carries lags."""
        with self._lock:
            self._copies, self._active = self._copies | self._active, EMPTY
            self._wanted = self._restored = EMPTY
            self._posted.clear()
        self._kicked.set()

    def close(self) -> None:
        """End the thread; returns at once."""
        self._closing = True
        self._kicked.set()

    # --------------------------------------------------------------------------------- the thread

    def _run(self, positions: Changelog, then: Callable[[], None]) -> None:
        try:
            for _ in range(FIRST_TRIES):
                if self._try_to_look(positions, self._on_disk, EMPTY) or self._closing:
                    break
                self._kicked.wait(SOON_S)
        finally:  # without lags the worker must join all the same
            then()
        while not self._closing:
            with self._lock:
                is_awaited = any(self._posted.get(task, 1) for task in self._wanted)
                is_awaited |= any(self._posted.get(task) for task in self._active - self._restored)
            self._kicked.wait(SOON_S if is_awaited else RARELY_S)
            self._kicked.clear()
            with self._lock:
                copies, restoring = tuple(self._copies), self._active - self._restored
            if not self._closing:
                self._try_to_look(positions, copies, restoring)

    def _try_to_look(
        self, positions: Changelog, copies: Iterable[Task], restoring: TaskSet
    ) -> bool:
        """`_look`; True also when it raised, because it would raise again."""
        try:
            complete = self._look(positions, copies, restoring)
        except Exception as error:  # whatever the positions cause, this thread must go on
            self._complain("lags are not known", error)
            return True
        self._complaints.pop("lags are not known", None)
        return complete

    def _look(self, positions: Changelog, copies: Iterable[Task], restoring: TaskSet) -> bool:
        """Post the lags that changed; False when an end offset could not be read."""
        answers = {task: self._positions_of(positions, task) for task in (*copies, *restoring)}
        known = {task: offsets for task, offsets in answers.items() if offsets is not None}
        to_restore = {task: offsets for task, offsets in known.items() if offsets}
        lags = self._lags(to_restore)
        is_complete = len(lags) == len(to_restore)
        lags |= {task: 0 for task in restoring if known.get(task) == {}}
        with self._lock:
            # Once restored, an active lags only behind what it writes itself.
            self._restored |= TaskSet.of(t for t in restoring if known.get(t) and lags.get(t) == 0)
            # Without a lag an active counts as restored: its first 0 is no change.
            unposted = {task: 0 if task in restoring else None for task in lags}
            changed = {t: n for t, n in lags.items() if n != self._posted.get(t, unposted[t])}
            self._posted.update(changed)
        if changed:
            self._post(LagsKnown(tuple(Lag(t, n) for t, n in sorted(changed.items()))))
        return is_complete

    def _lags(self, positions_of: Mapping[Task, Positions]) -> dict[Task, int]:
        """Lags of the tasks for which every partition's end offset could be read."""
        ends = self._ends({place for positions in positions_of.values() for place in positions})
        return {
            task: sum(max(0, ends[place] - max(0, offset)) for place, offset in positions.items())
            for task, positions in positions_of.items()
            if ends.keys() >= positions.keys()
        }

    def _ends(self, places: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
        if not places:
            return {}
        ends, failure = answered(self._admin.client, places, LATEST, ANSWER_S)
        if failure is not None:
            log.info("changelogs do not say where they end: %s", failure)
            self._admin.replace()  # refused for an old epoch, it would be refused for minutes
        return ends

    def _positions_of(self, positions: Changelog, task: Task) -> Positions | None:
        """A task's positions; empty = nothing to restore, None = the user's function failed."""
        complaint = f"how far {task} is restored is not known"
        try:
            checked = _checked(positions(task) or {})
        except Exception as error:
            self._complain(complaint, error)
            return None
        self._complaints.pop(complaint, None)
        return checked

    def _complain(self, complaint: str, error: Exception) -> None:
        """Log an error, unless it is the same as when this was tried before."""
        if self._complaints.get(complaint) != repr(error):
            self._complaints[complaint] = repr(error)
            log.error("%s: %s", complaint, error, exc_info=error)


def checked_lag(task: Task | str, lag: int) -> int:
    """A lag in offsets as events may have it: 0 or more.

    Raises:
        ConfigError: it is not a whole number, or 2**63 or more.
    """
    try:
        whole = index(lag)
    except TypeError:
        whole = LAG_END
    if whole >= LAG_END:
        raise ConfigError(f"lag of {task}", lag, "a whole number below 2**63")
    return max(0, whole)


def _checked(answer: Positions) -> Positions:
    """The answer of the user's function, with Python's own integers.

    Raises:
        ValueError: a key is not (topic, partition), or a value is no offset.
    """
    checked: dict[tuple[str, int], int] = {}
    for place, offset in dict(answer).items():
        try:
            topic, partition = place
            topic_partition = TopicPartition(topic, index(partition))  # raises what it cannot hold
            checked[topic_partition.topic, topic_partition.partition] = index(offset)
        except (TypeError, ValueError, OverflowError):
            got = f"{place!r}: {offset!r}"
            raise ValueError(f"expected (topic, partition): offset, got {got}") from None
    return checked
