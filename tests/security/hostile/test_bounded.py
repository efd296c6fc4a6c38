"""Stored state does not grow with history: after thousands of batches it is as large as before.

Each story feeds the operator batch by batch, with names that are used only once. After each batch
the test measures the bytes in the state store and counts the keys that a compacted topic would
keep. The maximum in the second half of a story must not exceed the maximum in the second quarter,
except for a few bytes of larger numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from pyspark.sql.types import Row
from support.protocol.bombs import kind_of
from support.streams.operator import LANE, G, Operator, config, of_kind
from support.suite.examples import examples

from muster.protocol import codec
from muster.protocol.digest import Holding
from muster.protocol.events import (
    Drain,
    Event,
    GroupDeleted,
    Heartbeat,
    Join,
    Lag,
    LagReport,
    Leave,
    Mark,
    Origin,
    Report,
    Tick,
)
from muster.protocol.ids import GroupId, MemberId, Task
from muster.protocol.records import Dictionary, GroupGone, MemberAssignment, Record, WakeUp
from muster.protocol.tasks import Subtopology
from muster.protocol.taskset import UnitRef
from muster.protocol.tick_covers import Cover, Heard
from muster.protocol.topics import TopicKind
from muster.state import kept_drains
from muster.streams import processor
from muster.streams.batch import letter_limits, work_limits
from muster.streams.batch.replay_guard import KEPT_MAX, SLACK_MS, ReplayGuard
from muster.streams.source import lane_of

pytestmark = pytest.mark.usefixtures("nothing_in_memory")

BATCHES = examples(900)
NUMBERS_BYTES = 64
"""Bytes that growing offsets, times and generations may add."""
Batch = list[Event]


class Reader(Operator):
    """The operator, and a reader that knows its dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, Sequence[UnitRef]] = {}

    def at(self, event: Event, at_ms: int, prefix: str = "muster") -> Event:
        """The event with an origin on its own topic."""
        topic = f"{prefix}.{kind_of(event)}"
        offset = self._offsets[topic] = self._offsets.get(topic, -1) + 1
        object.__setattr__(event, "origin", Origin(topic, 0, offset, at_ms))
        return event

    def batch(self, lane: bytes, entries: Sequence[bytes]) -> list[Record]:
        """Process one batch."""
        self.begin_batch()
        self.written += (
            found := self.tester.test(lane, [Row(lane=lane, entry=e) for e in entries])
        )
        told: list[Record] = []
        for row in found:
            kind = TopicKind(row.topic.rpartition(".")[2])
            told.append(codec.decode_record(kind, row.key, row.value, dictionaries=self._known))
            if isinstance(told[-1], Dictionary):
                self._known[told[-1].version] = told[-1].units
        return told


class Long:
    """A group over thousands of batches, whose members do what their records ask for.

    Attributes:
        keys: (topic, key) of every record that compaction would leave.
        stored: bytes in the state store after each batch.
        alive: number of `keys` after each batch.
    """

    def __init__(self) -> None:
        self.operator = Reader()
        self.keys: set[tuple[str, bytes]] = set()
        self.stored: list[int] = []
        self.alive: list[int] = []
        self.now_ms = 1_000
        self._published: Mark | None = None

    def take(self, events: Batch, after_ms: int = 1_000, *, obey: bool = True) -> None:
        """Process one batch, and the reports that follow from it."""
        while events:
            self.now_ms += after_ms
            tick = Tick(group=G, published=self._published)
            told = self.operator.feed(self.now_ms, *events, tick)
            for row in self.operator.written:
                place = (row.topic, row.key)
                (self.keys.discard if row.value is None else self.keys.add)(place)
            self.operator.written.clear()
            for wake_up in of_kind(told, WakeUp):
                self._published = wake_up.published
            given = [r for r in of_kind(told, MemberAssignment) if r.fault is None]
            events = [done(record) for record in given] if obey else []
            after_ms = 10
        letters_left = {place for place in self.keys if place[0].endswith("rejected")}
        self.keys -= letters_left  # this topic is not compacted; retention bounds it
        self.stored.append(sum(len(value or b"") for value in self.operator.stored(LANE)))
        self.alive.append(len(self.keys))


