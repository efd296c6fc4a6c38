"""The operator without a JVM: stored bytes, the groups in memory, and that it never raises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import Row
from support import plugin_assignors

from muster import plugins
from muster.protocol import codec
from muster.protocol.events import Event, GroupConfig, Heartbeat, Join, Leave, Origin, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.parts import parts
from muster.protocol.records import (
    GroupSnapshot,
    MemberAssignment,
    Record,
    Rejected,
    WakeUp,
)
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TOPICS, TopicKind
from muster.streams import outbox, processor, turn
from muster.streams.inbox import Inbox
from muster.streams.outbox import SINCE, TOPIC_OF
from muster.streams.processor import GroupProcessor
from muster.streams.source import input_topics, lane_of, pack
from muster.streams.turn import Publisher, Stored

PREFIXES = ["muster", "other"]
INPUT = input_topics(PREFIXES)
PARTITIONS = {topic.name(prefix): 2 for topic in TOPICS for prefix in PREFIXES}
G, M = GroupId("g"), MemberId("m")
REBUILD_MS = 600_000


@pytest.fixture(autouse=True)
def _nothing_in_memory() -> Iterator[None]:
    processor._cache.clear()
    yield
    processor._cache.clear()


class Operator:
    """The operator over an in-memory state store; feeds events, gives records."""

    def __init__(
        self,
        epoch: int = 7,
        initial: Sequence[tuple[bytes, bytes]] = (),
        wary_until_ms: int = 0,
    ) -> None:
        epochs = dict.fromkeys(PREFIXES, epoch)
        rows = [(lane, Row(lane=lane, snapshot=snapshot)) for lane, snapshot in initial]
        self.tester = TwsTester(
            GroupProcessor(
                epochs, PARTITIONS, INPUT, REBUILD_MS, wary_until_ms={"muster": wary_until_ms}
            ),
            **({"initialStateRow": rows} if rows else {}),
        )
        self._offsets: dict[str, int] = {}
        self.written: list[Row] = []

    def at(self, event: Event, at_ms: int, prefix: str = "muster") -> Event:
        """The event with an origin: the next offset of its topic."""
        kind = TopicKind.CONFIG if isinstance(event, GroupConfig) else TopicKind.MEMBERSHIP
        topic = f"{prefix}.{kind}"
        offset = self._offsets[topic] = self._offsets.get(topic, -1) + 1
        object.__setattr__(event, "origin", Origin(topic, 0, offset, at_ms))
        return event

    def feed(self, at_ms: int, *events: Event, prefix: str = "muster") -> list[Record]:
        """One batch of events of one group, all of one time."""
        placed = [self.at(event, at_ms, prefix) for event in events]
        encoded = [codec.encode(event) for event in placed]
        entries = [pack(e.origin, c.value, INPUT) for e, c in zip(placed, encoded, strict=True)]
        return self.batch(lane_of(prefix, encoded[0].key), entries)

    def batch(self, lane: bytes, entries: Sequence[bytes]) -> list[Record]:
        """One batch of packed rows, in any order."""
        rows = [Row(lane=lane, entry=entry) for entry in entries]
        found = self.tester.test(lane, rows)
        self.written += found
        return [_record(row) for row in found]

    def stored(self, lane: bytes) -> tuple[bytes | None, bytes | None]:
        """Liveness and snapshot in the store."""
        found = [self.tester.peekValueState(name, lane) for name in ("liveness", "snapshot")]
        return tuple(None if value is None else value[0] for value in found)


def _record(row: Row) -> Record:
    prefix, _, kind = row.topic.rpartition(".")
    assert prefix in PREFIXES
    record = codec.decode_record(TopicKind(kind), row.key, row.value)
    assert TOPIC_OF[type(record)] == kind
    return record


def of_kind(records: Sequence[Record], kind: type) -> list:
    """The records of a type."""
    return [record for record in records if isinstance(record, kind)]


def config(
    partitions: int = 4,
    settings: Mapping[str, object] | None = None,
    assignor: str = "sticky",
) -> GroupConfig:
    """A group of one subtopology."""
    unit = Subtopology("0", partitions)
    parsed = parse_settings(settings or {}, assignor)
    return GroupConfig(group=G, assignor=assignor, settings=parsed, tasks=(unit,))


def join(member: str = "m") -> Join:
    """A member's first word."""
    return Join(group=G, member=MemberId(member), incarnation=5)


