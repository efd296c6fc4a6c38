"""The alarm clock: writes a `Tick` for a group when its wake-up is due.

Time is in the log, so the coordinator itself needs no timer: it publishes on ``<prefix>.clock``
when each group wants to be woken at the latest. This loop reads those wake-ups and writes ticks
to ``<prefix>.membership``. It decides nothing. It repeats what the wake-up says was published,
which proves to the coordinator that the tick came after that. A tick that comes early, late, twice
or from another machine changes nothing but the next wake-up, so any number of these loops may run,
and none needs to know of the others.

`Schedule` is the pure part. `Clock` is the shell: one thread, one consumer, one producer.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import structlog
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from muster.clients import ClientSettings
from muster.keyring import KeyFile, signed
from muster.logs import KAFKA
from muster.protocol import codec
from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.events import Mark, Tick
from muster.protocol.ids import GroupId
from muster.protocol.records import WakeUp
from muster.protocol.topics import TopicKind, topic_name
from muster.streams.loop import Loop

_log = structlog.get_logger("muster.streams")

RETRY_MS = 1_000
"""A group that was ticked and has not answered is ticked again after this long..."""
RETRY_MS_MAX = 30_000
"""...then twice as long each time, up to this: the coordinator may be away or behind."""
POLL_S_MAX = 0.5
BURST = 8
"""So many ticks a group may have at once..."""
SPACING_MS = 500
"""...and then one in this time, however often it wants to be woken: its config says how often, and
ticks of one group must not wear out the job for all."""
BEHIND_TICKS = 100
"""While the query is behind, all groups together have so many ticks a second: more would only make
the backlog longer, and a tick does nothing before it is read."""


class Sleeper(NamedTuple):
    """A group of a prefix."""

    prefix: str
    group: GroupId


@dataclass(slots=True)
class _Alarm:
    wanted_ms: int
    at_ms: int
    published: Mark | None = None
    retry_ms: int = RETRY_MS


@dataclass(slots=True)
class _Allowance:
    """Ticks a group may have: `ticks` of them at `since_ms`, and one more every `SPACING_MS`."""

    ticks: float
    since_ms: int

    def take(self, now_ms: int) -> int:
        """Take one, if there is one; else how long until there is."""
        grown = max(now_ms - self.since_ms, 0) / SPACING_MS
        self.ticks, self.since_ms = min(self.ticks + grown, BURST), now_ms
        if self.ticks < 1:
            return max(1, round((1 - self.ticks) * SPACING_MS))
        self.ticks -= 1
        return 0


class Schedule:
    """Which groups want to be woken, and when. Times are the broker's, epoch milliseconds."""

    def __init__(self) -> None:
        self._alarms: dict[Sleeper, _Alarm] = {}
        self._allowed: dict[Sleeper, _Allowance] = {}
        self._queue: list[tuple[int, Sleeper]] = []

    def note(self, sleeper: Sleeper, at_ms: int | None, published: Mark | None = None) -> None:
        """A group said when it wants to be woken (None = never), and what it has published."""
        if at_ms is None:
            self._alarms.pop(sleeper, None)
            self._allowed.pop(sleeper, None)
            return
        self._alarms[sleeper] = _Alarm(at_ms, at_ms, published)
        heapq.heappush(self._queue, (at_ms, sleeper))

    def due(self, now_ms: int, most: int | None = None) -> list[tuple[Sleeper, Mark | None]]:
        """Groups whose time has come, and what they have published.

        Each is put off, in case the job does not answer the tick.

        Args:
            now_ms: the time.
            most: no more than this; None = all.
        """
        found: list[tuple[Sleeper, Mark | None]] = []
        while self._queue and self._queue[0][0] <= now_ms and (most is None or len(found) < most):
            at_ms, sleeper = heapq.heappop(self._queue)
            alarm = self._alarms.get(sleeper)
            if alarm is None or alarm.at_ms != at_ms:
                continue  # a newer wake-up has replaced this one
            wait_ms = self._allowed.setdefault(sleeper, _Allowance(BURST, now_ms)).take(now_ms)
            if wait_ms:
                alarm.at_ms = now_ms + wait_ms
                heapq.heappush(self._queue, (alarm.at_ms, sleeper))
                continue
            found.append((sleeper, alarm.published))
            alarm.at_ms = now_ms + alarm.retry_ms
            alarm.retry_ms = min(2 * alarm.retry_ms, RETRY_MS_MAX)
            heapq.heappush(self._queue, (alarm.at_ms, sleeper))
        return found

    def next_ms(self) -> int | None:
        """When `due` is worth calling next; None = when something was noted."""
        return self._queue[0][0] if self._queue else None

    def overdue_ms(self, now_ms: int) -> int:
        """How long the wake-up that waits longest for its group's answer is past; 0 = none is."""
        past = (now_ms - alarm.wanted_ms for alarm in [*self._alarms.values()])
        return max(0, max(past, default=0))

    def __len__(self) -> int:
        return len(self._alarms)


