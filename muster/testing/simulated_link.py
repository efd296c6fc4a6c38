"""A simulated worker's connection to Kafka: events, records, and end offsets of changelogs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random

from muster.protocol.events import Heartbeat, LagReport, Leave
from muster.protocol.tasks import TaskSet
from muster.simulation.kafka import SimulatedKafka
from muster.simulation.log import MemberRecord, delay
from muster.testing.simulated_machine import VirtualMachine
from muster.worker.changelog import Changelog, ChangelogLags
from muster.worker.session_messages import Acknowledged, Begin, CaughtUp, Failed, Input, Read, Send

GIVEN_UP_MS = 300_000
"""How long Kafka's producer tries to write an event (`message.timeout.ms`)."""


class SimulatedLink:
    """One member's connection; while it is `cut`, nothing passes and nothing is lost.

    Attributes:
        name: member id.
        sent_until: see `muster.simulation.kafka.Client`.
        is_cut: whether the network to Kafka is partitioned.
    """

    def __init__(
        self,
        kafka: SimulatedKafka,
        name: str,
        machine: VirtualMachine,
        post: Callable[[Input], None],
    ) -> None:
        self.name = name
        self.sent_until = 0.0
        self.is_cut = False
        self._kafka = kafka
        self._machine = machine
        self._post = post
        self._rng = Random(machine.seed())  # noqa: S311 — no secret
        self._is_open = False
        self._records: deque[MemberRecord] = deque()
        self._waiting: list[Callable[[], None]] = []  # for the network
        self._unsent: list[Send] = []
        self._arrived = self._read = 0  # records in its partition, and those that were read
        self._ends: list[tuple[int, int]] = []  # (end offset, when it was asked for)

    # ------------------------------------------------------------------- what the worker calls

    def open(self) -> None:
        """Start reading; `Begin` is posted when the reader is at the end of the partition."""
        self._is_open = True
        self._soon(5, lambda: self._post(Begin()))

    def configured_groups(self) -> Sequence[str] | None:
        """None: this Kafka does not list its groups."""
        return None

    def send(self, sent: Send) -> None:
        """Write an event; `Acknowledged` or `Failed` is posted later."""
        self._unsent.append(sent)
        self._kafka.at(self._kafka.now + GIVEN_UP_MS, lambda: self._answer(Failed(sent)))
        self._when_connected(lambda: self._write(sent))
        if not isinstance(sent.event, Leave | LagReport) and not self.is_cut:
            self._kafka.end_of(self, lambda end: self._note_end(end, sent.sent_ms))

    def take_acknowledgements(self) -> None:
        """Nothing to do: acknowledgements are posted as they come."""

    def close(self, flush_s: float) -> bool:
        """Stop reading; events on their way arrive. Return whether every event arrives.

        What the network has not let through after `flush_s` seconds is lost: the process has ended.
        """
        self._is_open = False
        if not (self.is_cut and self._unsent) or self._machine.waits(
            lambda: not self._unsent, flush_s
        ):
            return True
        self._waiting.clear()
        return False

    @property
    def has_news(self) -> bool:
        """Whether an event that is no heartbeat is on its way to Kafka."""
        return any(not isinstance(sent.event, Heartbeat) for sent in self._unsent)

    # --------------------------------------------------------------------- what Kafka calls

    @property
    def position(self) -> int:
        """End offset of its partition."""
        return self._arrived

    def deliver(self, record: MemberRecord) -> None:
        """A record has reached its partition; it is read soon, in order."""
        self._arrived += 1
        self._records.append(record)
        self._soon(6, self._take_in)

    # ------------------------------------------------------------------------------- faults

    def cut(self) -> None:
        """The network to Kafka is partitioned."""
        self.is_cut = True

    def heal(self) -> None:
        """The network works again; what waits passes in order."""
        self.is_cut = False
        waiting, self._waiting = self._waiting, []
        for what in waiting:
            what()

    def die(self) -> None:
        """The process has ended: what it has not sent is lost."""
        self._is_open = False
        self._waiting.clear()

    # ------------------------------------------------------------------------------ the rest

    def _when_connected(self, what: Callable[[], None]) -> None:
        if self.is_cut:
            self._waiting.append(what)
        else:
            what()

    def _soon(self, usual_ms: float, what: Callable[[], None]) -> None:
        when = self._kafka.now + delay(self._rng, usual_ms)
        self._kafka.at(when, lambda: self._when_connected(what))

    def _write(self, sent: Send) -> None:
        if sent in self._unsent:
            self._kafka.write(
                self,
                sent.event,
                lambda: self._when_connected(lambda: self._answer(Acknowledged(sent))),
            )

    def _answer(self, answer: Acknowledged | Failed) -> None:
        if answer.sent in self._unsent:
            self._unsent.remove(answer.sent)
            self._post(answer)

    def _take_in(self) -> None:
        if self._is_open and self._records:
            self._read += 1
            self._post(Read(self._records.popleft()))
            self._look_at_ends()

    def _note_end(self, end: int, asked_ms: int) -> None:
        if self._is_open and not self.is_cut:  # without a connection the question fails
            self._ends.append((end, asked_ms))
            self._look_at_ends()

    def _look_at_ends(self) -> None:
        reached = [asked for end, asked in self._ends if end <= self._read]
        if reached:
            self._ends = [pair for pair in self._ends if pair[0] > self._read]
            self._post(CaughtUp(max(reached)))


class SimulatedLags(ChangelogLags):
    """Computes lags from changelogs whose ends the test gives."""

    def __init__(
        self,
        machine: VirtualMachine,
        ends: Mapping[tuple[str, int], int],
        positions: Changelog | None,
        on_disk: TaskSet,
        post: Callable[[Input], None],
    ) -> None:
        super().__init__({}, positions, on_disk, post, machine)
        self._end_offsets = ends

    def _ends(self, places: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {place: self._end_offsets[place] for place in places if place in self._end_offsets}
