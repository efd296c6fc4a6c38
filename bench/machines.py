"""Thousands of members in one thread: real sessions over one producer and one consumer.

A `Crew` is the members of one group. Each member is a `muster.worker.session.Session`, so it writes
what a worker writes, when a worker writes it; tasks start and stop at once. The members share what
each worker has for itself: the connections, and the check that they have read their records (one
request to the broker for all of them).
"""

from __future__ import annotations

import heapq
import random
import time
from collections import deque
from collections.abc import Iterable
from functools import partial

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from muster.kafka.settings import ClientSettings
from muster.protocol.codec import decode_record, encode
from muster.protocol.errors import UnknownDictionary
from muster.protocol.events import Join, LagReport
from muster.protocol.ids import GroupId, MemberId, Role, Task
from muster.protocol.keys import key_of
from muster.protocol.parts import Joiner, Whole
from muster.protocol.records import MemberAssignment, MemberGone
from muster.protocol.topics import DEFAULT_PREFIX, TopicKind, topic_name
from muster.worker.clock import boottime_ms
from muster.worker.dictionary import Dictionaries, find_names
from muster.worker.messages import (
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
from muster.worker.session import Session

SETTLE_TIMEOUT_S = 300.0
PROOF_S = 5.0
"""Seconds between requests to the broker for the end offsets of the partitions."""
READ_MAX = 2_000
"""Most records read at a time."""


class Machine:
    """A member: its session and its running tasks."""

    def __init__(self, group: str, name: str, seed: int) -> None:
        join = Join(
            group=GroupId(group), member=MemberId(name), incarnation=0, instance_id=f"i-{name}"
        )
        self.name = name
        self.key = key_of(group, name)
        self.session = Session(join, seed)
        self.held: set[Task] = set()
        self.wakes_ms: int | None = None


class Crew:
    """The members of a group; a context manager.

    Attributes:
        starts: actives that members began to run.
        moves: starts of actives whose last owner was another member.
        overlaps: starts of actives that another member still ran.
        losses: sessions that lost their tasks involuntarily.
        records: records read that are addressed to members.
    """

    def __init__(
        self, clients: ClientSettings, group: str, tasks: int, prefix: str = DEFAULT_PREFIX
    ) -> None:
        self.starts = self.moves = self.overlaps = self.losses = self.records = 0
        self._clients = clients
        self._group = group
        self._tasks = tasks
        self._topics = {kind: topic_name(kind, prefix) for kind in TopicKind}
        self._names: Dictionaries = {}
        self._joiner = Joiner()
        self._machines: dict[bytes, Machine] = {}
        self._alive: set[str] = set()
        self._owner: dict[Task, str] = {}
        self._last: dict[Task, str] = {}
        self._timers: list[tuple[int, int, Machine]] = []
        self._inputs: deque[tuple[Machine, Input]] = deque()
        self._chance = random.Random(group)
        self._timer_number = 0
        self._proved_s = 0.0
        self._ends: tuple[int, dict[int, int]] | None = None

    def __enter__(self) -> Crew:
        settings = {"linger.ms": 1, "queue.buffering.max.messages": 1_000_000}
        self._producer = Producer(self._clients.producer(settings))
        self._reader_config = self._clients.librdkafka(
            {
                "group.id": "muster-bench",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
                "enable.partition.eof": False,
            }
        )
        self._consumer = Consumer(self._reader_config)
        self._topic = self._topics[TopicKind.ASSIGNMENTS]
        layout = self._consumer.list_topics(self._topic, timeout=30).topics[self._topic]
        self._read_to = self._watermarks(list(layout.partitions))
        self._consumer.assign([TopicPartition(self._topic, p, e) for p, e in self._read_to.items()])
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.flush(5)
        del self._producer  # otherwise it would reconnect to a stopped broker
        self._consumer.close()

    # ---- what happens to members

    def come(self, names: Iterable[str]) -> None:
        """Start these members; they join."""
        for name in names:
            machine = Machine(self._group, name, self._chance.getrandbits(62))
            self._machines[machine.key] = machine
            self._alive.add(name)
            self._give(machine, Begin())

    def go(self, names: Iterable[str], *, temporary: bool = False) -> None:
        """Ask members to leave."""
        for name in names:
            self._alive.discard(name)
            machine = self._machines[key_of(self._group, name)]
            self._give(machine, LeaveAsked(temporary))

    def drop_all(self) -> None:
        """Kill all members: they write nothing more."""
        self._machines.clear()
        self._alive.clear()
        self._owner.clear()

    # ---- the loop

    def run_for(self, seconds: float) -> None:
        """Run the loop for some seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._turn()

    def settle(self) -> None:
        """Run until every task has an owner and every member its share.

        Raises:
            TimeoutError: the members did not settle in time.
        """
        self._await(self._is_settled, "settled")

    def await_gone(self) -> None:
        """Run until all members that were asked to leave have left."""
        self._await(lambda: len(self._machines) == len(self._alive), "gone")

    def _await(self, condition: object, what: str) -> None:
        until = time.monotonic() + SETTLE_TIMEOUT_S
        while not condition():  # type: ignore[operator]  # a function without arguments
            if time.monotonic() > until:
                sizes = sorted(len(m.held) for m in self._machines.values())
                raise TimeoutError(f"not {what}: members hold {sizes[:5]} … {sizes[-5:]}")
            self._turn()

    def _is_settled(self) -> bool:
        if len(self._owner) != self._tasks or len(self._machines) != len(self._alive):
            return False
        fair = {self._tasks // len(self._alive), -(-self._tasks // len(self._alive))}
        return all(len(machine.held) in fair for machine in self._machines.values())

    def _turn(self) -> None:
        """Process acknowledgements, records and due timers."""
        self._producer.poll(0)
        if not self._inputs:
            first = self._consumer.poll(0.002)
            messages = [*filter(None, [first]), *self._consumer.consume(READ_MAX, 0)]
            for message in messages:
                self._read(message)
        self._prove()
        now_ms = boottime_ms()
        while self._timers and self._timers[0][0] <= now_ms:
            at_ms, _, machine = heapq.heappop(self._timers)
            if machine.wakes_ms == at_ms:
                machine.wakes_ms = None
                self._give(machine, ClockMoved())
        while self._inputs:
            self._give(*self._inputs.popleft())

    def _give(self, machine: Machine, given: Input) -> None:
        if self._machines.get(machine.key) is not machine:
            return  # its process has ended
        for action in machine.session.step(given, boottime_ms()):
            match action:
                case Send():
                    self._send(machine, action)
                case Take(role, tasks):
                    if role is Role.ACTIVE:
                        self._start(machine, set(tasks))
                    else:
                        self._inputs.append((machine, Ready(tasks)))
                case Release(role, tasks):
                    if role is Role.ACTIVE:
                        self._stop(machine, set(tasks))
                    self._inputs.append((machine, Released(role, tasks)))
                case Lose():
                    self.losses += 1
                    self._stop(machine, set(machine.held))
                    self._inputs.append((machine, AllStopped()))
                case End():
                    del self._machines[machine.key]
                case _:
                    pass
        at_ms = machine.session.deadline_ms
        if at_ms is not None and (machine.wakes_ms is None or at_ms < machine.wakes_ms):
            machine.wakes_ms = at_ms
            self._timer_number += 1
            heapq.heappush(self._timers, (at_ms, self._timer_number, machine))

    def _start(self, machine: Machine, tasks: set[Task]) -> None:
        for task in tasks - machine.held:
            self.starts += 1
            self.moves += self._last.get(task, machine.name) != machine.name
            self.overlaps += task in self._owner
            self._owner[task] = self._last[task] = machine.name
        machine.held |= tasks

    def _stop(self, machine: Machine, tasks: set[Task]) -> None:
        for task in tasks & machine.held:
            if self._owner.get(task) == machine.name:
                del self._owner[task]
        machine.held -= tasks

    # ---- Kafka

    def _send(self, machine: Machine, sent: Send) -> None:
        kind = TopicKind.LAG if isinstance(sent.event, LagReport) else TopicKind.MEMBERSHIP
        encoded = encode(sent.event)
        done = partial(self._delivered, machine, sent)
        while True:
            try:
                self._producer.produce(
                    self._topics[kind], key=encoded.key, value=encoded.value, on_delivery=done
                )
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
        self.records += 1
        record = self._decoded(whole)
        if isinstance(record, MemberAssignment | MemberGone):
            self._inputs.append((machine, Read(record)))

    def _decoded(self, whole: Whole) -> object:
        try:
            return decode_record(TopicKind.ASSIGNMENTS, *whole, dictionaries=self._names)
        except UnknownDictionary:
            topic = self._topics[TopicKind.GROUPS]
            self._names = find_names(self._reader_config, topic, self._group)
            return decode_record(TopicKind.ASSIGNMENTS, *whole, dictionaries=self._names)

    def _watermarks(self, partitions: Iterable[int]) -> dict[int, int]:
        return {
            p: self._consumer.get_watermark_offsets(TopicPartition(self._topic, p), timeout=30)[1]
            for p in partitions
        }

    def _prove(self) -> None:
        """Tell members up to which time they have read all their records."""
        if self._ends is None and time.monotonic() - self._proved_s >= PROOF_S:
            self._proved_s = time.monotonic()
            self._ends = (boottime_ms(), self._watermarks(self._read_to))
        if self._ends is None:
            return
        at_ms, ends = self._ends
        if all(self._read_to[p] >= end for p, end in ends.items()):
            self._ends = None
            self._inputs.extend((m, CaughtUp(at_ms)) for m in self._machines.values())
