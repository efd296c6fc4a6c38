"""The operator without a JVM, over an in-memory state store."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import Row
from support.state.story import AT_ONCE
from support.streams.packed_rows import pack

from muster.protocol import codec
from muster.protocol.events import Event, GroupConfig, GroupDeleted, Join, Origin
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keyring import SigningKey
from muster.protocol.records import GroupSnapshot, Record
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TOPICS, TopicKind
from muster.streams import processor
from muster.streams.batch import letter_limits
from muster.streams.batch.group_batch import Publisher
from muster.streams.batch.outbox import TOPIC_OF
from muster.streams.batch.pace import Pace
from muster.streams.processor import GroupProcessor
from muster.streams.source import input_topics, lane_of

PREFIXES = ["muster", "other"]
INPUT = input_topics(PREFIXES)
PARTITIONS = {topic.name(prefix): 2 for topic in TOPICS for prefix in PREFIXES}
G, M = GroupId("g"), MemberId("m")
REBUILD_MS = 600_000
ALLOWED = frozenset(f"support.plugin_assignors:{name}" for name in ("Raises", "Hangs", "Exits"))


class Operator:
    """The operator over an in-memory state store; takes events, returns records."""

    def __init__(
        self,
        epoch: int = 7,
        initial: Sequence[tuple[bytes, bytes]] = (),
        unverified_until_ms: int = 0,
        quarantined: bool = False,
        assignor_ms_max: int = 10_000,
        signing_keys: str | None = None,
        prefixes: Sequence[str] = PREFIXES,
        careful_until_ms: int = 0,
    ) -> None:
        self._topics = input_topics(prefixes)
        rows = [
            (lane, Row(lane=lane, snapshot=snapshot, quarantined=quarantined))
            for lane, snapshot in initial
        ]
        other = Publisher(
            epoch, PARTITIONS, REBUILD_MS, assignors=ALLOWED, assignor_ms_max=assignor_ms_max
        )
        publishers = dict.fromkeys(prefixes, other)
        publishers["muster"] = other._replace(unverified_until_ms=unverified_until_ms)
        self.processor = GroupProcessor(
            *(publishers, self._topics),
            signing_keys=signing_keys,
            careful_until_ms=careful_until_ms,
        )
        self.tester = TwsTester(
            self.processor,
            **({"initialStateRow": rows} if rows else {}),
        )
        self._offsets: dict[str, int] = {}
        self.written: list[Row] = []

    def at(self, event: Event, at_ms: int, prefix: str = "muster") -> Event:
        """The event with an origin: the next offset of its topic."""
        is_config = isinstance(event, GroupConfig | GroupDeleted)
        kind = TopicKind.CONFIG if is_config else TopicKind.MEMBERSHIP
        topic = f"{prefix}.{kind}"
        offset = self._offsets[topic] = self._offsets.get(topic, -1) + 1
        object.__setattr__(event, "origin", Origin(topic, 0, offset, at_ms))
        return event

    def feed(self, at_ms: int, *events: Event, prefix: str = "muster") -> list[Record]:
        """Take one batch of events of one group, all with one time."""
        placed = [self.at(event, at_ms, prefix) for event in events]
        encoded = [codec.encode(event) for event in placed]
        pairs = zip(placed, encoded, strict=True)
        entries = [pack(e.origin, c.value, self._topics) for e, c in pairs]
        return self.batch(lane_of(prefix, encoded[0].key), entries)

    def batch(self, lane: bytes, entries: Sequence[bytes]) -> list[Record]:
        """Take one batch of packed rows, in any order."""
        self.begin_batch()
        return self.more(lane, entries)

    def begin_batch(self) -> None:
        """Begin a batch, for how many groups have had a config in it."""
        self.processor._pace = Pace()

    def more(self, lane: bytes, entries: Sequence[bytes]) -> list[Record]:
        """Take the packed rows of one more group in the same batch."""
        rows = [Row(lane=lane, entry=entry) for entry in entries]
        written = self.tester.test(lane, rows)
        self.written += written
        return [record_of(row) for row in written]

    def stored(self, lane: bytes) -> tuple[bytes | None, bytes | None]:
        """Liveness and snapshot in the store."""
        values = [self.tester.peekValueState(name, lane) for name in ("liveness", "snapshot")]
        return tuple(None if value is None else value[0] for value in values)

    def goes_on(self, before: Operator, lane: bytes) -> None:
        """Take over a group that an earlier run has stored, and go on with its offsets."""
        for name, value in zip(("liveness", "snapshot"), before.stored(lane), strict=True):
            if value is not None:
                self.tester.updateValueState(name, lane, (value,))
        self._offsets = before._offsets


def record_of(row: Row) -> Record:
    prefix, _, kind = row.topic.rpartition(".")
    assert prefix in PREFIXES
    record = codec.decode_record(TopicKind(kind), row.key, row.value)
    assert TOPIC_OF[type(record)] == kind
    return record


def of_kind(records: Sequence[Record], kind: type) -> list:
    """The records of a type."""
    return [record for record in records if isinstance(record, kind)]


def newest(records: Sequence[Record]) -> GroupSnapshot:
    """The last of the snapshots."""
    return of_kind(records, GroupSnapshot)[-1]


def config(
    partitions: int = 4,
    settings: Mapping[str, object] | None = None,
    assignor: str = "sticky",
) -> GroupConfig:
    """The config of a group of one subtopology that is placed at once when it starts."""
    unit = Subtopology("0", partitions)
    parsed = parse_settings({**AT_ONCE, **(settings or {})}, assignor)
    return GroupConfig(group=G, assignor=assignor, settings=parsed, tasks=(unit,))


def join(member: str = "m") -> Join:
    """A member's first join."""
    return Join(group=G, member=MemberId(member), incarnation=5)


def key_file(file: Path, *keys: SigningKey) -> str:
    """A keyring with these keys, which must sign every event."""
    rows = [{"id": key.id, "secret": base64.b64encode(key.secret).decode()} for key in keys]
    file.write_text(json.dumps({"keys": rows, "signature.required": [{"groups": ["*"]}]}))
    return str(file)


LANE = lane_of("muster", b"g")


@pytest.fixture
def nothing_in_memory() -> Iterator[None]:
    """Clear the groups and the counts of letters in this process' memory, before and after."""
    for memory in (processor._cache, letter_limits._unreported):
        memory.clear()
    yield
    for memory in (processor._cache, letter_limits._unreported):
        memory.clear()
