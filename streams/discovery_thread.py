"""Discovery: keeps the record of what Kafka has for each group's sources up to date.

One thread reads ``<prefix>.config``. Every interval it asks Kafka for the topics that the groups
declare, and writes a `TopicsFound` where the newest one differs (`topic_changes`), or is older than
the group's config. The coordinator takes it as an event, in the order of the log. Any number of
discoveries may run: they see what the others have written, and a record that says nothing new
changes nothing.

With signing keys it ignores records whose signature the coordinator refuses.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from muster.discovery import measured_traffic, topics
from muster.discovery.measured_traffic import Measure, Place
from muster.discovery.measured_weights import smoothed
from muster.discovery.patterns import Patterns
from muster.discovery.topic_changes import GRACE_MS, Look, Memory, find
from muster.discovery.topics import Topic
from muster.errors import Unreachable
from muster.kafka import access_check
from muster.kafka.client_settings import ClientSettings
from muster.kafka.cluster import QUIET
from muster.kafka.compacted import is_newer
from muster.kafka.lasting_admin import LastingAdmin
from muster.kafka.reader import row_of
from muster.kafka.writer import deliver
from muster.logs import KAFKA
from muster.output import wall_ms
from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.declared_and_found_tasks import fitting
from muster.protocol.errors import DecodeError, MusterError
from muster.protocol.events import Event, GroupConfig, GroupDeleted, Origin, TopicsFound
from muster.protocol.ids import GroupId
from muster.protocol.keyring import caller_of
from muster.protocol.keys import partition_of
from muster.protocol.signature_check import Verifier
from muster.protocol.sources import Found, Source
from muster.protocol.topics import TopicKind, topic_name
from muster.signing.followed_key_file import KeyFile, signed
from muster.signing.rotation import KEPT_MS
from muster.state.printable import cut
from muster.streams.background_thread import Complaints, Loop

_log = structlog.get_logger("muster.streams")

RETRY_S = 5.0
WRITE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The time between two looks at topics, and between two measurements of their load.

    A topic that has vanished keeps its tasks for `grace_ms`.
    """

    interval_ms: int = 2_000
    measure_ms: int = 30_000
    grace_ms: int = GRACE_MS


@dataclass(slots=True)
class _Group:
    """What the config topic says of a group, and what is remembered of it.

    `config` is None if it was deleted; `…_at` are places in the order of the log, `…_in` the
    partitions that the records were read from, -1 = none was. Of the faults, those that were
    `logged` last are not logged again.
    """

    config: GroupConfig | None = None
    config_at: tuple[int, int] = (0, -1)
    config_in: int = -1
    found: TopicsFound | None = None
    found_at: tuple[int, int] = (0, -1)
    found_in: int = -1
    memories: dict[Source, Memory] = field(default_factory=dict)
    lags: dict[Source, dict[Place, float]] = field(default_factory=dict)
    logged: tuple[str, ...] = ()