class Clock(Loop):
    """Runs a `Schedule` against Kafka in a thread of its own, between enter and exit.

    Args:
        clients: how to reach Kafka.
        prefixes: topic prefixes served.
        on_tick: called for each tick that Kafka has taken.
        keys: sign the ticks; None = they are not signed.
        is_behind: whether the query has much to read before it would read a tick.

    Attributes:
        ticks: how many Kafka has taken.
    """

    def __init__(
        self,
        clients: ClientSettings,
        prefixes: Sequence[str],
        on_tick: Callable[[], object] | None = None,
        keys: KeyFile | None = None,
        is_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__("muster-clock")
        self._is_behind = is_behind
        self._behind_s = 0.0
        self._clients = clients
        self._prefixes = tuple(prefixes)
        self._on_tick = on_tick
        self._keys = keys
        self._ahead_ms = 0
        self._schedule = Schedule()
        self._wanted: SimpleQueue[tuple[Sleeper, Mark]] = SimpleQueue()
        self.ticks = 0

    @property
    def asleep(self) -> int:
        """Groups that have a wake-up."""
        return len(self._schedule)

    def wake(self, prefix: str, group: GroupId, published: Mark) -> None:
        """Tick a group without delay, until it publishes a wake-up again. From any thread.

        Args:
            prefix: of the group's topics.
            group: the group.
            published: what the ticks say was published.
        """
        self._wanted.put((Sleeper(prefix, group), published))

    def now_ms(self) -> int:
        """The broker's time, as well as we know it."""
        return _wall_ms() - self._ahead_ms

    def overdue_s(self) -> float:
        """How long the wake-up that waits longest for its group's answer is past."""
        return self._schedule.overdue_ms(self.now_ms()) / 1000

    def _run(self) -> None:
        consumer = Consumer(
            self._clients.librdkafka(
                {
                    "group.id": f"{self._prefixes[0]}.clock",  # required by the client, never used
                    "enable.auto.commit": False,
                    "fetch.wait.max.ms": 100,
                }
            ),
            logger=KAFKA,
        )
        # A tick that Kafka has not taken after a while is worth nothing; the next one will do.
        told = self._clients.producer({"message.timeout.ms": 10_000})
        producer = Producer(told, logger=KAFKA)
        try:
            self._assign(consumer)
            while not self._closing.is_set():
                self._read(consumer)
                while not self._wanted.empty():
                    sleeper, mark = self._wanted.get()
                    self._schedule.note(sleeper, self.now_ms(), mark)
                for sleeper, published in self._schedule.due(self.now_ms(), self._most()):
                    self._tick(producer, sleeper, published)
                producer.poll(0)
        finally:
            producer.purge()
            producer.flush(1)
            consumer.close()

    def _most(self) -> int | None:
        """How many groups may be ticked now; None = all."""
        if not self._is_behind():
            return None
        now_s = time.monotonic()
        if now_s - self._behind_s < 1:
            return 0
        self._behind_s = now_s
        return BEHIND_TICKS

    def _assign(self, consumer: Consumer) -> None:
        wanted = {topic_name(TopicKind.CLOCK, prefix) for prefix in self._prefixes}
        while not self._closing.is_set():
            try:
                topics = consumer.list_topics(timeout=5).topics
            except KafkaException:
                self._closing.wait(POLL_S_MAX)
                continue
            found = [(t, p) for t in sorted(wanted & topics.keys()) for p in topics[t].partitions]
            consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in found])
            return

    def _read(self, consumer: Consumer) -> None:
        """Take in what has been published, waiting for it until the next alarm at most.

        `Consumer.consume` waits for as many as it may bring, so it never waits here: what is
        published now may want a tick before the next alarm.
        """
        next_ms = self._schedule.next_ms()
        wait_s = POLL_S_MAX if next_ms is None else (next_ms - self.now_ms()) / 1000
        if self._is_behind():
            wait_s = max(wait_s, POLL_S_MAX / 2)  # what is due stays due
        timeout_s = min(max(wait_s, 0.0), POLL_S_MAX)
        try:
            first = consumer.poll(timeout_s)
            messages = [*filter(None, [first]), *consumer.consume(1_000, 0)]
        except KafkaException:
            self._closing.wait(POLL_S_MAX)
            return
        for message in messages:
            if message.error() is None:
                self._note(message)

    def _note(self, message: Message) -> None:
        try:
            record = codec.decode_record(TopicKind.CLOCK, message.key(), message.value())
        except DecodeError:
            return  # another writer's record on our topic: no wake-up of ours
        if isinstance(record, WakeUp):
            prefix = str(message.topic()).rpartition(".")[0]
            self._schedule.note(Sleeper(prefix, record.group), record.at_ms, record.published)

    def _tick(self, producer: Producer, sleeper: Sleeper, published: Mark | None) -> None:
        tick = Tick(group=sleeper.group, published=published)
        topic = topic_name(TopicKind.MEMBERSHIP, sleeper.prefix)
        try:
            encoded = signed(self._keys, codec.encode(tick), tick, topic)
        except EncodeError as error:
            _log.warning("no tick", group=sleeper.group, why=str(error))
            return  # the schedule tries again
        try:
            producer.produce(
                topic,
                key=encoded.key,
                value=encoded.value,
                headers=list(encoded.headers),
                on_delivery=partial(self._delivered, _wall_ms()),
            )
        except BufferError:
            return  # the broker is away and the queue is full; the schedule tries again

    def _delivered(self, sent_ms: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            return
        self.ticks += 1
        if self._on_tick is not None:
            self._on_tick()
        kind, stamped_ms = message.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            # The broker stamped it between our sending it and our hearing of it.
            lowest, highest = sent_ms - stamped_ms, _wall_ms() - stamped_ms
            self._ahead_ms = min(max(self._ahead_ms, lowest), highest)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
