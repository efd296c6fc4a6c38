"""How far copies are behind their changelogs: positions from the user, ends from Kafka.

The user says for a task which partitions it is restored from, and how far; the broker says where
those end. The lag of a task is what lies between, over all its partitions, as in Kafka Streams
(`computeTaskLags`, KIP-924). It is looked at when the assignment changes, each second while a copy
is to take over or an active still restores, else every half minute; only what changed is told.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from muster.protocol.events import Lag
from muster.protocol.ids import Task
from muster.protocol.records import MemberAssignment
from muster.protocol.tasks import EMPTY, TaskSet
from muster.worker.exchange import Restored

log = logging.getLogger("muster.worker.kafka")

Positions: TypeAlias = Mapping[tuple[str, int], int]
"""(topic, partition) of a changelog -> the offset up to which it is restored."""
Changelog: TypeAlias = Callable[[Task], Positions | None]
"""Where a task stands; None = there is nothing to restore, or not any more."""

ANSWER_S: Final = 3.0
"""How long one question to the brokers may take."""
FIRST_TRIES: Final = 3
"""How often the first join asks: without these lags the coordinator takes the copies for lost."""
SOON_S: Final = 1.0
RARELY_S: Final = 30.0
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # of the client


class ChangelogLags:
    """Looks at the changelogs of a worker's tasks, in a thread of its own."""

    def __init__(
        self,
        config: Mapping[str, Any],
        positions: Changelog | None,
        on_disk: TaskSet,
        post: Callable[[Restored], None],
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            config: librdkafka's settings of an admin client.
            positions: the user's; called in a thread of ours, for one task at a time. None = lags
                are not looked at here.
            on_disk: copies that an earlier life left on the disk.
            post: takes what is found.
        """
        self._config = dict(config)
        self._positions = positions
        self._on_disk = on_disk
        self._post = post
        self._admin: AdminClient | None = None  # of our thread
        self._kicked = threading.Event()
        self._closing = False
        self._lock = threading.Lock()
        self._copies = self._active = self._wanted = EMPTY
        self._restored = EMPTY  # actives that are not looked at any more
        self._told: dict[Task, int] = {}

    # ------------------------------------------------------------------- told by the worker's loop

    def open(self, then: Callable[[], None]) -> None:
        """Look at what is on the disk, go on with `then`, and follow."""
        if self._positions is None:
            then()
            return
        arguments = (self._positions, then)
        threading.Thread(target=self._run, args=arguments, name="muster-lags", daemon=True).start()

    def assigned(self, record: MemberAssignment) -> None:
        """These are the tasks from now on."""
        with self._lock:
            before = (self._copies, self._active, self._wanted)
            self._copies, self._active = record.standby | record.learner, record.active
            self._wanted = record.learner | record.next
            self._restored = self._restored & self._active
            is_news = before != (self._copies, self._active, self._wanted)
        if is_news:
            self._kicked.set()

    def lost(self) -> None:
        """Nothing is held any more. What is on the disk counts for the next join."""
        with self._lock:
            self._copies, self._active = self._copies | self._active, EMPTY
            self._wanted = self._restored = EMPTY
            self._told.clear()
        self._kicked.set()

    def close(self) -> None:
        """End the thread; returns at once."""
        self._closing = True
        self._kicked.set()

    # --------------------------------------------------------------------------------- the thread

    def _run(self, positions: Changelog, then: Callable[[], None]) -> None:
        for _ in range(FIRST_TRIES):
            if self._look(positions, self._on_disk, EMPTY) or self._closing:
                break
            self._kicked.wait(SOON_S)
        then()
        while not self._closing:
            with self._lock:
                is_awaited = any(self._told.get(task, 1) for task in self._wanted)
                is_awaited |= any(self._told.get(task) for task in self._active - self._restored)
            self._kicked.wait(SOON_S if is_awaited else RARELY_S)
            self._kicked.clear()
            with self._lock:
                copies, restoring = tuple(self._copies), self._active - self._restored
            if not self._closing:
                self._look(positions, copies, restoring)

    def _look(self, positions: Changelog, copies: Iterable[Task], restoring: TaskSet) -> bool:
        """Post the lags that changed; False when the brokers left a lag unknown."""
        told = {task: _position(positions, task) for task in (*copies, *restoring)}
        stand = {task: at for task, at in told.items() if at is not None}
        asked = {task: at for task, at in stand.items() if at}
        behind = self._behind(asked)
        is_known = len(behind) == len(asked)
        behind |= {task: 0 for task in restoring if stand.get(task) == {}}
        with self._lock:
            # From now on its lag is what it writes itself.
            self._restored |= TaskSet.of(
                t for t in restoring if stand.get(t) and behind.get(t) == 0
            )
            silent = {task: 0 if task in restoring else None for task in behind}
            news = {t: n for t, n in behind.items() if n != self._told.get(t, silent[t])}
            self._told.update(news)
        if news:
            self._post(Restored(tuple(Lag(t, n) for t, n in sorted(news.items()))))
        return is_known

    def _behind(self, stand: Mapping[Task, Positions]) -> dict[Task, int]:
        """Lags of those tasks whose partitions have all told where they end."""
        ends = self._ends({place for positions in stand.values() for place in positions})
        return {
            task: sum(max(0, ends[place] - at) for place, at in positions.items())
            for task, positions in stand.items()
            if ends.keys() >= positions.keys()
        }

    def _ends(self, places: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        if not places:
            return found
        try:
            self._admin = self._admin or AdminClient(self._config, logger=log)
            asked = {TopicPartition(*place): _LATEST for place in places}
            for place, answer in self._admin.list_offsets(asked, request_timeout=ANSWER_S).items():
                found[place.topic, place.partition] = answer.result(2 * ANSWER_S).offset
        except (KafkaException, TimeoutError) as error:
            log.info("changelogs do not say where they end: %s", error)
            self._admin = None  # a client that failed may go on with a leader that is none
        return found


def _position(positions: Changelog, task: Task) -> Positions | None:
    """Where a task stands, empty if there is nothing to restore; None = that is not known."""
    try:
        return dict(positions(task) or {})
    except Exception:
        log.exception("how far %s is restored is not known", task)
        return None