class Discovery(Loop):
    """Runs in a thread of its own, between enter and exit.

    Attributes:
        written: number of records that Kafka has acknowledged.
    """

    def __init__(
        self,
        clients: ClientSettings,
        prefixes: Sequence[str],
        pace: Pace | None = None,
        keys: KeyFile | None = None,
    ) -> None:
        super().__init__("muster-discovery")
        self._clients = clients
        self._prefixes = tuple(prefixes)
        self._pace = pace or Pace()
        self._keys = keys
        self._groups: dict[tuple[str, GroupId], _Group] = defaultdict(_Group)
        self._patterns = Patterns()
        self._measured_ms: int | None = None
        self._complaints = Complaints()
        self._counts: Counter[str] = Counter()
        """Partitions of each config topic."""
        self.written = 0

    def _run(self) -> None:
        reader = self._clients.reader(f"{self._prefixes[0]}.discovery", {"fetch.wait.max.ms": 100})
        consumer = Consumer(reader, logger=KAFKA)
        self._producer = self._new_producer()
        admin = LastingAdmin(self._clients.librdkafka(QUIET), KAFKA)
        try:
            behind = self._assign(consumer)
            while not self._closing.is_set():
                self._read(consumer, behind)
                if not behind:
                    self._look(admin)
        finally:
            self._drop_producer()
            consumer.close()

    def _new_producer(self) -> Producer:
        return Producer(self._clients.producer({"message.timeout.ms": 9_000}), logger=KAFKA)

    def _drop_producer(self) -> None:
        with suppress(KafkaException), access_check.fatal_named():
            self._producer.purge()

    # ------------------------------------------------------------------ the config topic

    def _assign(self, consumer: Consumer) -> dict[tuple[str, int], int]:
        """Read every config topic from its beginning; the ends to reach before the first look."""
        topics = [topic_name(TopicKind.CONFIG, prefix) for prefix in self._prefixes]
        offsets = self._assigned(consumer, topics, RETRY_S)
        self._counts = Counter(topic for topic, _ in offsets)
        return {place: high for place, (low, high) in offsets.items() if high > low}

    def _read(self, consumer: Consumer, behind: dict[tuple[str, int], int]) -> None:
        """Take in new records until it is time to look."""
        wait_s = self._pace.interval_ms / 1000 * random.uniform(0.9, 1.1)  # noqa: S311  no secret
        until_s = time.monotonic() + (0.5 if behind else wait_s)
        while not self._closing.is_set() and (left_s := until_s - time.monotonic()) > 0:
            messages = self._arrived(consumer, min(left_s, 0.2))
            for message in messages:
                self._note(message)
            if not behind and not all(_is_found(message) for message in messages):
                return  # a config has changed: look at once
        for part in consumer.position([TopicPartition(*place) for place in behind]):
            if part.offset >= behind[part.topic, part.partition]:
                del behind[part.topic, part.partition]

    def _note(self, message: Message) -> None:
        """Take in a record of a config topic, unless it is older than what is known.

        After partitions were added, older records of a group may be read from another partition.
        """
        topic, key = str(message.topic()), message.key()
        place = message.partition() or 0, message.timestamp()[1]
        partition, at_ms = place
        origin = Origin(topic, partition, message.offset() or 0, at_ms)
        try:
            event = codec.decode(TopicKind.CONFIG, key, message.value(), origin)
        except DecodeError:
            return  # not a record of muster
        if not self._may_count(event, message):
            return
        group = self._groups[topic.rpartition(".")[0], event.group]
        home = partition_of(key or b"", max(self._counts[topic], 1))
        if isinstance(event, TopicsFound):
            if is_newer(place, (group.found_in, group.found_at[0]), home):
                group.found, group.found_in = event, partition
                group.found_at = at_ms, origin.offset
        elif isinstance(event, GroupConfig | GroupDeleted) and is_newer(
            place, (group.config_in, group.config_at[0]), home
        ):
            group.config = event if isinstance(event, GroupConfig) else None
            group.config_at, group.config_in = (at_ms, origin.offset), partition

    def _may_count(self, event: Event, message: Message) -> bool:
        """Whether the coordinator takes a record of a config topic, by its signature.

        What discovery writes is signed by the job, so it must not follow from what others forge.
        """
        if self._keys is None:
            return True
        row = row_of(message)
        verifier = Verifier(self._keys.current(), event.group, row.topic, event.group.encode())
        verdict = verifier.verdict(caller_of(event), row.value, row.signature, row.at_ms)
        # A keyring has keys for some days after their end. What they signed is older than that.
        is_old = row.at_ms < wall_ms() - KEPT_MS
        return verdict is None or (is_old and verdict.reason is DeadLetter.UNKNOWN_KEY)

    # ------------------------------------------------------------------ Kafka's topics

    def _look(self, admin: LastingAdmin) -> None:
        """Look at all topics that groups declare, and write what is new."""
        live = {
            key: group
            for key, group in self._groups.items()
            if group.config is not None and (group.config.sources or group.found is not None)
        }
        sources = {
            source for group in live.values() if group.config for source in group.config.sources
        }
        if not sources and all(not _is_due(group) for group in live.values()):
            return
        try:
            known_topics = self._topics(admin, sources)
        except (KafkaException, TimeoutError) as error:
            admin.replace()
            self._complain(f"Kafka does not describe the topics: {error}")
            return
        now_ms = time.monotonic_ns() // 1_000_000  # the time of day may be set
        since_ms = self._measured_ms
        measure = since_ms is None or now_ms - since_ms >= self._pace.measure_ms
        for (prefix, name), group in live.items():
            if self._closing.is_set():
                return  # a Kafka that does not answer takes seconds for each group
            self._one(prefix, name, group, known_topics, admin, now_ms, measure)
        if measure:
            self._measured_ms = now_ms

    def _topics(self, admin: LastingAdmin, sources: set[Source]) -> dict[str, Topic]:
        """Every topic that some source may mean, by name."""
        wanted = {name for source in sources for name in source.topics}
        if patterns := {source.pattern for source in sources if source.pattern}:
            own = tuple(f"{prefix}." for prefix in self._prefixes)
            names = (name for name in topics.names(admin.client) if not name.startswith(own))
            self._patterns.look(patterns, names)
            wanted = wanted.union(*(self._patterns.topics(each) or () for each in patterns))
        return topics.topics(admin.client, wanted)

    def _one(
        self,
        prefix: str,
        name: GroupId,
        group: _Group,
        known_topics: Mapping[str, Topic],
        admin: LastingAdmin,
        now_ms: int,
        measure: bool,
    ) -> None:
        """Compare one group's newest record with Kafka's topics, and write a new one if needed."""
        assert group.config is not None
        before = {each.source: each for each in group.found.found} if group.found else {}
        found: list[Found] = []
        faults: list[str] = []
        for source in dict.fromkeys(group.config.sources):
            names = self._patterns.topics(source.pattern) if source.pattern else source.topics
            if names is None:  # not known yet, or never: what was found stays
                found += [before[source]] if source in before else []
                if fault := self._patterns.fault(source.pattern):
                    faults.append(f"pattern {cut(source.pattern, 100)}: {fault}")
                continue
            own = {each: known_topics[each] for each in sorted(names) if each in known_topics}
            first = source not in before
            loads = None
            if source.measure and own and (measure or first):
                loads = self._loads(admin, name, group, source, own, faults)
            memory = group.memories.setdefault(source, Memory())
            look = Look(own, loads, now_ms)
            each, wrong = find(source, before.get(source), look, memory, self._pace.grace_ms)
            found.append(each)
            faults += wrong
            if not own and not each.units and not wrong:
                wanted = source.pattern or ", ".join(source.topics)
                faults.append(f"no topic {wanted}, or this login may not describe it")
        config = group.config
        event = TopicsFound(group=name, found=fitting(config.tasks, config.sources, found))
        self._tell(name, group, faults)
        if _is_due(group) or group.found is None or event.found != group.found.found:
            self._write(prefix, group, event)

    def _loads(
        self,
        admin: LastingAdmin,
        name: GroupId,
        group: _Group,
        source: Source,
        own: Mapping[str, Topic],
        faults: list[str],
    ) -> dict[Place, float] | None:
        places = [(topic.name, p) for topic in own.values() for p in range(topic.partitions)]
        kind = Measure(source.measure)
        try:
            values = measured_traffic.by_measure(
                self._clients, admin.client, kind, places, name, wall_ms()
            )
        except (KafkaException, MusterError, ImportError, TimeoutError) as error:
            if isinstance(error, (KafkaException, Unreachable, TimeoutError)):
                admin.replace()  # refused for an old epoch, it would be refused for minutes
            faults.append(f"{kind} not measured: {self._clients.hidden(str(error))[:200]}")
            return None
        if kind is Measure.LAG:
            group.lags[source] = smoothed(group.lags.get(source, {}), values)
            return group.lags[source]
        return values

    def _write(self, prefix: str, group: _Group, event: TopicsFound) -> None:
        producer, topic = self._producer, topic_name(TopicKind.CONFIG, prefix)
        try:
            record = signed(self._keys, codec.encode(event), event, topic)
            # In the group's partition, where its order with the group's configs is certain.
            partitions = len(producer.list_topics(topic, timeout=5).topics[topic].partitions)
            place = partition_of(record.key, max(partitions, 1))
            with access_check.fatal_named():
                deliver(producer, topic, record, WRITE_TIMEOUT_S, partition=place)
        except (KafkaException, MusterError) as error:
            self._drop_producer()  # after a fatal error it would refuse each further record
            with suppress(KafkaException):  # a certificate that is being replaced
                self._producer = self._new_producer()
            self._complain(f"{topic} does not accept the found topics: {error}")
            return
        self.written += 1
        group.found = event  # the record itself comes back with its place
        group.found_at = (group.config_at[0], group.config_at[1] + 1)
        group.found_in = place
        count = sum(unit.size for each in event.found for unit in each.units)
        _log.info("found", group=event.group, topic=topic, tasks=count)

    def _tell(self, name: GroupId, group: _Group, faults: list[str]) -> None:
        if faults and tuple(faults) != group.logged:
            _log.warning("discovery", group=name, why="; ".join(faults))
        group.logged = tuple(faults)

    def _complain(self, why: str) -> None:
        self._complaints.hear("discovery", self._clients.hidden(why)[:300])
        self._closing.wait(RETRY_S)


def _is_found(message: Message) -> bool:
    return (message.key() or b"").endswith(b"||found")


def _is_due(group: _Group) -> bool:
    """Whether the group's config is newer than what was found for it."""
    return (
        group.config is not None
        and bool(group.config.sources or (group.found and group.found.found))
        and group.config_at > group.found_at
    )
