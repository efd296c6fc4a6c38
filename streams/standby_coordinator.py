"""A standby coordinator: a process that waits, and claims when the coordinator ends or is silent.

`Turn` is the pure part: it decides when. `Vigil` reads claims and signs of life for it
(`coordinator_signs`). What a process may do after its claim does not depend on them: a coordinator
that was only slow, or frozen, leaves every group as soon as it reads a tick of the new one
(`state.superseded`).

The silence counts only while Kafka answers, because a coordinator cannot write signs without Kafka
either. If several of them wait, the one with the lowest job id goes first, and each further one
waits `TURN_S` longer; two that claim at once do no harm, but one of them has to start again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from muster.kafka.client_settings import ClientSettings
from muster.logs import KAFKA
from muster.protocol import codec
from muster.protocol.errors import DecodeError
from muster.protocol.keys import SIGN_GROUP, key_of, partition_of
from muster.protocol.records import (
    CoordinatorClaim,
    CoordinatorRole,
    CoordinatorSign,
    Record,
    WakeUp,
)
from muster.protocol.topics import TopicKind, topic_name
from muster.streams.background_thread import RETRY_S, Loop

OLD_SILENCE_S = 30.0
"""How long a coordinator of a version without signs may publish nothing: three canary ticks."""
LOOK_S = 0.25
"""Seconds between two questions to Kafka."""
GAP_S_MAX = 1.0
"""A pause between two answers of Kafka counts as at most this much silence."""
TURN_S = 1.5
"""Each standby waits so much longer than the one with the next lower job id."""
GONE_S = 5.0
"""A standby that has written no sign for so long does not count."""
FROZEN_S = 60.0
"""A coordinator that was superseded this long ago has ended, or obeys ticks that name another."""
ASK_TIMEOUT_S = 1.0


class Newest(NamedTuple):
    """The newest claim of a prefix: its offset, its timestamp (epoch ms) and the record."""

    epoch: int
    at_ms: int
    claim: CoordinatorClaim


@dataclass(frozen=True, slots=True)
class Follows:
    """What a claim says of the claim before it.

    Attributes:
        epoch: of the newest claim that is known; -1 = none.
        obeys: whether its job, and all before it, have ended or obey ticks that name a later one.
    """

    epoch: int = -1
    obeys: bool = True

    def predecessors_obey(self, epoch: int) -> bool:
        """Whether all earlier coordinators obey the ticks of a claim that got this epoch."""
        return self.obeys and epoch == self.epoch + 1


@dataclass(slots=True)
class _Watched:
    newest: Newest | None = None
    silent_s: float = 0.0
    is_heard: bool = False
    has_ended: bool = False
    others: dict[str, float] = field(default_factory=dict)


class Turn:
    """Decides when this process (`job`) may claim. Times are seconds of a monotonic clock.

    The coordinator may write no sign of life for `silence_s` while Kafka answers.
    """

    def __init__(self, job: str, prefixes: Iterable[str], silence_s: float) -> None:
        self._job = job
        self._silence_s = silence_s
        self._watched = {prefix: _Watched() for prefix in prefixes}
        self._looked_s: dict[str, float] = {}

    def newest(self, prefix: str) -> Newest | None:
        """The newest claim; None = there is none."""
        return self._watched[prefix].newest

    def claimed(self, prefix: str, newest: Newest) -> None:
        """Note a claim."""
        self._watched[prefix] = replace(
            self._watched[prefix], newest=newest, silent_s=0.0, is_heard=True, has_ended=False
        )

    def read(self, prefix: str, record: Record, now_s: float) -> None:
        """Note a record of ``<prefix>.clock``."""
        watched = self._watched[prefix]
        newest = watched.newest
        match record:
            case CoordinatorSign(role=CoordinatorRole.STANDBY) if record.job != self._job:
                watched.others[record.job] = now_s
            case CoordinatorSign() if newest is not None and record.job == newest.claim.job:
                watched.is_heard = True
                watched.has_ended = record.role.is_over
            case WakeUp(published=mark) if mark is not None and newest is not None:
                # A version without signs is heard by what its query publishes.
                is_old = newest.claim.follows is None
                watched.is_heard |= is_old and mark.coordinator_epoch == newest.epoch

    def looked(self, prefix: str, now_s: float) -> None:
        """Note that Kafka answered, and that all it has was read."""
        watched = self._watched[prefix]
        passed_s = min(now_s - self._looked_s.get(prefix, now_s), GAP_S_MAX)
        watched.silent_s = 0.0 if watched.is_heard else watched.silent_s + passed_s
        watched.is_heard = False
        self._looked_s[prefix] = now_s

    def is_due(self, now_s: float) -> bool:
        """Whether this process is to claim now."""
        return all(self._is_due(prefix, now_s) for prefix in self._watched)

    def _is_due(self, prefix: str, now_s: float) -> bool:
        watched = self._watched[prefix]
        if prefix not in self._looked_s:
            return False
        if watched.newest is None:
            return True
        first = [job for job, at_s in watched.others.items() if job < self._job]
        before = sum(now_s - watched.others[job] < GONE_S for job in first)
        if watched.has_ended:
            return watched.silent_s >= before * TURN_S
        is_old = watched.newest.claim.follows is None
        silence_s = OLD_SILENCE_S if is_old else self._silence_s
        return watched.silent_s >= silence_s + before * TURN_S

    def why(self) -> str:
        """What became of the coordinator of each prefix, in words."""
        return "; ".join(f"{p}: {self._became(each)}" for p, each in self._watched.items())

    def _became(self, watched: _Watched) -> str:
        if watched.newest is None:
            return "there was no coordinator"
        claim = watched.newest.claim
        what = "has ended" if watched.has_ended else f"was silent for {watched.silent_s:.1f} s"
        return f"job {claim.job} on {claim.host} {what}"

    def follows(self, prefix: str, now_ms: int) -> Follows:
        """What a claim written now (epoch milliseconds) must say of the claim before it."""
        newest = self._watched[prefix].newest
        if newest is None:
            return Follows()
        epoch, at_ms, claim = newest
        if claim.follows is None:  # of a version without signs
            return Follows(epoch, obeys=False)
        is_first = claim.alone and epoch == claim.follows + 1
        is_old = now_ms - at_ms >= FROZEN_S * 1000
        return Follows(epoch, is_first or is_old)


class Vigil(Loop):
    """Reads claims and signs of life for a `Turn` in a thread, between enter and exit.

    Attributes:
        over: set while it is this process' turn to claim; another thread may set it to wake
            the thread that waits.
    """

    def __init__(
        self,
        clients: ClientSettings,
        partitions: Mapping[str, int],
        prefixes: Iterable[str],
        turn: Turn,
    ) -> None:
        super().__init__("muster-vigil")
        self.over = threading.Event()
        self._clients = clients
        self._partitions = partitions
        self._prefixes = tuple(prefixes)
        self._turn = turn
        self._lock = threading.Lock()
        self._next: dict[tuple[str, int], int] = {}

    def is_due(self) -> bool:
        """Whether it is this process' turn to claim."""
        with self._lock:
            return self._turn.is_due(time.monotonic())

    def why(self) -> str:
        """Why it is this process' turn, for the log."""
        with self._lock:
            return self._turn.why()

    def end(self) -> None:
        """Let the thread end, without waiting for it."""
        self._closing.set()

    def follows(self, prefix: str) -> Follows:
        """See `Turn.follows`."""
        with self._lock:
            return self._turn.follows(prefix, time.time_ns() // 1_000_000)

    def _run(self) -> None:
        reader = self._clients.reader(f"{self._prefixes[0]}.standby", {"fetch.wait.max.ms": 250})
        consumer = Consumer(reader, logger=KAFKA)
        # A question waits behind a fetch that is under way on the same connection.
        asking = Consumer(reader, logger=KAFKA)
        try:
            while not self._closing.is_set():
                try:
                    self._assign(consumer, asking)
                    break
                except KafkaException:
                    self._closing.wait(RETRY_S)
            look_s = time.monotonic()
            while not self._closing.is_set():
                messages = self._arrived(consumer, LOOK_S)
                with self._lock:
                    for message in messages:
                        self._take(message)
                if time.monotonic() - look_s >= LOOK_S:
                    self._look(asking)
                    look_s = time.monotonic()
                if self.is_due():
                    self.over.set()
        finally:
            consumer.close()
            asking.close()

    def _assign(self, consumer: Consumer, asking: Consumer) -> None:
        """Read the newest claim of each prefix, and all signs from now on.

        Raises:
            KafkaException: Kafka did not say where the topics end.
        """
        for prefix in self._prefixes:
            claims = topic_name(TopicKind.COORDINATOR, prefix)
            clock = topic_name(TopicKind.CLOCK, prefix)
            low, high = self._ends(asking, claims, 0)
            self._next[claims, 0] = max(low, high - 1)
            for partition in range(self._partitions[clock]):
                self._next[clock, partition] = self._ends(asking, clock, partition)[1]
        consumer.assign([TopicPartition(t, p, offset) for (t, p), offset in self._next.items()])

    def _ends(self, asking: Consumer, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        ends: tuple[int, int] = asking.get_watermark_offsets(place, timeout=ASK_TIMEOUT_S)
        return ends

    def _look(self, asking: Consumer) -> None:
        """Note each prefix of which all records were read; if Kafka does not answer, note none."""
        for prefix in self._prefixes:
            claims = topic_name(TopicKind.COORDINATOR, prefix)
            clock = topic_name(TopicKind.CLOCK, prefix)
            with self._lock:
                newest = self._turn.newest(prefix)
            asked = [(claims, 0)]
            if newest is not None:
                key = key_of(SIGN_GROUP, newest.claim.job)
                asked.append((clock, partition_of(key, self._partitions[clock])))
            try:
                all_read = all(self._ends(asking, *p)[1] <= self._next[p] for p in asked)
            except KafkaException:
                continue
            if all_read:
                with self._lock:
                    self._turn.looked(prefix, time.monotonic())

    def _take(self, message: Message) -> None:
        topic, offset = str(message.topic()), message.offset() or 0
        self._next[topic, message.partition() or 0] = offset + 1
        prefix, _, kind = topic.rpartition(".")
        try:
            record = codec.decode_record(TopicKind(kind), message.key(), message.value())
        except DecodeError:
            return  # not a record of muster
        if isinstance(record, CoordinatorClaim):
            self._turn.claimed(prefix, Newest(offset, message.timestamp()[1], record))
        else:
            self._turn.read(prefix, record, time.monotonic())
