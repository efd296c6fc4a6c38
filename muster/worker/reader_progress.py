"""Checks that the reader keeps up with what is written to the member.

`Progress` asks the broker for the end offset of the member's partition and for the number of
partitions of the topic: if that grows, the member's key belongs to another partition. When the
reader has reached the end offset in the right partition, the session gets `CaughtUp`. Otherwise it
gets nothing, and the lease ends.

It asks with an event, unless the last proof is still fresh (`fresh_ms`): a lease lasts for several
heartbeats, and a question costs the broker two requests. Until it has a proof it asks with every
event.

The question needs a connection of its own (an admin client's): a broker answers the requests of a
connection in order, and the reader's request waits there for seconds. After a failed question the
client is replaced (`muster.kafka.lasting_admin` says why).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo

from muster.kafka.lasting_admin import LATEST, LastingAdmin
from muster.worker.session_messages import CaughtUp

log = logging.getLogger("muster.worker.kafka")

ANSWER_S: Final = 3.0
"""How long one question may take; no other is asked meanwhile."""
LOST_MS: Final = 4_000
"""After this long the client has forgotten a question: it should have failed after `ANSWER_S`."""
ENDS_KEPT: Final = 64
"""How many of the newest end offsets are kept until the reader reaches them."""

FRESH_MS_MAX: Final = 10_000
"""A worker finds out that its topic has grown within this time and one heartbeat interval."""

Place: TypeAlias = tuple[str, int]


def fresh_ms(session_timeout_ms: int) -> int:
    """How long a proof is fresh: an eighth of the session, so a failed question can be repeated."""
    return min(session_timeout_ms // 8, FRESH_MS_MAX)


class _BackgroundCalls:
    """A thread for calls that wait. A call that comes while another is queued is dropped."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, job: Callable[[], None]) -> None:
        """Queue a call."""
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(
                target=self._run, name="muster-reader-progress", daemon=True
            )
            self._thread.start()
        with suppress(queue.Full):
            self._jobs.put_nowait(job)

    def close(self) -> None:
        """End the thread; returns at once."""
        self._closed = True
        self.run(lambda: None)

    def _run(self) -> None:
        while not self._closed:
            self._jobs.get()()


class Progress:
    """Compares the end offset of one partition with the reader's position."""

    def __init__(
        self,
        config: Mapping[str, Any],
        post: Callable[[CaughtUp], None],
        grown: Callable[[], None],
        later: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            config: librdkafka's settings of an admin client.
            post: takes `CaughtUp`, from any thread.
            grown: called, from any thread, when the topic's number of partitions has changed.
            later: runs calls that wait for an answer; None = on a thread of its own.
        """
        self._post = post
        self._grown = grown
        self._background = _BackgroundCalls()
        self._later = later or self._background.run
        self._admin = LastingAdmin(config, log)  # used by the session's side
        self._lock = threading.Lock()
        self._place: Place | None = None
        self._partitions = 0
        self._position = 0
        self._same_ms = -1  # newest moment at which the topic had `_partitions`
        self._ends: deque[tuple[int, int]] = deque(maxlen=ENDS_KEPT)  # (end, when it was asked)
        self._asked_ms: int | None = None  # when the open question was asked
        self._question = 0
        self._is_stale = False
        self._fresh_ms = 0
        self._proved_ms: int | None = None  # newest moment up to which everything was read

    # --------------------------------------------------------------------------- the reader's side

    def stand(self, topic: str, partition: int, offset: int, partitions: int) -> None:
        """The reader reads this partition from this offset; `partitions` is the topic's number."""
        with self._lock:
            self._place, self._position = (topic, partition), offset
            self._partitions = partitions
            self._ends.clear()
            self._proved_ms = None

    def read_to(self, offset: int) -> None:
        """Everything below this offset has been read and given to the session."""
        with self._lock:
            self._position = offset
            caught_up_ms = self._reached()
        self._post_caught_up(caught_up_ms)

    # -------------------------------------------------------------------------- the session's side

    def stay_fresh(self, fresh_ms: int) -> None:
        """From now on a proof is fresh for this long, and nothing is asked meanwhile."""
        self._fresh_ms = fresh_ms

    def ask(self, at_ms: int) -> None:
        """Ask whether everything written before now, `at_ms`, has been read; returns at once."""
        with self._lock:
            if self._place is None:
                return
            if self._proved_ms is not None and at_ms - self._proved_ms < self._fresh_ms:
                return
            if self._asked_ms is not None:
                if at_ms - self._asked_ms < LOST_MS:  # one question at a time is enough
                    return
                log.info("%s-%d: no broker says where it ends", *self._place)
                self._is_stale = True
            self._asked_ms = at_ms
            self._question += 1
            place, position, question = self._place, self._position, self._question
            was_stale, self._is_stale = self._is_stale, False
        if was_stale:
            self._admin.replace()
        try:
            admin = self._admin.client
            request = {TopicPartition(*place): LATEST}
            (answer,) = admin.list_offsets(request, request_timeout=ANSWER_S).values()
        except KafkaException as error:
            log.info("cannot ask where %s-%d ends: %s", *place, error)
            with self._lock:
                self._asked_ms = None
            return
        answer.add_done_callback(partial(self._answered, question, place, position, at_ms))
        self._later(partial(self._count, admin, place[0], at_ms))

    def close(self) -> None:
        """Drop the connection; returns at once."""
        with self._lock:
            self._place = None
        self._admin.replace()
        self._background.close()

    # -------------------------------------------------------------------------------------- answers

    def _answered(
        self,
        question: int,
        place: Place,
        position: int,
        at_ms: int,
        answer: Future[ListOffsetsResultInfo],
    ) -> None:
        error = answer.exception()
        with self._lock:
            if question == self._question:  # otherwise its client was dropped
                self._asked_ms = None
                self._is_stale = error is not None
            if error is None and place == self._place:
                end = answer.result().offset
                # An end below the position: the log was truncated, and the reader must start over.
                if end >= position:
                    self._ends.append((end, at_ms))
            caught_up_ms = self._reached()
        if error is not None:
            log.info("%s-%d does not say where it ends: %s", *place, error)
        self._post_caught_up(caught_up_ms)

    def _count(self, admin: AdminClient, topic: str, at_ms: int) -> None:
        try:
            metadata = admin.list_topics(topic, timeout=ANSWER_S).topics[topic]
            error, count = metadata.error, len(metadata.partitions)
        except KafkaException as failure:
            error, count = failure.args[0], 0
        with self._lock:
            is_same = error is None and count == self._partitions
            self._same_ms = max(self._same_ms, at_ms) if is_same else self._same_ms
            self._is_stale |= error is not None
            caught_up_ms = self._reached()
        if error is not None:
            log.info("%s does not say how many partitions it has: %s", topic, error)
        elif not is_same:
            self._grown()
        self._post_caught_up(caught_up_ms)

    def _reached(self) -> int | None:
        """The newest moment whose end offset has been reached. Forgets it and all older ones."""
        known = [(end, at_ms) for end, at_ms in self._ends if at_ms <= self._same_ms]
        reached = [at_ms for end, at_ms in known if end <= self._position]
        if not reached:
            return None
        newest = max(reached)
        self._proved_ms = max(newest, self._proved_ms or newest)
        open_ends = [(end, at_ms) for end, at_ms in self._ends if at_ms > newest]
        self._ends = deque(open_ends, maxlen=ENDS_KEPT)
        return newest

    def _post_caught_up(self, at_ms: int | None) -> None:
        if at_ms is not None:
            self._post(CaughtUp(at_ms))
