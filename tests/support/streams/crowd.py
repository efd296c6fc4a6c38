"""A fleet of real sessions and the real operator: no Kafka, no Spark, no process, simulated time.

All members are of one group. A turn is a batch of the query: what the members have written since
the batch before goes through the operator, and its records reach them when the batch has ended.
How long a batch takes is assumed, because nothing here may depend on how fast the machine is.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from pyspark.sql.types import Row
from support.streams.operator import INPUT, LANE, G, Operator
from support.streams.packed_rows import pack

from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Event, GroupConfig, Join, Origin, Tick
from muster.protocol.ids import MemberId, Role, Task
from muster.protocol.records import Dictionary, MemberAssignment, MemberGone, Rejected, WakeUp
from muster.protocol.taskset import UnitRef
from muster.protocol.topics import TopicKind, topic_name
from muster.streams import processor
from muster.worker.session import Session
from muster.worker.session_messages import (
    Acknowledged,
    AllStopped,
    Begin,
    CaughtUp,
    ClockMoved,
    End,
    Input,
    Lose,
    Read,
    Ready,
    Release,
    Released,
    Send,
    Take,
)

BATCH_MS = 150
"""What a batch takes without rows, and..."""
ROWS_PER_MS = 4
"""...how many rows it takes in a millisecond."""


class Crowd:
    """The members of one group, and their coordinator.

    Attributes:
        now_ms: the time.
        batches: batches that the query has processed.
        refused: dead letters by reason.
        overlaps: how often a member started a task that another one still ran.
    """

    def __init__(self) -> None:
        self.operator = Operator()
        self.now_ms = 1_000_000
        self.batches = 0
        self.refused: Counter[str] = Counter()
        self.overlaps = 0
        self._sessions: dict[str, Session] = {}
        self._runs: dict[Task, str] = {}
        self._inputs: deque[tuple[str, Input]] = deque()
        self._timers: list[tuple[int, str]] = []
        self._rows: list[tuple[TopicKind, Event, int]] = []
        self._offsets: Counter[TopicKind] = Counter()
        self._wake_up: WakeUp | None = None
        self._names: dict[int, Sequence[UnitRef]] = {}

    def configure(self, config: GroupConfig) -> None:
        """An operator writes the config."""
        self._rows.append((TopicKind.CONFIG, config, self.now_ms))

    def come(self, names: Iterable[str]) -> None:
        """The processes of these members start."""
        for number, name in enumerate(names, len(self._sessions)):
            join = Join(group=G, member=MemberId(name), incarnation=0)
            self._sessions[name] = Session(join, number * 7_919 + self.now_ms)
            self._inputs.append((name, Begin()))

    def die(self) -> None:
        """All members' processes are gone; nothing that they wrote is lost."""
        self._sessions.clear()
        self._inputs.clear()
        self._runs.clear()

    def pass_by(self, length_ms: int) -> None:
        """Time passes in which no batch is processed."""
        self.now_ms += length_ms

    def settle(self, is_settled: Callable[[], bool], batches_max: int) -> int:
        """Process batches until it is so; returns how many it took.

        Raises:
            AssertionError: it is not so after `batches_max` batches.
        """
        before = self.batches
        while not is_settled():
            assert self.batches - before < batches_max, self.story()
            self.turn()
        return self.batches - before

    def are_members(self) -> bool:
        """Whether the group's members are these processes and no others."""
        kept = processor._cache.get(LANE)
        return kept is not None and kept.group.roster.by_id.keys() == self._sessions.keys()

    def loads(self) -> Counter[int]:
        """How many members run so many tasks."""
        each = Counter(self._runs.values())
        return Counter(each.get(name, 0) for name in self._sessions)

    def story(self) -> str:
        """What there is to say of a fleet that does not settle."""
        return (
            f"after {self.batches} batches members run {sorted(self.loads().items())} tasks; "
            f"refused: {dict(self.refused)}"
        )

    def turn(self) -> None:
        """Process one batch, and let the members act until it has ended."""
        woken = self._wake_up
        if woken is not None and woken.at_ms is not None and woken.at_ms <= self.now_ms:
            tick = Tick(group=G, published=woken.published)
            self._rows.append((TopicKind.MEMBERSHIP, tick, self.now_ms))
            self._wake_up = None
        rows, self._rows = self._rows, []
        answers = self._process(rows)
        self._act_until(self.now_ms + BATCH_MS + len(rows) // ROWS_PER_MS)
        for member, record in answers:
            if member in self._sessions:
                self._inputs.append((member, Read(record)))
        self._act()

    def _process(
        self, rows: list[tuple[TopicKind, Event, int]]
    ) -> list[tuple[str, MemberAssignment | MemberGone]]:
        self.batches += 1
        entries: list[Row] = []
        for kind, event, at_ms in rows:
            topic = topic_name(kind, "muster")
            origin = Origin(topic, 0, self._offsets[kind], at_ms)
            self._offsets[kind] += 1
            entry = pack(origin, codec.encode(event).value, INPUT)
            entries.append(Row(lane=LANE, entry=entry))
        answers: list[tuple[str, MemberAssignment | MemberGone]] = []
        self.operator.begin_batch()
        written = self.operator.tester.test(LANE, entries) if entries else []
        for row in written:
            kind = TopicKind(row.topic.rpartition(".")[2])
            record = codec.decode_record(kind, row.key, row.value, dictionaries=self._names)
            match record:
                case MemberAssignment() | MemberGone():
                    answers.append((record.member, record))
                case Dictionary():
                    self._names[record.version] = record.units
                case WakeUp():
                    self._wake_up = record
                case Rejected():
                    self._count(record)
                case _:
                    pass
        return answers

    def _count(self, letter: Rejected) -> None:
        if letter.reason == DeadLetter.LEFT_OUT:
            *_, reasons = letter.message.partition("left out: ")
            for each in reasons.split(", "):
                reason, count = each.split(" ")
                self.refused[reason] += int(count)
            return
        self.refused[letter.reason] += 1

    def _act_until(self, until_ms: int) -> None:
        self._act()
        while self._timers and self._timers[0][0] <= until_ms:
            at_ms, name = heapq.heappop(self._timers)
            session = self._sessions.get(name)
            if session is None or session.deadline_ms is None or session.deadline_ms > at_ms:
                continue
            self.now_ms = max(self.now_ms, at_ms)
            self._inputs += [(name, CaughtUp(self.now_ms)), (name, ClockMoved())]
            self._act()
        self.now_ms = until_ms

    def _act(self) -> None:
        while self._inputs:
            name, given = self._inputs.popleft()
            session = self._sessions.get(name)
            if session is None:
                continue
            for action in session.step(given, self.now_ms):
                self._do(name, action)
            if session.deadline_ms is not None:
                heapq.heappush(self._timers, (session.deadline_ms, name))

    def _do(self, name: str, action: object) -> None:
        match action:
            case Send():
                self._rows.append((action.kind, action.event, self.now_ms))
                self._inputs.append((name, Acknowledged(action)))
            case Take(Role.ACTIVE, tasks):
                for task in tasks:
                    self.overlaps += self._runs.get(task, name) != name
                    self._runs[task] = name
            case Take(_, tasks):
                self._inputs.append((name, Ready(tasks)))
            case Release(role, tasks):
                if role is Role.ACTIVE:
                    self._stop(name, tasks)
                self._inputs.append((name, Released(role, tasks)))
            case Lose():
                self._stop(name, [task for task, by in self._runs.items() if by == name])
                self._inputs.append((name, AllStopped()))
            case End():
                del self._sessions[name]
            case _:
                pass

    def _stop(self, name: str, tasks: Iterable[Task]) -> None:
        for task in tasks:
            if self._runs.get(task) == name:
                del self._runs[task]