def done(record: MemberAssignment) -> Report:
    """The report of a member that has done what its record says."""
    return Report(
        group=G,
        member=record.member,
        incarnation=record.incarnation,
        epoch=record.epoch,
        revision=record.revision,
        holding=Holding(record.active, record.standby, record.learner),
    )


def join(number: int, name: str = "m", **more: object) -> Join:
    """Member number `number` joins."""
    who = {"group": G, "member": MemberId(f"{name}{number}"), "incarnation": number + 1}
    return Join(**who, **more)  # type: ignore[arg-type]  # by name


def leave(number: int) -> Leave:
    """Member number `number` leaves."""
    return Leave(group=G, member=MemberId(f"m{number}"), incarnation=number + 1)


def generations(n: int) -> Batch:
    """One member joins and another leaves: each batch is a generation."""
    return [join(n), *([leave(n - 2)] if n > 1 else [])]


def deaths(n: int) -> Batch:
    """A member joins and then sends nothing; no other member sends anything either."""
    return [join(n, instance_id=f"i{n}")] if n % 12 == 0 else []


def strangers(n: int) -> Batch:
    """Heartbeats, reports and leaves of processes that are not members."""
    who = {"group": G, "member": MemberId(f"s{n}")}
    return [
        Heartbeat(**who, epoch=1, digest=n),  # type: ignore[arg-type]
        Report(**who, incarnation=n, epoch=1, revision=1, holding=Holding()),  # type: ignore[arg-type]
        Leave(group=G, member=MemberId(f"t{n}"), incarnation=1),
    ]


def names(n: int) -> Batch:
    """Tasks with new names: each batch needs a new dictionary, and held tasks disappear."""
    given = config(2)
    units = tuple(Subtopology(f"unit-{n}-{each}-{'x' * 60}", 2) for each in range(8))
    return [replace(given, tasks=units), *([join(0)] if n == 0 else [])]


def deletions(n: int) -> Batch:
    """The group is configured, used and deleted."""
    return [[config(3)], [join(n)], [leave(n)], [GroupDeleted(group=G)]][n % 4]  # type: ignore[list-item]


