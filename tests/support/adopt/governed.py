"""A governed group in simulated time: Kafka's coordinator, consumers, a governor, muster's log.

The governor is the real one, muster's coordinator the real `advance`; between them is a log whose
records take some milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from support.adopt.classic_group import Follower, Group, Time

from muster.adopt.governor import Governor
from muster.adopt.join_metadata import Kind, is_governor
from muster.adopt.model import (
    AssignableUnits,
    Configured,
    GovernorInput,
    GovernorPresence,
    Options,
    Round,
    Seat,
    State,
    Stop,
)
from muster.kafka.groups import SEAT_PREFIX
from muster.kafka.writer import Place
from muster.protocol.events import Drain, Event, GroupConfig, Origin, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, MemberAssignment, MemberGone, Record
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology, TaskTable
from muster.state.group import Group as MusterGroup
from muster.state.machine import advance
from muster.worker.session_messages import Acknowledged, Send

GROUP = GroupId("orders-group")
STEP_MS = 20
BATCH_MS = 100
SETTINGS = {"rebalance.timeout.ms": "300000", "session.timeout.ms": "45000"}


class Coordinator:
    """muster's log and coordinator of one group.

    Attributes:
        runs: whether the coordinator reads its log; without it, events only pile up.
        snapshot: the newest it has published.
        events: all that were written to the log.
    """

    def __init__(self, time: Time, config: GroupConfig) -> None:
        self.runs = True
        self.snapshot: GroupSnapshot | None = None
        self.records: list[Record] = []
        self._time = time
        self.events: list[Event] = []
        self._read = 0
        self._group = MusterGroup.new(GROUP)
        self._wake_ms: int | None = None
        self._readers: list[GovernorProcess] = []
        self.write(config)
        self._batch()

    def follow(self, reader: GovernorProcess) -> None:
        """Hand every record to a governor, the newest snapshot first."""
        self._readers.append(reader)
        if self.snapshot is not None:
            reader.post(self.snapshot)

    def write(self, event: Event) -> Place:
        """Append an event to the log."""
        topic = "muster.config" if isinstance(event, GroupConfig) else "muster.membership"
        place = Place(topic, 0, len(self.events))
        self.events.append(replace(event, origin=Origin(topic, 0, place.offset, self._time.now_ms)))
        return place

    def _batch(self) -> None:
        self._time.after(BATCH_MS, self._batch)
        if not self.runs:
            return
        if self._wake_ms is not None and self._time.now_ms >= self._wake_ms:
            self.write(Tick(group=GROUP))
        events, self._read = self.events[self._read :], len(self.events)
        if not events:
            return
        step = advance(self._group, events, coordinator_epoch=1)
        self._group, self._wake_ms = step.group, step.wake_at_ms
        for record in step.records:
            self.records.append(record)
            if isinstance(record, GroupSnapshot):
                self.snapshot = record
            if isinstance(record, GroupSnapshot | MemberAssignment | MemberGone):
                for reader in self._readers:
                    reader.post(record)


@dataclass
class Line:
    """A governor's connection to Kafka's coordinator.

    Attributes:
        node: the broker at its other end.
        silent: it has died without a message: nothing passes, and neither side learns it.
        requests: those without an answer, with whom to tell.
    """

    node: int
    silent: bool = False
    requests: list[tuple] = field(default_factory=list)


class GovernorProcess:
    """A governor's process: it may be killed, or frozen for a while.

    Attributes:
        rounds: the rebalances that it has answered.
        written: the configurations that it has tried to write.
        lacks_right: whether they are refused.
        line: its connection to Kafka's coordinator.
        looks: how often it has asked who the members are, over another connection.
        dropped: how many connections it has given up.
    """

    def __init__(self, world: GovernedWorld, name: str, seat: Seat) -> None:
        self.name, self.alive, self.frozen = name, True, False
        self.rounds: list[Round] = []
        self.written: list[GroupConfig] = []
        self.lacks_right = False
        self._world = world
        self._kept: list[GovernorInput] = []
        self.line = Line(world.coordinator)
        self.looks = self.dropped = 0
        options = Options(
            group=GROUP,
            kind=Kind.CONSUMER,
            config=world.config,
            configured=world.configured,
            instance_id=name,
            seat=seat,
            weights=world.weights,
        )
        self.governor = Governor(options, self, self, self, self.post, lambda: world.time.now_ms)
        world.log.follow(self)
        self.governor.begin()
        self._tick()

    def post(self, governor_input: GovernorInput) -> None:
        """Something happens, a few milliseconds later."""
        self._world.time.after(5, lambda: self._take(governor_input))

    def _take(self, governor_input: GovernorInput) -> None:
        if self.frozen:
            self._kept.append(governor_input)
        elif self.alive and self.governor.state is not State.ENDED:
            self._give(governor_input)

    def _give(self, governor_input: GovernorInput | None) -> None:
        self.governor.take(governor_input)
        newest = self.governor.round
        if newest is not None and newest not in self.rounds[-1:]:
            self.rounds.append(newest)

    def thaw(self) -> None:
        """Run again: what happened meanwhile happens now."""
        self.frozen, kept, self._kept = False, self._kept, []
        for governor_input in kept:
            self._take(governor_input)

    def _tick(self) -> None:
        if not self.alive or self.governor.state is State.ENDED:
            return
        self._world.time.after(STEP_MS, self._tick)
        due = self.governor.due_ms()
        if not self.frozen and due is not None and due <= self._world.time.now_ms:
            self._give(None)

    # The ports of the governor.

    def ask(self, request, done, timeout_ms: int) -> None:
        """To Kafka's coordinator, which reads a request after it has answered the one before."""
        line, asked = self.line, (request, done)
        line.requests.append(asked)
        self._world.time.after(timeout_ms, lambda: self._give_up(line, asked))
        if not line.silent and len(line.requests) == 1:
            self._ask_next(line)

    def _give_up(self, line: Line, asked: tuple) -> None:
        """A request on a silent line has no answer in its time; the next goes over a new line."""
        if line.silent and any(each is asked for each in line.requests):
            line.requests = [each for each in line.requests if each is not asked]
            if self.line is line:
                self.lost()
            asked[1](OSError("no answer"))

    def _ask_next(self, line: Line) -> None:
        request, done = line.requests[0]

        def answered(answer) -> None:
            if line.silent:
                return
            line.requests.pop(0)
            if line.requests:
                self._ask_next(line)
            done(answer)

        self._world.group.ask(request, answered)

    def ask_aside(self, request, done, timeout_ms: int) -> None:
        """To Kafka's coordinator, over a connection of its own."""
        self.looks += "DescribeGroups" in type(request).__name__
        self._world.group.ask(request, done)

    def has_moved(self) -> bool:
        """Whether the connection leads to a broker that is not the coordinator any more."""
        return self.line.node != self._world.coordinator

    def lost(self) -> None:
        """Find the coordinator again."""
        self.line = Line(self._world.coordinator)

    def drop(self) -> None:
        """Give the connection up: who waits is told so."""
        line, self.dropped = self.line, self.dropped + 1
        waiting, line.requests, line.silent = line.requests, [], True
        self.lost()
        for _, done in waiting:
            done(OSError("closed"))

    def send(self, group: str, sends: Sequence[Send]) -> None:
        """Write events, and acknowledge them."""
        for sent in sends:
            self._world.log.write(sent.event)
            self.post(Acknowledged(sent))

    def configure(self, config: GroupConfig) -> None:
        """Write a configuration, unless the login lacks the right."""
        self.written.append(config)
        refused = Configured(None, "no right")
        self.post(refused if self.lacks_right else Configured(self._world.log.write(config)))

    def watch_partitions(self, topics: Sequence[str]) -> None:
        """Tell what there is, unless Kafka does not answer."""
        if not self._world.blind:
            units = (unit for unit in self._world.units() if unit.name in topics)
            self.post(AssignableUnits(tuple(units)))

    def look_for_governor(self) -> None:
        """Look for other governors."""
        there = (m.instance_id for m in self._world.group.members.values())
        self.post(GovernorPresence(any(is_governor(each) and each != self.name for each in there)))


