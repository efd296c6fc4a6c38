"""Members by the thousand in one thread: real sessions over one producer and one consumer.

A `Crowd` has the connections and the loop; a `Crew` is the members of one of its groups. Each
member is a `muster.worker.session.Session`, so it writes what a worker writes, when and where a
worker writes it; tasks start and stop at once. The members share what each worker has for itself:
the connections, and the check that they have read their records (one request to the broker for all
of them).
"""

from __future__ import annotations

import heapq
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import astuple
from functools import partial

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from ownership import Counts, Ownership, place_of

from muster.boottime import boottime_ms
from muster.kafka.client_settings import ClientSettings
from muster.kafka.lasting_producer import produce
from muster.kafka.reader import arrived, offsets_of
from muster.protocol.codec import decode_record, encode
from muster.protocol.errors import UnknownDictionary
from muster.protocol.events import Join
from muster.protocol.ids import GroupId, MemberId, Role
from muster.protocol.keys import key_of
from muster.protocol.records import MemberAssignment, MemberGone
from muster.protocol.split_records import Joiner, Whole
from muster.protocol.topics import DEFAULT_PREFIX, TopicKind, topic_name
from muster.worker.groups_topic import Dictionaries, find_names
from muster.worker.session import Session
from muster.worker.session_messages import (
    Acknowledged,
    AllStopped,
    Begin,
    CaughtUp,
    ClockMoved,
    End,
    Failed,
    Input,
    LeaveAsked,
    Lose,
    Read,
    Ready,
    Release,
    Released,
    Send,
    Take,
)

SETTLE_TIMEOUT_S = 300.0
PROOF_S = 2.5
"""Seconds between requests to the broker for the end offsets of the partitions."""
READ_MAX = 2_000
"""Most records read at a time."""
WAIT_S = 0.005
"""Longest wait for a record, so how late a heartbeat may be."""


class Machine:
    """A member: its session and its running tasks."""

    __slots__ = ("busy_until_ms", "crew", "key", "name", "proved_ms", "session", "wakes_ms")

    def __init__(self, crew: Crew, name: str, seed: int, instance_id: str | None) -> None:
        join = Join(
            group=GroupId(crew.group), member=MemberId(name), incarnation=0, instance_id=instance_id
        )
        self.crew = crew
        self.name = name
        self.key = key_of(crew.group, name)
        self.session = Session(join, seed)
        self.wakes_ms: int | None = None
        self.proved_ms = 0
        self.busy_until_ms = 0  # its process does not look at the clock before


class Crew:
    """The members of one group.

    `losses` are sessions that lost their tasks involuntarily, `records` those read that are
    addressed to members, `names` the group's dictionaries.
    """

    def __init__(self, crowd: Crowd, group: str, tasks: int, *, static: bool = True) -> None:
        self.group = group
        self.owned = Ownership(tasks)
        self.losses = self.records = 0
        self.names: Dictionaries = {}
        self._crowd = crowd
        self._static = static
        self._machines: dict[str, Machine] = {}
        self._alive: set[str] = set()

    def come(self, names: Iterable[str]) -> None:
        """Start these members; they join. In a static crew the place is the instance id."""
        for name in names:
            instance = place_of(name) if self._static else None
            machine = Machine(self, name, self._crowd.rng.getrandbits(62), instance)
            self._machines[name] = machine
            self._alive.add(name)
            self.owned.come(name)
            self._crowd.add(machine)

    def go(self, names: Iterable[str], *, temporary: bool = False) -> None:
        """Ask members to leave."""
        for name in names:
            self._alive.discard(name)
            self._crowd.give(self._machines[name], LeaveAsked(temporary))

    def drop(self, names: Iterable[str]) -> None:
        """Kill members: they write nothing more, and their tasks stop."""
        for name in list(names):
            self._alive.discard(name)
            self.remove(self._machines[name])

    @property
    def alive(self) -> list[str]:
        """Members that run and were not asked to leave, in order of their start."""
        return [name for name in self._machines if name in self._alive]

    def is_settled(self) -> bool:
        """Whether every task has an owner, every member its share, and all leavers have left."""
        return self.is_gone() and self.owned.is_shared_out(len(self._alive))

    def is_gone(self) -> bool:
        """Whether all members that were asked to leave have left."""
        return len(self._machines) == len(self._alive)

    # ---- what the loop does with a member

    def remove(self, machine: Machine) -> None:
        """A member's process has ended."""
        self.owned.go(machine.name)
        del self._machines[machine.name]
        self._crowd.remove(machine)


