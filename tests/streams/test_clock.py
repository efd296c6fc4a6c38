"""The clock's thread: what it reads, which ticks wait, and what time it believes it is."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME
from support.streams.agreements import agreeing
from support.streams.consumed import Consumed

from muster.kafka.client_settings import ClientSettings
from muster.protocol import codec
from muster.protocol.codec import Encoded
from muster.protocol.events import Mark, Origin, Tick
from muster.protocol.ids import GroupId
from muster.protocol.records import WakeUp
from muster.protocol.topics import TopicKind
from muster.streams import broker_time
from muster.streams.clock import Clock
from muster.streams.heartbeat_covers import Row, Sleeper
from muster.streams.wake_up_schedule import TURNS_MAX

A = Sleeper("muster", GroupId("a"))


def woken(group: str) -> Consumed:
    """A wake-up of this group."""
    return Consumed("muster.clock", WakeUp(group=GroupId(group), at_ms=1, published=None))


class PatientConsumer:
    """Like librdkafka: `poll` waits for one record, `consume` for as many as it may return."""

    def __init__(self, *waiting: Consumed) -> None:
        self._waiting = list(waiting)

    def poll(self, timeout_s: float) -> Consumed | None:
        """Return the next record."""
        return self._waiting.pop(0) if self._waiting else None

    def consume(self, count: int, timeout_s: float) -> list[Consumed]:
        """Return the waiting records; with a timeout librdkafka would wait for it to end."""
        assert timeout_s == 0, "waits although there is something to take in"
        messages, self._waiting = self._waiting[:count], self._waiting[count:]
        return messages


def test_a_wake_up_is_taken_in_when_it_is_published() -> None:
    """The clock waits for one record, not for many, because the first may be due at once."""
    clock = Clock(ClientSettings(), ["muster"])
    consumer = PatientConsumer(woken("a"), woken("b"))
    clock._read(consumer)  # type: ignore[arg-type]  # as far as reading needs one
    assert clock.asleep == 2


def test_the_agreement_of_an_earlier_coordinator_does_not_count() -> None:
    """A clock that starts wakes each group once; what is written from then on may let it wait."""
    clock = Clock(ClientSettings(), ["muster"])
    clock._ends["muster.clock", 0] = 1
    wake_up = WakeUp(group=A.group, at_ms=1, apart=True, agreement=agreeing(2**60, "W1"))
    for offset, agreement in ((0, None), (1, wake_up.agreement)):
        clock._note(Consumed("muster.clock", wake_up, offset=offset))  # type: ignore[arg-type]
        assert clock._schedule._alarms[A].agreement == agreement


def test_a_wake_up_without_a_mark_is_of_a_group_whose_rows_wait() -> None:
    """The clock wakes so many of these groups; all others get their ticks at their time."""
    clock = Clock(ClientSettings(), ["muster"])
    for number in range(2 * TURNS_MAX):
        for kind, mark in (("waits", None), ("plain", Mark(1, 1))):
            wake_up = WakeUp(group=GroupId(f"{kind}{number}"), at_ms=1, published=mark)
            clock._note(Consumed("muster.clock", wake_up))  # type: ignore[arg-type]
    woken = [sleeper.group for sleeper, _ in clock._schedule.due(clock.now_ms())]
    assert sum(group.startswith("waits") for group in woken) == TURNS_MAX
    assert sum(group.startswith("plain") for group in woken) == 2 * TURNS_MAX


class Log:
    """A producer whose records wait for `acknowledge`, and a listener that only notes its marks."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Tick, object]] = []
        self.marked: list[tuple[str, int]] = []

    def produce(self, topic: str, record: Encoded, on_delivery: object) -> None:
        """Take a record."""
        origin = Origin(topic, 0, 0, 0)
        tick = codec.decode(TopicKind.MEMBERSHIP, record.key, record.value, origin)
        assert isinstance(tick, Tick)
        self.waiting.append((tick, on_delivery))

    def acknowledge(self, place: int) -> None:
        """Report the delivery of one waiting record."""
        _, on_delivery = self.waiting[place]
        on_delivery(None, Acknowledged())

    def mark(self, prefix: str, partition: int) -> None:
        """Note a marker."""
        self.marked.append((prefix, partition))


class Acknowledged:
    """A delivered record."""

    def timestamp(self) -> tuple[int, int]:
        """The broker's time."""
        return TIMESTAMP_LOG_APPEND_TIME, time.time_ns() // 1_000_000


def clock_that_wakes(wait_ms: int, read_ms: int) -> tuple[Clock, Log]:
    """A clock with one group of members that heartbeat apart, whose wake-up is due.

    Args:
        wait_ms: how long before it was wanted the wake-up was written.
        read_ms: how long ago the newest record of heartbeats was written.
    """
    clock = Clock(ClientSettings(), ["muster"])
    now_ms = clock.now_ms()
    clock._heartbeats.listen("muster", 1)
    encoded = codec.encode(Tick(group=GroupId("m")))
    row = Row(0, encoded.key, encoded.value, now_ms - read_ms)
    clock._heartbeats.read("muster", [row], {A})
    clock._schedule.note(A, now_ms, apart=True, now_ms=now_ms - wait_ms)
    return clock, Log()


def test_a_tick_in_a_hurry_makes_time_move() -> None:
    """Where no member writes, each such tick asks for a marker, so the next cover is longer."""
    for read_ms, marked in ((5_000, [("muster", 0)]), (100, [])):
        clock, log = clock_that_wakes(wait_ms=300, read_ms=read_ms)
        clock._wake(log, log, A, None)  # type: ignore[arg-type]  # as far as a tick needs them
        assert (len(log.waiting), log.marked) == (1, marked)