LANE = lane_of("muster", b"g")


def test_a_member_gets_its_tasks() -> None:
    """Config and join in one batch: an assignment of all tasks, a snapshot, a wake-up."""
    records = Operator().feed(1_000, config(), join())
    (assignment,) = of_kind(records, MemberAssignment)
    assert (assignment.member, len(assignment.active), assignment.coordinator_epoch) == (M, 4, 7)
    assert [s.members[0].id for s in of_kind(records, GroupSnapshot)] == [M]
    assert len(of_kind(records, WakeUp)) == 1


def test_a_snapshot_says_how_old_its_question_was() -> None:
    """The header is the oldest asking event of the batch; heartbeats and ticks ask nothing."""
    operator = Operator()
    operator.feed(1_000, config())
    late, early = operator.at(join("n"), 5_000), operator.at(join("m"), 4_000)
    tick = operator.at(Tick(group=G), 3_500)
    encoded = [codec.encode(event) for event in (late, early, tick)]
    entries = [
        pack(event.origin, each.value, INPUT)
        for event, each in zip((late, early, tick), encoded, strict=True)
    ]
    operator.written.clear()
    operator.batch(LANE, entries)
    told = {
        row.topic: [value for name, value in row.headers or () if name == SINCE]
        for row in operator.written
    }
    assert told["muster.groups"] == [b"4000"]
    assert [values for topic, values in told.items() if topic != "muster.groups"] == [[], []]


def live(operator: Operator, *, forget: bool = False) -> None:
    """A small life, batch by batch; `forget` empties the memory before each batch."""
    batches: list[tuple[Event, ...]] = [
        (config(), join()),
        (join("n"),),
        (Heartbeat(group=G, member=M, epoch=1, digest=1),),
        (Heartbeat(group=G, member=M, epoch=1, digest=1), Tick(group=G)),
        (Leave(group=G, member=M, incarnation=5),),
        (config(6),),
        (Tick(group=G),),
    ]
    for number, events in enumerate(batches):
        if forget:
            processor._cache.clear()
        operator.feed(1_000 * (number + 1), *events)


def test_memory_changes_nothing() -> None:
    """Kept in memory or read back from the store before every batch: the same records."""
    remembered, forgotten = Operator(), Operator()
    live(remembered)
    live(forgotten, forget=True)
    assert len(remembered.written) > 7
    assert remembered.written == forgotten.written
    assert remembered.stored(LANE) == forgotten.stored(LANE)


def test_memory_of_another_store_is_not_trusted() -> None:
    """Two stores in one process: each answers by its own, not by what the other left in memory."""
    mine, other = Operator(), Operator()
    mine.feed(1_000, config(), join())
    other.feed(1_000, config(2), join("stranger"))
    records = mine.feed(2_000, join("n"))
    (snapshot,) = of_kind(records, GroupSnapshot)[-1:]
    assert sorted(member.id for member in snapshot.members) == ["m", "n"]


def test_the_order_of_rows_does_not_matter() -> None:
    """Spark replays a batch with its rows in another order: the same records come out."""
    told = []
    for turned in (False, True):
        operator = Operator()
        events = [operator.at(e, 1_000 + i) for i, e in enumerate([config(), join(), join("n")])]
        entries = [pack(e.origin, codec.encode(e).value, INPUT) for e in events]
        operator.batch(LANE, entries[::-1] if turned else entries)
        told.append(operator.written)
        processor._cache.clear()
    assert told[0] == told[1]


def test_prefixes_are_apart() -> None:
    """One query, two prefixes: groups of one name know nothing of each other."""
    operator = Operator()
    operator.feed(1_000, config(), join())
    records = operator.feed(1_000, config(2), join("n"), prefix="other")
    (assignment,) = of_kind(records, MemberAssignment)
    assert (assignment.member, len(assignment.active)) == ("n", 2)


