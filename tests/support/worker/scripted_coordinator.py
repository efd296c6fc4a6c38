"""A coordinator that a test controls: it reads events, and writes the records of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from support.suite.waiting import PATIENCE_S

from muster.protocol.codec import Encoded, decode, encode
from muster.protocol.events import Event, Heartbeat, Join, Origin
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keys import DICTIONARY_PART, key_of, partition_of
from muster.protocol.records import (
    Dictionary,
    Fault,
    GroupGone,
    GroupSnapshot,
    MemberAssignment,
    MemberGone,
)
from muster.protocol.signing import HEADER
from muster.protocol.split_records import parts
from muster.protocol.tasks import TaskSet, TaskTable, Unit
from muster.protocol.taskset import units_of_table
from muster.protocol.topics import RECORD_BYTES_MAX, TopicKind, topic_name

E = TypeVar("E", bound=Event)


class ScriptedCoordinator:
    """Reads every event of a group; writes records when the test says so."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        *,
        prefix: str = "muster",
        session_timeout_ms: int = 10_000,
        heartbeat_interval_ms: int = 200,
    ) -> None:
        self.group = GroupId(group)
        self.session_timeout_ms = session_timeout_ms
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.events: list[Event] = []
        self.signed: list[tuple[bytes, bytes]] = []  # (value, signature or b"") of each event
        self._revisions: dict[str, int] = {}
        self._seen = threading.Condition()
        self._assignments = topic_name(TopicKind.ASSIGNMENTS, prefix)
        self._groups = topic_name(TopicKind.GROUPS, prefix)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 0}
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "scripted",
                "fetch.wait.max.ms": 10,
                "enable.auto.commit": False,
            }
        )
        topic = topic_name(TopicKind.MEMBERSHIP, prefix)
        self._topic = topic
        count = len(self._consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        mine = TopicPartition(topic, partition_of(key_of(group), count))
        eventually(lambda: self._move_to_end(mine))
        self._consumer.assign([mine])
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _move_to_end(self, mine: TopicPartition) -> bool:
        try:
            _, mine.offset = self._consumer.get_watermark_offsets(mine, timeout=10)
        except KafkaException:  # a new topic may have no leader yet
            return False
        return True

    def _read(self) -> None:
        while not self._closing.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            origin = Origin(
                message.topic(), message.partition(), message.offset(), message.timestamp()[1]
            )
            event = decode(TopicKind.MEMBERSHIP, message.key(), message.value(), origin)
            if event.group == self.group:
                signature = dict(message.headers() or ()).get(HEADER, b"")
                with self._seen:
                    self.signed.append((message.value(), signature))
                    self.events.append(event)
                    self._seen.notify_all()

    def wait_for(
        self,
        kind: type[E],
        fits: Callable[[E], bool] = lambda _: True,
        *,
        after: int = 0,
        timeout_s: float = PATIENCE_S,
    ) -> E:
        """The first event of a kind that fits, among those from index `after` on."""

        def match() -> E | None:
            for event in self.events[after:]:
                if isinstance(event, kind) and fits(event):
                    return event
            return None

        with self._seen:
            self._seen.wait_for(lambda: match() is not None, timeout_s)
            event = match()
        rest = [e for e in self.events[after:] if not isinstance(e, Heartbeat)]
        assert event is not None, f"no {kind.__name__} came; seen other than heartbeats: {rest}"
        return event

    def assign(
        self,
        join: Join,
        active: Sequence[str] = (),
        *,
        standby: Sequence[str] = (),
        learner: Sequence[str] = (),
        wanted: Sequence[str] = (),
        report: bool = False,
        fault: Fault | None = None,
        generation: int = 1,
        epoch: int | None = None,
        coordinator_epoch: int = 0,
        message: str = "",
        dictionary: Dictionary | None = None,
        bytes_max: int = RECORD_BYTES_MAX,
        revision: int | None = None,
    ) -> MemberAssignment:
        """Write a member's whole assignment, with the next revision unless another is given."""
        if revision is None:
            revision = self._revisions.get(join.member, 0) + 1
            self._revisions[join.member] = revision
        record = MemberAssignment(
            group=self.group,
            member=join.member,
            incarnation=join.incarnation,
            coordinator_epoch=coordinator_epoch,
            generation=generation,
            epoch=generation if epoch is None else epoch,
            revision=revision,
            active=TaskSet.of(active),
            standby=TaskSet.of(standby),
            learner=TaskSet.of(learner),
            next=TaskSet.of(wanted),
            report=report,
            fault=fault,
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            message=message,
            dictionary=dictionary,
        )
        for part in parts(record, bytes_max):
            self._write(self._assignments, part)
        return record

    def publish_names(self, *units: Unit, beside: int = 0) -> Dictionary:
        """Write the group's dictionary, `beside` partitions after the one it belongs to."""
        names = Dictionary(group=self.group, units=units_of_table(TaskTable(units)))
        self._write(self._groups, encode(names), beside)
        return names

    def publish(self, *records: GroupSnapshot | GroupGone) -> None:
        """Write records of any groups to the groups topic."""
        for record in records:
            self._write(self._groups, encode(record))

    def let_go(self, member: str) -> None:
        """Write the tombstone of a member."""
        gone = MemberGone(group=self.group, member=MemberId(member))
        self._write(self._assignments, encode(gone))

    def garble(self, member: str) -> None:
        """Write an undecodable record under the key of a member."""
        key = key_of(self.group, MemberId(member))
        self._write(self._assignments, Encoded(key, b"\xc3\x01 no such schema", ()))

    def garble_names(self, beside: int = 0) -> None:
        """Write an undecodable record under the key of the group's dictionary."""
        key = key_of(self.group, part=DICTIONARY_PART)
        self._write(self._groups, Encoded(key, b"\xc3\x01 no such schema", ()), beside)

    def _write(self, topic: str, encoded: Encoded, beside: int = 0) -> None:
        key, value, headers = encoded
        count = len(self._producer.list_topics(topic, timeout=10).topics[topic].partitions)
        self._producer.produce(
            topic,
            key=key,
            value=value,
            headers=list(headers),
            partition=(partition_of(key, count) + beside) % count,
        )
        assert self._producer.flush(10) == 0

    def close(self) -> None:
        """Stop reading."""
        self._closing.set()
        self._thread.join(10)
        self._consumer.close()

    def __enter__(self) -> ScriptedCoordinator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def eventually(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds, by polling."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.005)