def test_a_tick_of_a_session_waits_for_the_heartbeats_before_it() -> None:
    """It is written when a marker, or a heartbeat, of its time has been read."""
    clock, log = clock_that_wakes(wait_ms=6_000, read_ms=5_000)
    clock._wake(log, log, A, None)  # type: ignore[arg-type]
    clock._release(log)  # type: ignore[arg-type]
    assert (log.waiting, log.marked) == ([], [("muster", 0)])
    encoded = codec.encode(Tick(group=GroupId("m")))
    clock._heartbeats.read("muster", [Row(0, encoded.key, encoded.value, clock.now_ms() + 9)], {A})
    clock._release(log)  # type: ignore[arg-type]
    assert len(log.waiting) == 1


def test_only_the_tick_with_the_cover_ends_it() -> None:
    """A tick beside one under way has no cover; its delivery says nothing of the other's."""
    clock, log = clock_that_wakes(wait_ms=300, read_ms=100)
    for _ in range(2):
        clock._wake(log, log, A, None)  # type: ignore[arg-type]
    assert [tick.cover is None for tick, _ in log.waiting] == [False, True]
    log.acknowledge(1)
    assert clock._heartbeats.cover(A) is None, "the first one is still under way"
    log.acknowledge(0)
    assert clock._heartbeats.cover(A) is not None


class Machine:
    """A machine whose wall clock may be wrong, and a broker whose clock is right.

    Args:
        monkeypatch: replaces the machine's clocks.
        ahead_ms: how wrong its wall clock is when the process starts.
        steps: second → how wrong its wall clock is then.
    """

    BEGIN_MS = 1_800_000_000_000

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        ahead_ms: int = 0,
        steps: Callable[[int], int] = lambda _: 0,
    ) -> None:
        self.true_ms = self.BEGIN_MS
        self._steps = steps
        monkeypatch.setattr(broker_time.time, "time_ns", self._wall_ns)
        monkeypatch.setattr(broker_time, "_BOOT_MS", self.BEGIN_MS + ahead_ms)
        monkeypatch.setattr(broker_time, "boottime_ms", lambda: self.true_ms - self.BEGIN_MS)
        self.clock = Clock(ClientSettings(), ["muster"])

    def _wall_ns(self) -> int:
        second = (self.true_ms - self.BEGIN_MS) // 1_000
        return (self.true_ms + self._steps(second)) * 1_000_000

    def produce(self, topic: str, record: Encoded, on_delivery: Callable[..., None]) -> None:
        """Take a record and acknowledge it at once, with the broker's time."""
        on_delivery(None, self)

    def timestamp(self) -> tuple[int, int]:
        """The broker's time."""
        return TIMESTAMP_LOG_APPEND_TIME, self.true_ms

    def mark(self, prefix: str, partition: int) -> None:
        """Write no marker."""

    def ticks(self, seconds: int) -> list[int]:
        """The seconds at which ticks were written."""
        written = []
        for second in range(seconds):
            self.true_ms = self.BEGIN_MS + second * 1_000
            for sleeper, mark in self.clock._due():
                self.clock._wake(self, self, sleeper, mark)  # type: ignore[arg-type]
                written.append(second)
        return written


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("right", lambda _: 0),
        ("set back by ten minutes", lambda second: -600_000 if second >= 5 else 0),
        ("an hour ahead for a moment", lambda second: 3_600_000 if 5 <= second < 8 else 0),
        ("set forward by an hour", lambda second: 3_600_000 if second >= 5 else 0),
    ],
)
def test_a_step_of_the_wall_clock_moves_no_tick(
    monkeypatch: pytest.MonkeyPatch, name: str, steps: Callable[[int], int]
) -> None:
    """The clock counts time with one that is never set."""
    machine = Machine(monkeypatch, steps=steps)
    machine.clock._schedule.note(A, machine.BEGIN_MS + 20_000)
    assert machine.ticks(40) == [20, 21, 23, 27, 35], name
    assert machine.clock.overdue_s() == 19


def test_a_clock_that_starts_an_hour_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first tick is early and corrects it; the next one comes when the group wants it."""
    machine = Machine(monkeypatch, ahead_ms=3_600_000)
    machine.clock._schedule.note(A, machine.BEGIN_MS + 20_000)
    assert machine.ticks(40) == [0, 20, 22, 26, 34]
    assert machine.clock.now_ms() == machine.true_ms


def test_a_tick_at_once_of_a_clock_that_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is repeated like any other, although the clock wanted it at a time that is to come."""
    machine = Machine(monkeypatch, ahead_ms=3_600_000)
    now_ms = machine.clock.now_ms()
    machine.clock._schedule.note(A, now_ms, Mark(1, 0), by_clock=True)
    assert machine.ticks(10) == [0, 1, 3, 7]


def test_a_clock_that_starts_ten_minutes_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads a record that the broker has stamped just now: its time cannot be earlier."""
    machine = Machine(monkeypatch, ahead_ms=-600_000)
    machine.clock._schedule.note(A, machine.BEGIN_MS + 20_000)
    assert machine.ticks(5) == []
    machine.clock._time.not_before(machine.true_ms)
    assert machine.ticks(40) == [20, 21, 23, 27, 35]


def test_brokers_with_different_clocks_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each acknowledgement moves the estimate; the alarms are looked at once a second at most."""
    machine, looks = Machine(monkeypatch), list[int]()
    monkeypatch.setattr(machine.clock._schedule, "set_back", looks.append)
    for number in range(100):
        machine.clock._time._ahead_ms = 2_000 * (number % 2)
        machine.clock._due()
    assert looks == [2_000]