def test_a_heartbeat_does_not_touch_the_snapshot() -> None:
    """A heartbeat that agrees writes liveness only; after a while the snapshot is renewed."""
    operator = Operator()
    (assignment,) = of_kind(operator.feed(1_000, config(), join()), MemberAssignment)
    liveness, snapshot = operator.stored(LANE)
    digest = codec_digest(assignment)
    beat = Heartbeat(group=G, member=M, epoch=assignment.epoch, digest=digest)
    assert of_kind(operator.feed(2_000, beat), GroupSnapshot) == []
    after, same = operator.stored(LANE)
    assert (after != liveness, same) == (True, snapshot)
    (renewed,) = of_kind(
        operator.feed(1_000 + REBUILD_MS, Heartbeat(group=G, member=M, epoch=1, digest=digest)),
        GroupSnapshot,
    )
    assert renewed.clock_ms == 1_000 + REBUILD_MS
    assert {(t, p): o for t, p, o in renewed.through}["muster.membership", 0] == 2


def codec_digest(assignment: MemberAssignment) -> int:
    """The digest of a member that holds just what it was assigned."""
    from muster.protocol.digest import Holding

    return Holding(active=assignment.active).digest()


def test_nobody_is_not_remembered() -> None:
    """Ticks and heartbeats of a group that does not exist leave nothing in the store."""
    operator = Operator()
    operator.feed(1_000, Tick(group=G), Heartbeat(group=G, member=M, epoch=3, digest=9))
    assert operator.stored(LANE) == (None, None)


def test_a_bug_parks_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the core fails the events become dead letters, the first with the story.

    What is stored stays, and the group goes on when the core does.
    """
    operator = Operator()
    operator.feed(1_000, config(), join())
    liveness, snapshot = operator.stored(LANE)
    with monkeypatch.context() as broken:
        broken.setattr(turn, "advance", _fail)
        first = operator.feed(2_000, join("n"), Tick(group=G))
        second = operator.feed(3_000, Tick(group=G), join("o"))
    assert [(type(r), r.reason) for r in first] == [(Rejected, turn.GROUP_FAILED)] * 1
    assert "ZeroDivisionError: the story" in first[0].message
    assert [(r.reason, r.origin.offset) for r in second] == [(turn.GROUP_FAILED, 4)]
    assert "ZeroDivisionError" not in second[0].message
    assert operator.stored(LANE)[1] == snapshot
    assert liveness is not None
    records = operator.feed(4_000, join("p"))
    (newest,) = of_kind(records, GroupSnapshot)[-1:]
    assert sorted(member.id for member in newest.members) == ["m", "p"]
    assert of_kind(operator.feed(5_000, Tick(group=G)), Rejected) == []


def test_a_record_too_large_keeps_the_last_good_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What no reader would accept is not published, not even in part; a dead letter says why."""
    operator = Operator()
    operator.feed(1_000, config(), join())
    _, snapshot = operator.stored(LANE)
    with monkeypatch.context() as limited:
        # Where every snapshot must be split, and readers join no more than 100 bytes.
        most = {GroupSnapshot: 200}
        limited.setattr("muster.protocol.parts.VALUE_BYTES_MAX", 100)
        limited.setattr(
            outbox, "parts", lambda r, turn: parts(r, most.get(type(r), 10_000), turn=turn)
        )
        (letter,) = operator.feed(2_000, join("n"))
    assert (type(letter), letter.reason) == (Rejected, turn.GROUP_FAILED)
    assert "bytes; 100 are accepted" in letter.message
    assert operator.stored(LANE)[1] == snapshot
    (newest,) = of_kind(operator.feed(3_000, join("n")), GroupSnapshot)[-1:]
    assert sorted(member.id for member in newest.members) == ["m", "n"]


def _fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError("the story")


@pytest.fixture
def released() -> Iterator[None]:
    """Ends a hanging plug-in after the test."""
    plugin_assignors.RELEASE.clear()
    yield
    plugin_assignors.RELEASE.set()


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize(
    ("plugin", "told"),
    [("Raises", "ZeroDivisionError: oops"), ("Hangs", "took more than 20 ms")],
)
def test_a_plugin_harms_no_group(plugin: str, told: str) -> None:
    """A plug-in raises, or hangs beyond its budget: a dead letter says so, the target stays.

    The group itself goes on, told by its member still holding everything and by its next
    assignor placing the newcomer.
    """
    operator = Operator()
    operator.feed(1_000, config(), join())
    patience = {"assignor.timeout.ms": 20}
    bad = config(settings=patience, assignor=f"support.plugin_assignors:{plugin}")
    assert of_kind(operator.feed(2_000, bad, join("n")), Rejected) == []
    records = operator.feed(2_001, Tick(group=G))
    (letter,) = of_kind(records, Rejected)
    assert letter.reason == "ASSIGNOR_FAILED"
    assert told in letter.message
    (snapshot,) = of_kind(records, GroupSnapshot)
    assert sorted(member.id for member in snapshot.members) == ["m", "n"]
    given = {r.member: len(r.active) for r in of_kind(records, MemberAssignment)}
    assert (given.get("m", 4), given.get("n", 0)) == (4, 0)
    after = operator.feed(3_000, config())
    assert of_kind(after, Rejected) == []
    assert {r.member: len(r.active) for r in of_kind(after, MemberAssignment)}[M] == 2


