"""What a thread of the coordinator survives, and what is seen of one that has died; no broker."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs
from support.kafka.mock_kafka import QUICK, mock_kafka
from support.suite.waiting import until

from muster.cli import clock as clock_command
from muster.kafka import lasting_producer
from muster.kafka.client_settings import ClientSettings
from muster.protocol.events import Mark
from muster.protocol.ids import GroupId
from muster.streams import background_thread, coordinator_signs
from muster.streams.background_thread import Complaints, Loop
from muster.streams.clock import Clock
from muster.streams.coordinator_signs import Signs
from muster.streams.errors import ThreadDied
from muster.streams.job_settings import JobConfig
from muster.streams.monitoring import Seen

REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
FATAL = KafkaError(KafkaError._FATAL)


class Denying:
    """librdkafka's producer: it takes no record, for a reason, until `reason` is None."""

    made: list[Denying]
    reason: KafkaError | None

    def __init__(self, config: object, logger: object) -> None:
        self.refused = self.taken = 0
        self.made.append(self)

    def produce(self, topic: str, **_: object) -> None:
        """Take a record, or do not."""
        if self.reason is not None:
            self.refused += 1
            raise KafkaException(self.reason)
        self.taken += 1

    def poll(self, wait_s: float) -> int:
        """Raise a fatal error, like librdkafka, once there was one."""
        if self.reason is FATAL and self.refused:
            raise KafkaException(FATAL)
        return 0

    def flush(self, wait_s: float) -> int:
        """Have nothing left to write."""
        return 0

    def purge(self) -> None:
        """Have nothing to drop."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Denying]:
    """The producers that were made; they refuse every record."""
    Denying.made, Denying.reason = [], REFUSED
    monkeypatch.setattr(lasting_producer, "Producer", Denying)
    monkeypatch.setattr(coordinator_signs, "INTERVAL_MS", 10)
    return Denying.made


def refusals(made: list[Denying]) -> int:
    """How many records were refused."""
    return sum(each.refused for each in made)


def taken(made: list[Denying]) -> int:
    """How many records were taken."""
    return sum(each.taken for each in made)


@pytest.fixture
def kafka() -> Any:
    """Settings of clients of a cluster without a JVM."""
    with mock_kafka() as address:
        yield ClientSettings({"bootstrap.servers": address, **QUICK})


@contextmanager
def signs_of_a_job(_: ClientSettings) -> Iterator[Loop]:
    """Signs of life, written at an interval."""
    with Signs(ClientSettings(), ["muster"], "a", lambda: True) as signs:
        signs.runs({"muster": 1})
        yield signs


@contextmanager
def clock_with_ticks_due(kafka: ClientSettings) -> Iterator[Loop]:
    """A clock whose schedule repeats the ticks that Kafka refuses."""
    with Clock(kafka, ["muster"]) as clock:
        for number in range(3):
            clock.wake("muster", GroupId(f"g{number}"), Mark(1, 0))
        yield clock


@pytest.mark.parametrize("running", [signs_of_a_job, clock_with_ticks_due])
@pytest.mark.parametrize(("reason", "producers"), [(REFUSED, 1), (FATAL, 2)])
def test_a_thread_that_writes_goes_on_after_a_refusal(
    made: list[Denying],
    kafka: ClientSettings,
    running: Callable[[ClientSettings], AbstractContextManager[Loop]],
    reason: KafkaError,
    producers: int,
) -> None:
    """A right that is missing for a while, or a producer that fails for good, ends no thread."""
    Denying.reason = reason
    with capture_logs() as said, running(kafka) as thread:
        until(lambda: refusals(made) >= 3, "three records were refused")
        until(lambda: len(made) >= producers, "a producer that failed for good was replaced")
        Denying.reason = None
        until(lambda: taken(made), "a record was taken")
        assert thread.alive
    assert len(said) == 1, "one line for one fault, however often it came"


def test_a_fault_is_logged_at_once_and_then_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line has the number of times since the last one; another fault has its own line."""
    now_s = [0.0]
    monkeypatch.setattr(background_thread, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    complaints = Complaints()
    with capture_logs() as said:
        for second in range(121):
            now_s[0] = float(second)
            complaints.hear("no tick", f"group g{second}", "no key", group=f"g{second}")
        complaints.hear("no tick", "no right")
    assert [(line["why"], line["times"]) for line in said] == [
        ("group g0", 1),
        ("group g60", 60),
        ("group g120", 60),
        ("no right", 1),
    ]


def test_faults_are_bounded() -> None:
    """Texts that differ each time take no memory without end."""
    complaints = Complaints()
    with capture_logs():
        for number in range(5 * background_thread.FAULTS_MAX):
            complaints.hear("no tick", str(number))
    assert len(complaints._heard) <= background_thread.FAULTS_MAX


class Dying(Loop):
    """A thread that dies at once."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__("muster-dying")

    def _run(self) -> None:
        raise ValueError("an unexpected value")


def test_a_thread_that_dies_says_why() -> None:
    """The log has the exception, and `alive` says that the thread has ended."""
    with capture_logs() as said, Dying() as dying:
        until(lambda: not dying.alive, "the thread has ended")
    (line,) = said
    assert (line["event"], line["thread"], line["log_level"]) == (
        *("a thread has died", "muster-dying"),
        "error",
    )
    assert line["exc_info"]


def test_the_clock_command_ends_with_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a clock would look well to its supervisor."""
    monkeypatch.setattr(clock_command, "Clock", Dying)
    monkeypatch.setattr(clock_command.access_check, "check", lambda *_: {})
    monkeypatch.setattr(clock_command.logs, "set_up", lambda *_: None)
    options = argparse.Namespace(
        log_format="console",
        bootstrap_server="localhost:1",
        command_config=None,
        topic_prefix=[],
        signing_keys=None,
        discovery=False,
    )
    with capture_logs(), pytest.raises(ThreadDied, match="muster-dying"):
        clock_command.run(options)


def part(**now: bool) -> Any:
    """A thread as `Seen` looks at it."""
    return SimpleNamespace(**{"alive": True, "is_over": False, **now})


@pytest.mark.parametrize(
    ("change", "well"),
    [
        (lambda signs, vigil, seen: setattr(signs, "alive", False), False),
        (lambda signs, vigil, seen: setattr(vigil, "alive", False), False),
        (lambda signs, vigil, seen: vars(signs).update(alive=False, is_over=True), True),
        (
            lambda signs, vigil, seen: (
                setattr(seen.health, "is_standby", False),
                setattr(vigil, "alive", False),
            ),
            True,
        ),
    ],
)
def test_a_standby_is_well_only_with_its_threads(
    change: Callable[[Any, Any, Seen], object], well: bool
) -> None:
    """Its signs and its watch; the watch ends when it claims, and the signs when it ends."""
    with ExitStack() as stack:
        seen, signs, vigil = Seen(JobConfig(checkpoint="/c"), stack), part(), part()
        seen.begins(signs, vigil)
        seen.health.is_standby = True
        assert (seen.health.well(1).why, seen.health.ready(1).why) == ("standby", "standby")
        change(signs, vigil, seen)
        assert seen.health.well(1).fine == seen.is_well == well
        assert not seen.health.is_standby or seen.health.ready(1).fine == well