def drained(n: int) -> Batch:
    """A member is drained and leaves; its drain stays stored."""
    if n % 3 == 0:
        return [join(n // 3)]
    if n % 3 == 1:
        return [Drain(group=G, member=MemberId(f"m{n // 3}"))]
    return [leave(n // 3)]


def in_vain(n: int) -> Batch:
    """Drains and lags that are refused."""
    unknown = (Lag(Task(f"u{n}", 0), n),)
    return [
        Drain(group=G, member=MemberId(f"d{n}")),
        LagReport(group=G, member=MemberId("m0"), lags=unknown),
    ]


def beats(n: int) -> Batch:
    """Heartbeats of two members, of which one always has a wrong digest."""
    return [Heartbeat(group=G, member=MemberId(f"m{m}"), epoch=2, digest=n * m) for m in (0, 1)]


def apart(n: int) -> Batch:
    """Ticks with the heartbeats of two members, one of a wrong digest, and of a new stranger."""
    if n == 0:
        return [join(0, apart=True), join(1, apart=True)]
    heard = tuple(Heard(MemberId(name), 0, 2, n) for name in ("m0", "m1", f"s{n}"))
    return [Tick(group=G, cover=Cover((n - 1) * 5_000, n * 5_000, heard))]


STORIES: dict[str, tuple[Callable[[int], Batch], int, bool]] = {
    "generations": (generations, 1_000, True),
    "members that die": (deaths, 9_000, True),
    "members that are fenced": (deaths, 9_000, False),
    "strangers": (strangers, 1_000, True),
    "names of tasks": (names, 1_000, True),
    "names of tasks, no member answers": (names, 1_000, False),
    "deletions": (deletions, 1_000, True),
    "drains": (drained, 1_000, True),
    "refused events": (in_vain, 1_000, True),
    "heartbeats": (beats, 5_000, True),
    "heartbeats apart": (apart, 5_000, True),
}
"""Name → events of batch n, ms since the batch before, whether members obey."""


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small limit that a story reaches, and no dead letters left over from another test."""
    monkeypatch.setattr(kept_drains, "KEPT_MAX", 20)
    letter_limits._unreported.clear()
    yield
    letter_limits._unreported.clear()


@pytest.mark.parametrize("story", STORIES)
def test_what_is_kept_does_not_grow(story: str) -> None:
    """Bytes in the store and keys of compacted topics do not grow in the second half."""
    told, after_ms, obey = STORIES[story]
    life = Long()
    life.take([config(4, {"rebalance.timeout.ms": 20_000}), join(0), join(1)])
    for n in range(BATCHES):
        life.take(told(n) or [Tick(group=G)], after_ms, obey=obey)
    quarter, half = BATCHES // 4, BATCHES // 2
    assert max(life.stored[half:]) <= max(life.stored[quarter:half]) + NUMBERS_BYTES
    assert max(life.alive[half:]) <= max(life.alive[quarter:half])


def test_groups_without_a_config_leave_nothing() -> None:
    """Twenty unconfigured groups expire and leave nothing in the store, the cache or the topics."""
    operator = Operator()
    lanes = [lane_of("muster", f"g{n}".encode()) for n in range(20)]
    gone = 0
    for n, lane in enumerate(lanes):
        group = GroupId(f"g{n}")
        operator.processor.init(operator.tester.handle)  # a new batch accepts new groups
        operator.feed(1_000 + n, Join(group=group, member=MemberId("m"), incarnation=1))
        assert operator.stored(lane) != (None, None)
        for at_ms in range(2_000, 120_000, 9_000):
            told = operator.feed(at_ms + n, Tick(group=group))
            gone += len(of_kind(told, GroupGone))
        assert operator.stored(lane) == (None, None)
    newest = {(row.topic, row.key): row.value for row in operator.written}
    assert (gone, set(newest.values())) == (20, {None})
    assert not processor._cache


def test_signature_gate_are_forgotten_when_they_are_stale() -> None:
    """At one signed event a second, only signatures of the window and the slack are stored."""
    kept, window_ms, most = b"", 60_000, 0
    for second in range(2_000):
        counted, now_ms = ReplayGuard(kept), second * 1_000
        assert counted.is_first(second.to_bytes(32, "big"), now_ms + window_ms)
        kept = counted.to_bytes(now_ms)
        most = max(most, len(kept))
    assert most <= 16 * ((window_ms + SLACK_MS) // 1_000 + 1)


def test_signature_gate_of_a_flood_are_so_many() -> None:
    """A flood of signatures leaves `KEPT_MAX` of them stored."""
    counted = ReplayGuard()
    for number in range(KEPT_MAX + 1_000):
        counted.is_first(number.to_bytes(32, "big"), 10**12)
    assert len(counted.to_bytes(0)) == 16 * KEPT_MAX


def test_a_process_remembers_groups_up_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 groups the cache keeps the newest 10, its limit."""
    monkeypatch.setattr(processor, "CACHE_GROUPS_MAX", 10)
    monkeypatch.setattr(work_limits, "NEW_GROUPS_MAX", 40)
    operator = Operator()
    for n in range(40):
        joins = Join(group=GroupId(f"g{n}"), member=MemberId("m"), incarnation=1)
        operator.feed(1_000 + n, joins)
    assert list(processor._cache) == [lane_of("muster", f"g{n}".encode()) for n in range(30, 40)]
