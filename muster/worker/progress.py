"""Whether the reader keeps up with what is written to the member.

With every sign of life the broker is asked where the member's partition ends, and how many the
topic has: with more, the member's key belongs to another one. When the reader has got that far, and
reads the right partition, the session is told `CaughtUp`; else nothing is said, and the lease ends.

The question takes a connection of its own (an admin client's): a broker answers the requests of one
connection in turn, and the reader's wait there for records for seconds. It is also what tells a
reader whose connection died in silence from one to which nothing was written. No thread waits here:
answers come in librdkafka's thread, the count of partitions in one of ours, the reader's position
in the reader's.

A client whose question failed, or was not answered at all, is replaced before the next one. It goes
on with the leader and the leader's epoch it knows, for a quarter of an hour, whatever the brokers
answer: after an election all its questions are refused (FENCED_LEADER_EPOCH).
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
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from muster.worker.exchange import CaughtUp

log = logging.getLogger("muster.worker.kafka")

ANSWER_S: Final = 3.0
"""How long one question may take; none is asked meanwhile."""
LOST_MS: Final = 4_000
"""A question this old was forgotten by the client, which promises an error after `ANSWER_S`."""
ENDS_KEPT: Final = 64
"""Ends the reader has not reached yet, newest; far more than a reader that works leaves open."""

_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # of the client
Place: TypeAlias = tuple[str, int]


class _Aside:
    """A thread for calls that wait. One call is enough: what comes meanwhile is left out."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, job: Callable[[], None]) -> None:
        """Have it called soon."""
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="muster-layout", daemon=True)
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
    """Compares where one partition ends with how far it was read."""

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
            post: takes what is found, from any thread.
            grown: called, from any thread, when the topic has another number of partitions.
            later: runs what waits for an answer; None = a thread of its own does.
        """
        self._config = dict(config)
        self._post = post
        self._grown = grown
        self._aside = _Aside()
        self._later = later or self._aside.run
        self._admin: AdminClient | None = None
        self._lock = threading.Lock()
        self._place: Place | None = None
        self._partitions = 0
        self._position = 0
        self._same_ms = -1  # until then the topic has no more partitions
        self._ends: deque[tuple[int, int]] = deque(maxlen=ENDS_KEPT)  # (end, when it was asked)
        self._asked_ms: int | None = None  # of the open question
        self._question = 0
        self._is_stale = False

    # --------------------------------------------------------------------------- the reader's side

    def stand(self, topic: str, partition: int, offset: int, partitions: int) -> None:
        """The reader reads this partition now, from this offset; the topic has so many."""
        with self._lock:
            self._place, self._position = (topic, partition), offset
            self._partitions = partitions
            self._ends.clear()

    def read_to(self, offset: int) -> None:
        """Everything below this offset has been read and handed on."""
        with self._lock:
            self._position = offset
            caught_up = self._reached()
        self._tell(caught_up)

    # -------------------------------------------------------------------------- the session's side

    def ask(self, at_ms: int) -> None:
        """Find out whether what was written until now, `at_ms`, has been read; returns at once."""
        with self._lock:
            if self._place is None:
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
            self._leave()
        try:
            if self._admin is None:
                self._admin = AdminClient(self._config, logger=log)
            wanted = {TopicPartition(*place): _LATEST}
            (answer,) = self._admin.list_offsets(wanted, request_timeout=ANSWER_S).values()
        except KafkaException as error:
            log.info("cannot ask where %s-%d ends: %s", *place, error)
            with self._lock:
                self._asked_ms = None
            return
        answer.add_done_callback(partial(self._answered, question, place, position, at_ms))
        self._later(partial(self._count, self._admin, place[0], at_ms))

    def close(self) -> None:
        """Give up the connection. Not to be called by librdkafka's own threads."""
        with self._lock:
            self._place = None
        self._admin = None
        self._aside.close()

    def _leave(self) -> None:
        """Give up a client; its threads may take their time to end."""
        left = [self._admin]
        self._admin = None
        threading.Thread(target=left.clear, name="muster-leave", daemon=True).start()

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
            if question == self._question:  # not one that was given up
                self._asked_ms = None
                self._is_stale = error is not None
            if error is None and place == self._place:
                end = answer.result().offset
                # An end before what was read: the log was cut, and the reader must start over.
                if end >= position:
                    self._ends.append((end, at_ms))
            caught_up = self._reached()
        if error is not None:
            log.info("%s-%d does not say where it ends: %s", *place, error)
        self._tell(caught_up)

    def _count(self, admin: AdminClient, topic: str, at_ms: int) -> None:
        try:
            told = admin.list_topics(topic, timeout=ANSWER_S).topics[topic]
            error, count = told.error, len(told.partitions)
        except KafkaException as failure:
            error, count = failure.args[0], 0
        with self._lock:
            is_same = error is None and count == self._partitions
            self._same_ms = max(self._same_ms, at_ms) if is_same else self._same_ms
            self._is_stale |= error is not None
            caught_up = self._reached()
        if error is not None:
            log.info("%s does not say how many partitions it has: %s", topic, error)
        elif not is_same:
            self._grown()
        self._tell(caught_up)

    def _reached(self) -> int | None:
        """The newest moment whose end has been reached; what is not newer is forgotten."""
        known = [(end, at_ms) for end, at_ms in self._ends if at_ms <= self._same_ms]
        reached = [at_ms for end, at_ms in known if end <= self._position]
        if not reached:
            return None
        newest = max(reached)
        open_ends = [(end, at_ms) for end, at_ms in self._ends if at_ms > newest]
        self._ends = deque(open_ends, maxlen=ENDS_KEPT)
        return newest

    def _tell(self, at_ms: int | None) -> None:
        if at_ms is not None:
            self._post(CaughtUp(at_ms))