@pytest.mark.usefixtures("released")
def test_another_attempt_of_a_batch_says_the_same() -> None:
    """A plug-in too late in one attempt and in time in the other: what is stored decides.

    The batch is tried from the same stored bytes twice; after each, two attempts of the next one
    publish the same as well, without asking the plug-in.
    """
    hangs = "support.plugin_assignors:Hangs"
    operator = Operator()
    operator.feed(1_000, config(), join())
    before = Stored(*operator.stored(LANE))
    bad = operator.at(config(settings={"assignor.timeout.ms": 20}, assignor=hangs), 2_000)
    inbox = Inbox("muster", G, [bad, operator.at(join("n"), 2_000)])
    tick = Inbox("muster", G, [operator.at(Tick(group=G), 2_001)])
    publisher = Publisher(7, PARTITIONS, REBUILD_MS)
    late = turn.take(None, before, inbox, publisher)
    plugin_assignors.RELEASE.set()
    guard = plugins.get(hangs)
    assert isinstance(guard, plugins.Guarded)
    assert guard._hanging is not None
    guard._hanging.join()
    early = turn.take(None, before, inbox, publisher)
    assert late.rows == early.rows
    for tried, letters in ((late, 1), (early, 0)):
        records = [turn.take(None, tried.stored, tick, publisher).rows for _ in range(2)]
        assert records[0] == records[1]
        assert len(of_kind([_record(row) for row in records[0]], Rejected)) == letters


def spoilt(name: str) -> Operator:
    """An operator whose stored value of a group nobody can read."""
    operator = Operator()
    operator.feed(1_000, config(), join())
    value = operator.stored(LANE)[name == "snapshot"]
    assert value is not None
    operator.tester.updateValueState(name, LANE, (value[:20] + b"\xff" * 7,))
    processor._cache.clear()
    return operator


def test_an_unreadable_snapshot_parks_the_group() -> None:
    """Stored bytes nobody can read do not raise either; they are kept for whoever can."""
    records = spoilt("snapshot").feed(2_000, join("n"))
    assert [r.reason for r in of_kind(records, Rejected)] == [turn.GROUP_FAILED]


def test_an_unreadable_liveness_is_asked_for() -> None:
    """Whoever was heard when can be found out again: the member keeps its tasks and is asked."""
    records = spoilt("liveness").feed(2_000, join("n"))
    assert of_kind(records, Rejected) == []
    asked = {r.member: (r.report, len(r.active)) for r in of_kind(records, MemberAssignment)}
    assert asked[M] == (True, 4)


def test_a_lost_checkpoint() -> None:
    """A snapshot as initial state: the member keeps its tasks and is asked what it holds."""
    before = Operator(epoch=7)
    before.feed(1_000, config(), join())
    _, snapshot = before.stored(LANE)
    assert snapshot is not None
    after = Operator(epoch=8, initial=[(LANE, snapshot)])
    after._offsets = dict(before._offsets)
    records = after.feed(2_000, Tick(group=G))
    (assignment,) = of_kind(records, MemberAssignment)
    assert (assignment.report, assignment.coordinator_epoch) == (True, 8)
    assert len(assignment.active) == 4


def test_a_group_nobody_stored_may_have_had_a_coordinator() -> None:
    """Just after a checkpoint was lost who joins a new group is asked; later, and elsewhere, not.

    The time is that of the events, so a batch that is replayed decides alike.
    """
    for at_ms, prefix, asked in (
        (1_999, "muster", True),
        (2_000, "muster", False),
        (1, "other", False),
    ):
        operator = Operator(wary_until_ms=2_000)
        (told,) = of_kind(operator.feed(at_ms, config(), join(), prefix=prefix), MemberAssignment)
        assert (told.report, len(told.active)) == (asked, 0 if asked else 4)