class GovernedWorld:
    """A group with everything around it.

    Attributes:
        topics: name → partitions.
        followers: all that ever were.
        governors: all that ever were.
        blind: whether Kafka does not say which topics there are.
        weights: topic → load of each of its partitions, for governors that start later.
        coordinator: the broker that coordinates the group.
    """

    def __init__(self, topics: dict[str, int], assignor: str = "sticky") -> None:
        self.time = Time()
        self.topics, self.blind = topics, False
        self.weights: dict[str, float] = {}
        self.group, self.coordinator = Group(self.time), 1
        self.followers: list[Follower] = []
        self.governors: list[GovernorProcess] = []
        settings = parse_settings(SETTINGS, assignor)
        self.config = GroupConfig(group=GROUP, assignor=assignor, settings=settings, tasks=())
        self.configured = Place("muster.config", 0, 0)
        self.log = Coordinator(self.time, self.config)
        self._tick()

    def _tick(self) -> None:
        self.group.tick()
        self.time.after(STEP_MS, self._tick)

    def units(self) -> tuple[Subtopology, ...]:
        """What Kafka says the topics are."""
        return tuple(Subtopology(name, size) for name, size in sorted(self.topics.items()))

    def adopt(self, name: str = f"{SEAT_PREFIX}-1", seat: Seat = Seat.TAKE) -> GovernorProcess:
        """Start a governor."""
        self.governors.append(GovernorProcess(self, name, seat))
        return self.governors[-1]

    def follower(self, name: str, **how) -> Follower:
        """Start a consumer."""
        return Follower(self.group, name, self.topics, world=self.followers, **how)

    def drain(self, follower: Follower, *, on: bool = True) -> None:
        """As `muster drain` does."""
        name = follower.name if follower._instance else follower._id
        self.log.write(Drain(group=GROUP, member=MemberId(name), on=on))

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions; every process sees them."""
        self.topics[topic] = partitions
        for governor in self.governors:
            governor.post(AssignableUnits(self.units()))

    def release(self, governor: GovernorProcess) -> None:
        """As SIGTERM does."""
        governor.post(Stop())

    def shares(self) -> dict[str, int]:
        """Partitions of each live consumer, by name."""
        return {each.name: len(each.owned) for each in self.followers if each.alive}

    def all_owned(self) -> bool:
        """Whether every partition has exactly one live owner."""
        owned = [task for each in self.followers if each.alive for task in each.owned]
        return len(owned) == len(set(owned)) == sum(self.topics.values())

    def books_agree(self) -> bool:
        """Whether muster's record of the group says what Kafka's group does."""
        snapshot = self.log.snapshot
        if snapshot is None:
            return False
        table = TaskTable(snapshot.tasks)
        slots = {m.slot: m.id for m in snapshot.members}
        books = {str(table.task(i)): slots.get(int(s)) for i, s in enumerate(snapshot.holder)}
        there = {
            str(task): each.name if each._instance else each._id
            for each in self.followers
            if each.alive
            for task in each.owned
        }
        return books == there
