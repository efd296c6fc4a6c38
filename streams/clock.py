"""The clock: it writes a `Tick` for a group when the group's wake-up is due.

Time is in the log, so the coordinator needs no timer: it publishes on ``<prefix>.clock`` when each
group must be woken at the latest, and the clock writes ticks to ``<prefix>.membership``. A tick
repeats the mark of the wake-up, which proves that it was written after that publication. A tick
that comes early, late, twice or from another machine changes only the next wake-up, so any number
of clocks may run without knowing of each other.

`wake_up_schedule` says which groups are due, `broker_time` what time it is, and `heartbeat_covers`
what a tick says of members that heartbeat apart. `Clock` runs them: one thread, one consumer, one
producer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import SimpleQueue

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)

from muster.kafka.client_settings import ClientSettings
from muster.kafka.lasting_producer import REPLACED_S, LastingProducer
from muster.logs import KAFKA
from muster.protocol import codec
from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.events import Mark, Tick
from muster.protocol.ids import GroupId
from muster.protocol.records import WakeUp
from muster.protocol.tick_covers import in_parts
from muster.protocol.topics import TopicKind, topic_name
from muster.signing.followed_key_file import KeyFile, signed
from muster.streams import canary
from muster.streams.background_thread import Complaints, Loop
from muster.streams.broker_time import BrokerTime, steady_ms
from muster.streams.heartbeat_covers import Heartbeats, Sleeper
from muster.streams.heartbeat_reader import Listener
from muster.streams.wake_up_schedule import Schedule

POLL_S_MAX = 0.5
"""The longest wait for a wake-up record."""
HELD_POLL_S = 0.02
"""The longest wait for one while a tick waits for heartbeats."""
UNKNOWN_GROUP_TICKS = 20
"""Ticks a second for all groups together that have no wake-up, but members that write heartbeats: a
batch takes in only a few such groups, and any writer can invent them."""
HOLD_S = 1.0
"""A tick waits for heartbeats for at most so long."""
SILENCE_MS = 1_000
"""A partition without a record for so long gets a marker for a tick that does not wait: without it,
the covers of a group that wants each tick soon and whose members write nothing would never move."""


class Clock(Loop):
    """Runs a `Schedule` against Kafka in a thread of its own, between enter and exit.

    Args:
        on_tick: called for each tick that Kafka has acknowledged.
        is_behind: whether the query has a long backlog before a new tick.
        canary: gets the answers to the canary's ticks; None = this clock writes no such ticks.

    Attributes:
        ticks: number of ticks that Kafka has acknowledged.
    """

    def __init__(
        self,
        clients: ClientSettings,
        prefixes: Sequence[str],
        on_tick: Callable[[], object] | None = None,
        keys: KeyFile | None = None,
        is_behind: Callable[[], bool] = lambda: False,
        canary: canary.Canary | None = None,
    ) -> None:
        super().__init__("muster-clock")
        self._canary = canary
        self._is_behind = is_behind
        self._strange_s = 0.0
        self._clients = clients
        self._prefixes = tuple(prefixes)
        self._on_tick = on_tick
        self._keys = keys
        self._time = BrokerTime()
        self._heartbeats = Heartbeats()
        self._schedule = Schedule(self._heartbeats.needless_until_ms)
        self._canaries = 0
        self._wanted: SimpleQueue[tuple[Sleeper, Mark]] = SimpleQueue()
        self._ends: dict[tuple[str, int], int] = {}
        self._held: dict[Sleeper, tuple[Mark | None, int, float]] = {}
        self._complaints = Complaints()
        self.ticks = 0

    @property
    def asleep(self) -> int:
        """Number of groups that have a wake-up, without the canary."""
        return max(len(self._schedule) - self._canaries, 0)

    def wake(self, prefix: str, group: GroupId, published: Mark) -> None:
        """Tick a group at once, with this mark, and again until it publishes a wake-up.

        Any thread may call this.
        """
        self._wanted.put((Sleeper(prefix, group), published))

    def begin_canary(self) -> None:
        """Write ticks for the canary from now on. Any thread may call this."""
        begins = [] if self._canary is None else self._canary.begins()
        self._canaries = len(begins)
        for prefix, mark in begins:
            self.wake(prefix, canary.GROUP, mark)

    def now_ms(self) -> int:
        """The broker's time in epoch milliseconds, estimated from records that it has stamped."""
        return self._time.now_ms()

    def overdue_s(self) -> float:
        """How late the wake-up is that waits longest for an answer, in seconds; 0 = none is."""
        return self._schedule.overdue_ms(self.now_ms()) / 1000

    def _run(self) -> None:
        reader = self._clients.reader(f"{self._prefixes[0]}.clock", {"fetch.wait.max.ms": 100})
        consumer = Consumer(reader, logger=KAFKA)
        # A tick that Kafka has not taken for this long is obsolete: the schedule writes another.
        settings = self._clients.producer({"message.timeout.ms": 10_000})
        replaced = partial(self._complaints.replaced, "the clock's producer")
        producer = LastingProducer(settings, KAFKA, replaced)
        listener = Listener(self._clients, self._prefixes, self._heartbeats, producer)
        try:
            topics = [topic_name(TopicKind.CLOCK, prefix) for prefix in self._prefixes]
            offsets = self._assigned(consumer, topics)
            self._ends = {place: end for place, (_, end) in offsets.items()}
            while not self._closing.is_set():
                self._read(consumer)
                listener.read(self._schedule)
                self._time.not_before(listener.newest_ms)
                while not self._wanted.empty():
                    sleeper, mark = self._wanted.get()
                    self._schedule.note(sleeper, self.now_ms(), mark, by_clock=True)
                for sleeper, published in self._due():
                    self._wake(producer, listener, sleeper, published)
                self._release(producer)
                if not producer.serve(0):
                    self._closing.wait(REPLACED_S)
        finally:
            producer.close()
            consumer.close()
            listener.close()

    def _due(self) -> list[tuple[Sleeper, Mark | None]]:
        """The groups that are due now.

        If this clock has learned that it was ahead, alarms that it set by its own time come earlier
        first: a group would otherwise get no tick for as long as the clock was ahead.
        """
        if by_ms := self._time.take_correction_ms():
            self._schedule.set_back(by_ms)
        return self._schedule.due(self.now_ms(), is_behind=self._is_behind())

    def _wake(
        self,
        producer: LastingProducer,
        listener: Listener,
        sleeper: Sleeper,
        published: Mark | None,
    ) -> None:
        """Tick a group, or hold the tick until the heartbeats before it have been read."""
        place = self._heartbeats.place(sleeper)
        until_ms = min(self._schedule.heartbeats_wanted_ms(sleeper), self.now_ms())
        behind_ms = until_ms - self._heartbeats.through_ms(sleeper)
        if place is None or behind_ms <= 0:
            self._tick(producer, sleeper, published)
        elif self._schedule.is_in_a_hurry(sleeper):
            self._tick(producer, sleeper, published)
            if behind_ms > SILENCE_MS:
                listener.mark(sleeper.prefix, place)
        elif sleeper not in self._held:
            self._held[sleeper] = published, until_ms, time.monotonic() + HOLD_S
            listener.mark(sleeper.prefix, place)

    def _release(self, producer: LastingProducer) -> None:
        """Write the ticks whose heartbeats have been read, and those that have waited too long."""
        now_s, now_ms = time.monotonic(), self.now_ms()
        for sleeper, (published, until_ms, late_s) in [*self._held.items()]:
            if now_s >= late_s or self._heartbeats.through_ms(sleeper) >= until_ms:
                del self._held[sleeper]
                self._tick(producer, sleeper, published)
        if now_s < self._strange_s + 1:
            return
        self._strange_s = now_s
        for sleeper in self._heartbeats.strangers(now_ms)[:UNKNOWN_GROUP_TICKS]:
            if sleeper not in self._schedule:
                self._tick(producer, sleeper, None)
            self._heartbeats.forget(sleeper)

    def _read(self, consumer: Consumer) -> None:
        """Read new wake-ups, and wait for one until the next alarm at most."""
        next_ms = self._schedule.next_ms()
        wait_s = POLL_S_MAX if next_ms is None else (next_ms - self.now_ms()) / 1000
        if self._is_behind():
            wait_s = max(wait_s, POLL_S_MAX / 2)  # due ticks can wait
        if self._held:
            wait_s = min(wait_s, HELD_POLL_S)
        for message in self._arrived(consumer, min(max(wait_s, 0.0), POLL_S_MAX)):
            self._note(message)

    def _note(self, message: Message) -> None:
        try:
            record = codec.decode_record(TopicKind.CLOCK, message.key(), message.value())
        except DecodeError:
            return  # not a record of muster
        if isinstance(record, WakeUp):
            prefix, at_ms = str(message.topic()).rpartition(".")[0], message.timestamp()[1]
            if record.group == canary.GROUP and not (
                self._canary is not None and self._canary.answered(prefix, record, at_ms)
            ):
                return  # it answers another clock's coordinator
            sleeper = Sleeper(prefix, record.group)
            self._schedule.note(
                *(sleeper, record.at_ms, record.published),
                apart=record.apart,
                now_ms=self.now_ms(),
                agreement=record.agreement if self._is_new(message) else None,
                takes_turns=record.published is None,
            )
            if record.at_ms is None:
                self._heartbeats.forget(sleeper)

    def _is_new(self, message: Message) -> bool:
        """Whether a wake-up was written after this clock began to read.

        An older one may be of a coordinator that is gone. Without its agreement each group gets a
        tick soon after a start, so a coordinator that cannot read what another version has stored
        of a group finds that out at once.
        """
        place = str(message.topic()), int(message.partition() or 0)
        return int(message.offset() or 0) >= self._ends.get(place, 0)

    def _tick(self, producer: LastingProducer, sleeper: Sleeper, published: Mark | None) -> None:
        cover = None if sleeper.group == canary.GROUP else self._heartbeats.cover(sleeper)
        covers = [None] if cover is None else in_parts(cover)
        ticks = (Tick(group=sleeper.group, published=published, cover=part) for part in covers)
        self._write(producer, sleeper, ticks)

    def _write(self, producer: LastingProducer, sleeper: Sleeper, ticks: Iterable[Tick]) -> None:
        """Write ticks of a group, each when Kafka has acknowledged the one before.

        Only the last one vouches for time, so none before it may be missing.
        """
        tick, *later = ticks
        topic = topic_name(TopicKind.MEMBERSHIP, sleeper.prefix)
        try:
            encoded = signed(self._keys, codec.encode(tick), tick, topic)
        except EncodeError as error:
            fault = type(error).__name__  # the text names the group, and there may be many
            self._complaints.hear("no tick", str(error), fault, group=sleeper.group)
            self._done(sleeper, tick, written=False)
            return  # the schedule tries again
        try:
            delivered = partial(self._delivered, steady_ms(), sleeper, producer, tick, later)
            producer.produce(topic, encoded, delivered)
        except BufferError:
            # The broker is down and the queue is full; the schedule tries again.
            self._done(sleeper, tick, written=False)
        except KafkaException as error:
            # No right to write, no topic, or the producer is about to be replaced.
            self._complaints.refused("no tick", topic, error.args[0])
            self._done(sleeper, tick, written=False)

    def _done(self, sleeper: Sleeper, tick: Tick, *, written: bool) -> None:
        """Note whether a tick's cover was written.

        A tick has no cover while the group's previous cover is not acknowledged.
        """
        if tick.cover is not None:
            self._heartbeats.done(sleeper, written=written)

    def _delivered(
        self,
        sent_ms: int,
        sleeper: Sleeper,
        producer: LastingProducer,
        tick: Tick,
        later: Sequence[Tick],
        error: KafkaError | None,
        message: Message,
    ) -> None:
        if error is None and later:
            self._write(producer, sleeper, later)
        else:
            self._done(sleeper, tick, written=error is None)
        if error is not None:
            topic = topic_name(TopicKind.MEMBERSHIP, sleeper.prefix)
            self._complaints.refused("no tick", topic, error)
            return
        self.ticks += 1
        if self._on_tick is not None:
            self._on_tick()
        kind, stamped_ms = message.timestamp()
        if self._canary is not None and sleeper.group == canary.GROUP:
            self._canary.sent(sleeper.prefix, stamped_ms)
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            self._time.acknowledged(sent_ms, stamped_ms)
