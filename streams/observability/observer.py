"""Reads what the job publishes: for metrics, one log line for each generation, and the backlog.

One thread, one consumer, beside the query. The query does not wait for it: when the observer is
behind, the figures are old, and nothing else is affected.

==============  ==========================  ====================================================
topic           read from                   for
==============  ==========================  ====================================================
groups          its beginning (compacted)   `GroupStats`; a log line for each generation of this job
rejected        its end                     dead letters by reason
assignments     its end                     sizes; the records are not decoded
all             their end offsets           records by kind; rows that wait on the input topics
==============  ==========================  ====================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Self

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from muster.kafka.client_settings import ClientSettings
from muster.kafka.lasting_admin import LastingAdmin, answered
from muster.kafka.reader import DIGITS_MAX
from muster.logs import KAFKA
from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.errors import DecodeError
from muster.protocol.ids import GroupId, as_option
from muster.protocol.records import GroupGone, GroupSnapshot, GroupState, Record, Rejected
from muster.protocol.split_records import Joiner
from muster.protocol.topics import INPUTS, TopicKind, topic_name
from muster.streams.background_thread import Loop
from muster.streams.batch.group_batch import PARKED
from muster.streams.batch.outbox import SINCE
from muster.streams.errors import KafkaUnreachable
from muster.streams.observability.group_stats import GroupStats
from muster.streams.observability.health import Health
from muster.streams.observability.late_records import LateRecords
from muster.streams.observability.metrics import Metrics
from muster.streams.observability.spark_reports import Ends

_log = structlog.get_logger("muster.streams")

LOOK_S = 2.0
"""Seconds between two requests for the end offsets."""
POLL_S = 0.2
ASK_TIMEOUT_S = 10.0
READ = (TopicKind.ASSIGNMENTS, TopicKind.GROUPS, TopicKind.REJECTED)
OUTPUTS = (*READ, TopicKind.CLOCK)
REASONS = frozenset(map(str, DeadLetter))

_PATIENCE = Retrying(
    retry=retry_if_exception_type(KafkaException),
    stop=stop_after_delay(ASK_TIMEOUT_S),
    wait=wait_fixed(POLL_S),
    reraise=True,
)
"""Retries at the start, because a partition may have no leader for a moment."""


class Observer(Loop):
    """Runs between enter and exit. It counts everything that is published after it was entered.

    Args:
        partitions: topic → number of partitions, of every topic of muster's.
        health: hears when Kafka does not answer, how many rows wait, and that records were
            published, which is how a long first batch shows that it gets on.
        read: offsets up to which the query has read; None = not known yet.
        late: gets each group's records, to tell those of an older coordinator.
        same_topics: whether the input topics are those that the query began with; called when one
            of them ends before what was read of it. It ends the job if they are others, and may
            raise `KafkaUnreachable`.

    Attributes:
        rows_behind: rows on the input topics that the query had not read at the last look.
    """

    def __init__(
        self,
        clients: ClientSettings,
        partitions: Mapping[str, int],
        prefixes: Iterable[str],
        *,
        metrics: Metrics,
        fold: GroupStats,
        health: Health,
        read: Callable[[], Ends | None],
        late: LateRecords,
        same_topics: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__("muster-observer")
        self._clients = clients
        self._admin = LastingAdmin(clients.librdkafka(), KAFKA)
        self._places = [
            (topic, partition)
            for topic, count in sorted(partitions.items())
            for partition in range(count)
        ]
        self._prefixes = tuple(prefixes)
        self._metrics = metrics
        self._fold = fold
        self._health = health
        self._read = read
        self._late = late
        self._same_topics = same_topics
        self._short: set[tuple[str, int]] = set()
        for prefix in self._prefixes:
            for reason in REASONS:  # from 0: an alert sees no growth in a series that begins at 1
                metrics.rejected.labels(prefix, reason)
        self._joiners: dict[str, Joiner] = {}
        self._ends: Ends = {}
        self._old: dict[tuple[str, int], int] = {}
        self._held: dict[tuple[str, GroupId], GroupSnapshot] = {}
        self._all: Ends | None = None
        self.rows_behind = 0

    def __enter__(self) -> Self:
        try:
            self._ends = _PATIENCE(self._all_asked)  # records behind these ends are counted
        except KafkaException as error:
            raise KafkaUnreachable(f"Kafka did not return the end offsets: {error}") from error
        self._old = {
            place: end
            for place, end in self._ends.items()
            if end > 0 and place[0].endswith(f".{TopicKind.GROUPS}")
        }
        return super().__enter__()

    # ---- the thread

    def _run(self) -> None:
        reader = self._clients.reader(
            f"{self._prefixes[0]}.observer", {"enable.partition.eof": True}
        )
        consumer = Consumer(reader, logger=KAFKA)
        try:
            read = [place for place in self._places if _kind(place[0]) in READ]
            consumer.assign([self._start(*place) for place in read])
            look_s = time.monotonic()
            while not self._closing.is_set():
                try:
                    messages = consumer.consume(500, POLL_S)
                except KafkaException:
                    self._closing.wait(POLL_S)
                    messages = []
                for message in messages:
                    error = message.error()
                    if error is None:
                        self._take(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        self._reach((str(message.topic()), message.partition() or 0))
                if time.monotonic() - look_s >= LOOK_S:
                    self._look()
                    look_s = time.monotonic()
        finally:
            consumer.close()

    def _start(self, topic: str, partition: int) -> TopicPartition:
        from_start = topic.endswith(f".{TopicKind.GROUPS}")
        offset = 0 if from_start else self._ends.get((topic, partition), 0)
        return TopicPartition(topic, partition, offset)

    # ---- records

    def _reach(self, place: tuple[str, int]) -> None:
        """Note that a partition was read to its end.

        Once all records from before the start are read, tell which groups are quarantined.
        """
        if self._old.pop(place, None) is None or self._old:
            return
        for (prefix, _), record in self._held.items():
            _tell_quarantine(prefix, record)
        self._held.clear()

    def _take(self, message: Message) -> None:
        """Take in a record. News are logged, what was there before the start is not."""
        prefix, _, kind = str(message.topic()).rpartition(".")
        key, value = message.key() or b"", message.value()
        if kind == TopicKind.ASSIGNMENTS:
            if value is not None:
                self._metrics.record_bytes.labels(prefix).observe(len(key) + len(value))
            return
        try:
            record = self._decoded(TopicKind(kind), str(message.topic()), key, value)
        except DecodeError:
            self._metrics.unreadable.labels(prefix).inc()
            return
        place = (str(message.topic()), message.partition() or 0)
        is_new = (message.offset() or 0) >= self._old.get(place, 0)
        if isinstance(record, GroupSnapshot):
            self._take_snapshot(prefix, record, message, is_new=is_new)
        elif isinstance(record, GroupGone):
            self._fold.gone(prefix, record.group)
            self._late.gone(prefix, record.group)
            self._held.pop((prefix, record.group), None)
            if is_new:
                _log.info("group forgotten", prefix=prefix, group=str(record.group))
        elif isinstance(record, Rejected):
            reason = record.reason if record.reason in REASONS else "other"
            self._metrics.rejected.labels(prefix, reason).inc()
            if reason == DeadLetter.GROUP_FAILED and record.message != PARKED:
                at = f"{record.origin.topic}-{record.origin.partition}@{record.origin.offset}"
                last_line = "".join(record.message.strip().splitlines()[-1:])
                _log.error("group failed", prefix=prefix, dead_letter=at, story=last_line)

    def _take_snapshot(
        self, prefix: str, record: GroupSnapshot, message: Message, *, is_new: bool
    ) -> None:
        if self._late.overrules(prefix, record):
            return
        if record.state is GroupState.DEAD and is_new:
            cause = record.cause
            _log.info("group deleted", prefix=prefix, group=str(record.group), cause=cause)
        self._held.pop((prefix, record.group), None)
        if record.quarantine is not None:
            if is_new:
                _tell_quarantine(prefix, record)
            else:
                self._held[prefix, record.group] = record
        at_ms = message.timestamp()[1]
        news = self._fold.snapshot(prefix, record, at_ms, _since_ms(message))
        if news is not None:
            _log.info("generation", **news)

    def _decoded(
        self, kind: TopicKind, topic: str, key: bytes, value: bytes | None
    ) -> Record | None:
        if kind is not TopicKind.GROUPS:
            return codec.decode_record(kind, key, value)
        whole = self._joiners.setdefault(topic, Joiner()).feed(key, value)
        return None if whole is None else codec.decode_record(kind, whole.key, whole.value)

    # ---- offsets

    def _look(self) -> None:
        """Ask for the end offsets; update record counts, the backlog and the health.

        A partition that does not answer has the end that it had. Only if none answers, Kafka counts
        as silent: a restart does not help then.
        """
        asked, refusal = self._asked()
        if refusal is not None and not asked:
            self._health.silent(time.monotonic())
            return
        ends = {**self._ends, **asked}
        self._check_topics(ends)
        for prefix in self._prefixes:
            for kind in OUTPUTS:
                topic = topic_name(kind, prefix)
                known = {place: end for place, end in self._ends.items() if place[0] == topic}
                grown = sum(max(ends[place] - end, 0) for place, end in known.items())
                self._metrics.records.labels(prefix, kind).inc(grown)
                if grown and kind in READ:  # the clock's topic has our own signs of life
                    self._health.gets_on(time.monotonic())
        read = self._query_read()
        if read is not None:
            waiting = (
                max(end - read.get(place, 0), 0)
                for place, end in ends.items()
                if _kind(place[0]) in INPUTS
            )
            self.rows_behind = sum(waiting)
            self._metrics.behind.set(self.rows_behind)
            if self._read() is not None:
                self._health.waiting(self.rows_behind, sum(read.values()))
        self._ends = ends

    def _check_topics(self, ends: Ends) -> None:
        """Doubt the input topics when one ends before what was there or was read.

        A topic that was deleted and created again does so, and the query waits in vain until the
        old offset is reached. So does one whose new leader lacks records.
        """
        read = self._read() or {}
        short = {
            place
            for place, end in ends.items()
            if _kind(place[0]) in INPUTS and end < max(self._ends.get(place, 0), read.get(place, 0))
        }
        if short - self._short:
            try:
                if self._same_topics():
                    where = sorted({topic for topic, _ in short})
                    _log.error("records were lost: topics end before what was read", topics=where)
            except KafkaUnreachable:
                return  # asked again at the next look
        self._short = short

    def _query_read(self) -> Ends | None:
        """How far the query has read, by its own reports.

        Without a report: the end offsets that were known when the query first counted as ready.
        None = it is not ready yet.
        """
        offsets_read = self._read()
        if offsets_read is not None:
            return offsets_read
        if self._all is None and self._health.ready().fine:
            self._all = dict(self._ends)
        return self._all

    def _asked(self) -> tuple[Ends, KafkaException | None]:
        """The end offsets of the partitions that answer, and the failure of one that does not."""
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library left it out
        try:
            ends, refusal = answered(self._admin.client, self._places, newest, ASK_TIMEOUT_S)
        except KafkaException as error:  # a new client may not be made: a certificate is unreadable
            return {}, error
        if refusal is not None:
            self._admin.replace()  # refused for an old epoch, it would be refused for minutes
        return ends, refusal

    def _all_asked(self) -> Ends:
        """The end offsets of all partitions.

        Raises:
            KafkaException: one does not answer.
        """
        ends, refusal = self._asked()
        if refusal is not None:
            raise refusal
        return ends


def _kind(topic: str) -> str:
    return topic.rpartition(".")[2]


def _since_ms(message: Message) -> int | None:
    value = dict(message.headers() or ()).get(SINCE)
    if isinstance(value, bytes) and value.isdigit() and len(value) < DIGITS_MAX:
        return int(value)
    return None


def _tell_quarantine(prefix: str, record: GroupSnapshot) -> None:
    assert record.quarantine is not None
    _log.error(
        "group quarantined",
        prefix=prefix,
        group=str(record.group),
        story=record.quarantine.story,
        release=f"muster groups release {as_option('--group', record.group)}",
    )
