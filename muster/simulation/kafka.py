"""A simulated Kafka with its coordinators: a queue of calls by true time, and delays.

The log loses nothing. Events travel to it, coordinators take batches, and records travel back to
members. All random numbers come from a seed, so a simulation can be repeated.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from random import Random
from typing import Protocol

from muster.protocol.events import Event, Tick
from muster.protocol.records import WakeUp
from muster.simulation.jobs import Job, Jobs
from muster.simulation.log import GROUP, Log, MemberRecord, delay

BEGINNING_MS = 1_000_000
TICK_AGAIN_MS = 1_000


class Client(Protocol):
    """A member's connection.

    Attributes:
        name: member id.
        sent_until: true time at which its newest event arrives.
    """

    name: str
    sent_until: float

    @property
    def position(self) -> int:
        """End offset of its partition, counted from where its reader began."""

    def deliver(self, record: MemberRecord) -> None:
        """A record has reached its partition."""


class SimulatedKafka:
    """One broker and the coordinators of one group. Times are milliseconds of true time.

    Attributes:
        now: true time.
        away_until: true time until which the broker is away.
        log: the topics.
        jobs: the coordinators; none runs before `jobs.begin`.
        is_traced: whether `trace_line` is wanted; check it before building an expensive line.
    """

    def __init__(self, seed: int, *, traced: bool = False, job: type[Job] = Job) -> None:
        self.now = float(BEGINNING_MS)
        self.away_until = 0.0
        self.log = Log()
        self.is_traced = traced
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._rng = Random(f"broker/{seed}")  # noqa: S311 — no secret
        self._ticked = 0
        self.jobs = Jobs(self, self.log, self._rng, job)

    @property
    def clock_ms(self) -> float:
        """True time since the beginning."""
        return self.now - BEGINNING_MS

    def clients(self) -> Iterable[Client]:
        """Every connection, oldest first; a simulation of members overrides it."""
        return ()

    # ------------------------------------------------------------------------------- true time

    def at(self, when: float, what: Callable[[], object]) -> None:
        """Call `what` at a time."""
        heapq.heappush(self._agenda, (max(when, self.now), next(self._order), what))

    @property
    def next_at(self) -> float:
        """When the next call is due; infinite if none is."""
        return self._agenda[0][0] if self._agenda else float("inf")

    def call_next(self) -> None:
        """Move to the time of the next call, and make it."""
        self.now, _, what = heapq.heappop(self._agenda)
        what()

    # ----------------------------------------------------------------------- what members need

    def write(self, sender: Client, event: Event, done: Callable[[], None]) -> None:
        """Write an event to the log, later and behind its sender's others."""
        arrives = max(self.now + self._delay(4), self.away_until, sender.sent_until)
        sender.sent_until = arrives

        def arrive() -> None:
            self._append(event)
            self.at(self.now + self._delay(3), done)

        self.at(arrives, lambda: self._when_back(arrive))

    def end_of(self, sender: Client, answer: Callable[[int], None]) -> None:
        """Answer with the end offset of a partition, as of the moment of the answer."""

        def look() -> None:
            end = sender.position
            self.at(self.now + self._delay(3), lambda: answer(end))

        self.at(self.now + self._delay(3), lambda: self._when_back(look))

    def trace_line(self, text: str) -> None:
        """Note what happened now, for people; a simulation that shows it overrides this."""

    # ------------------------------------------------------------------------------- the broker

    def send(self, event: Event) -> None:
        """A client outside the group writes an event."""
        arrives = self.now + self._delay(4)
        self.at(arrives, lambda: self._when_back(lambda: self._append(event)))

    def deliver(self, record: MemberRecord) -> None:
        """A record has reached its member's partition."""
        for client in self.clients():
            if client.name == record.member:
                client.deliver(record)

    def published(self) -> None:
        """Act as the clock: send a tick when the newest wake-up is due; repeat while it stays."""
        number, wake = self.log.wakes, self.log.wake
        if wake is None or wake.at_ms is None or number == self._ticked:
            return
        self._ticked = number
        self.at(wake.at_ms + self._delay(5), lambda: self._ring(wake, number))

    def _ring(self, wake: WakeUp, number: int) -> None:
        """Send a tick for the wake-up of this number, if it is still the newest."""
        if self.log.wakes == number:
            self.send(Tick(group=GROUP, published=wake.published))
            self.at(self.now + TICK_AGAIN_MS, lambda: self._ring(wake, number))

    def _append(self, event: Event) -> None:
        self.log.append(event, int(self.now))
        self.jobs.wake()

    def _when_back(self, what: Callable[[], None]) -> None:
        """Call `what` now, or when the broker is back."""
        if self.now < self.away_until:
            self.at(self.away_until + self._delay(10), lambda: self._when_back(what))
        else:
            what()

    def _delay(self, usual: float) -> float:
        return delay(self._rng, usual)