class Crowd:
    """The connections and the loop of all members; a context manager."""

    def __init__(self, clients: ClientSettings, prefix: str = DEFAULT_PREFIX) -> None:
        self.rng = random.Random(prefix)
        self._clients = clients
        self._topics = {kind: topic_name(kind, prefix) for kind in TopicKind}
        self._joiner = Joiner()
        self._crews: list[Crew] = []
        self._machines: dict[bytes, Machine] = {}
        self._timers: list[tuple[int, int, Machine]] = []
        self._inputs: deque[tuple[Machine, Input]] = deque()
        self._timer_number = 0
        self._asked_s = 0.0
        self._ends: tuple[int, dict[int, int]] | None = None
        self._proved_ms = 0

    def __enter__(self) -> Crowd:
        settings = {"linger.ms": 1, "queue.buffering.max.messages": 1_000_000}
        self._producer = Producer(self._clients.producer(settings))
        self._reader_config = self._clients.librdkafka(
            {
                "group.id": "muster-bench",
                "enable.auto.commit": False,
                "enable.partition.eof": False,
            }
        )
        self._consumer = Consumer(self._reader_config)
        # A broker answers a connection's requests in order, and those of the reader wait.
        self._asker = Consumer(self._reader_config)
        topic = self._topics[TopicKind.ASSIGNMENTS]
        self._read_to = self._watermarks()
        self._consumer.assign([TopicPartition(topic, p, e) for p, e in self._read_to.items()])
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.flush(5)
        del self._producer  # otherwise it would reconnect to a stopped broker
        self._consumer.close()
        self._asker.close()

    def crew(self, group: str, tasks: int, *, static: bool = True) -> Crew:
        """A group without members; in a `static` one they have instance ids."""
        self._crews.append(Crew(self, group, tasks, static=static))
        return self._crews[-1]

    def counts(self) -> Counts:
        """What has happened to the tasks of all groups."""
        each = [astuple(crew.owned.counts()) for crew in self._crews]
        return Counts(*map(sum, zip(*each, strict=True)))

    @property
    def records(self) -> int:
        """Records read that are addressed to members."""
        return sum(crew.records for crew in self._crews)

    @property
    def losses(self) -> int:
        """Sessions that lost their tasks involuntarily."""
        return sum(crew.losses for crew in self._crews)

    # ---- the loop

    def run_for(self, seconds: float) -> None:
        """Run the loop for some seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.turn()

    def settle(self, *crews: Crew) -> None:
        """Run until these groups, or all that have members, have settled.

        Raises:
            TimeoutError: the members did not settle in time.
        """
        wanted = crews or tuple(crew for crew in self._crews if crew.alive)
        self.run_until(lambda: all(crew.is_settled() for crew in wanted), "settled")

    def await_gone(self) -> None:
        """Run until all members that were asked to leave have left."""
        self.run_until(lambda: all(crew.is_gone() for crew in self._crews), "gone")

    def scatter(self, interval_s: float) -> None:
        """Spread the heartbeats of members that joined together, as those of an old fleet are.

        Each process is late once, by up to `interval_s`; sessions then keep their rhythm.
        """
        now_ms = boottime_ms()
        for machine in self._machines.values():
            machine.busy_until_ms = now_ms + int(self.rng.uniform(1, 2) * interval_s * 1000)

    def run_until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = SETTLE_TIMEOUT_S
    ) -> None:
        """Run the loop until a condition holds.

        Raises:
            TimeoutError: it did not hold in time.
        """
        until = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > until:
                groups = [crew for crew in self._crews if not crew.is_settled()][:3]
                sizes = [(crew.group, crew.owned.sizes()) for crew in groups]
                story = "; ".join(f"{name} {held[:5]} … {held[-5:]}" for name, held in sizes)
                raise TimeoutError(f"not {what}: members hold {story}")
            self.turn()

    def turn(self) -> None:
        """Process acknowledgements, records and due timers; wait a moment if there are none."""
        self._producer.poll(0)
        if not self._inputs:
            for message in arrived(self._consumer, WAIT_S, READ_MAX):
                self._read(message)
        self._prove()
        now_ms = boottime_ms()
        while self._timers and self._timers[0][0] <= now_ms:
            at_ms, _, machine = heapq.heappop(self._timers)
            if machine.wakes_ms == at_ms:
                machine.wakes_ms = None
                if now_ms < machine.busy_until_ms:
                    self._wake(machine)
                    continue
                self._tell_proof(machine)
                self.give(machine, ClockMoved())
        while self._inputs:
            self.give(*self._inputs.popleft())

    def add(self, machine: Machine) -> None:
        """A member's process starts."""
        self._machines[machine.key] = machine
        self.give(machine, Begin(apart=True))

    def remove(self, machine: Machine) -> None:
        """A member's process has ended."""
        self._machines.pop(machine.key, None)

    def give(self, machine: Machine, given: Input) -> None:
        """Give an input to a member's session, and do what it asks for."""
        if self._machines.get(machine.key) is not machine:
            return  # its process has ended
        for action in machine.session.step(given, boottime_ms()):
            match action:
                case Send():
                    self._send(machine, action)
                case Take(role, tasks):
                    if role is Role.ACTIVE:
                        machine.crew.owned.start(machine.name, tasks)
                    else:
                        self._inputs.append((machine, Ready(tasks)))
                case Release(role, tasks):
                    if role is Role.ACTIVE:
                        machine.crew.owned.stop(machine.name, tasks)
                    self._inputs.append((machine, Released(role, tasks)))
                case Lose():
                    machine.crew.losses += 1
                    machine.crew.owned.stop(machine.name, machine.crew.owned.held(machine.name))
                    self._inputs.append((machine, AllStopped()))
                case End():
                    machine.crew.remove(machine)
                case _:
                    pass
        self._wake(machine)

    def _wake(self, machine: Machine) -> None:
        at_ms = machine.session.deadline_ms
        if at_ms is None:
            return
        at_ms = max(at_ms, machine.busy_until_ms)
        if machine.wakes_ms is None or at_ms < machine.wakes_ms:
            machine.wakes_ms = at_ms
            self._timer_number += 1
            heapq.heappush(self._timers, (at_ms, self._timer_number, machine))

    # ---- Kafka

    def _send(self, machine: Machine, sent: Send) -> None:
        encoded = encode(sent.event)
        done = partial(self._delivered, machine, sent)
        while True:
            try:
                produce(self._producer, self._topics[sent.kind], encoded, done)
                return
            except BufferError:
                self._producer.poll(0.05)

    def _delivered(
        self, machine: Machine, sent: Send, error: KafkaError | None, _: Message
    ) -> None:
        given = Acknowledged(sent) if error is None else Failed(sent)
        self._inputs.append((machine, given))

    def _read(self, message: Message) -> None:
        if message.error() is not None:
            return
        self._read_to[message.partition()] = message.offset() + 1
        whole = self._joiner.feed(message.key(), message.value())
        machine = None if whole is None else self._machines.get(whole.key)
        if whole is None or machine is None:
            return
        machine.crew.records += 1
        record = self._decoded(machine.crew, whole)
        if isinstance(record, MemberAssignment | MemberGone):
            self._inputs.append((machine, Read(record)))

    def _decoded(self, crew: Crew, whole: Whole) -> object:
        try:
            return decode_record(TopicKind.ASSIGNMENTS, *whole, dictionaries=crew.names)
        except UnknownDictionary as unknown:
            where = (self._topics[TopicKind.GROUPS], crew.group, unknown.version)
            crew.names = find_names(self._reader_config, *where)
            return decode_record(TopicKind.ASSIGNMENTS, *whole, dictionaries=crew.names)

    def _watermarks(self) -> dict[int, int]:
        ends = offsets_of(self._asker, [self._topics[TopicKind.ASSIGNMENTS]], 30)
        return {partition: end for (_, partition), (_, end) in ends.items()}

    def _prove(self) -> None:
        """Find out up to which time all records have been read."""
        if self._ends is None and time.monotonic() - self._asked_s >= PROOF_S:
            self._asked_s = time.monotonic()
            self._ends = (boottime_ms(), self._watermarks())
        if self._ends is None:
            return
        at_ms, ends = self._ends
        if all(self._read_to[p] >= end for p, end in ends.items()):
            self._ends = None
            self._proved_ms = at_ms

    def _tell_proof(self, machine: Machine) -> None:
        if machine.proved_ms < self._proved_ms:
            machine.proved_ms = self._proved_ms
            self.give(machine, CaughtUp(self._proved_ms))
