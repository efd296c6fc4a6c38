"""What the member takes for read: ends answered early, late, out of place, or not at all."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from muster.worker import progress
from muster.worker.exchange import CaughtUp
from muster.worker.progress import Progress


class Broker:
    """Stands for the admin client: questions wait until the test answers them."""

    def __init__(self) -> None:
        self.asked: list[Future] = []
        self.clients = 0
        self.partitions = 4
        self.grown = 0

    def has_grown(self) -> None:
        """What a reader is told once there are more partitions."""
        self.grown += 1

    def connect(self, *_: object, **__: object) -> Broker:
        """Another client."""
        self.clients += 1
        return self

    def list_offsets(self, wanted: dict, **_: object) -> dict:
        """Keep the question."""
        self.asked.append(Future())
        return dict.fromkeys(wanted, self.asked[-1])

    def list_topics(self, topic: str, **_: object) -> SimpleNamespace:
        """Say how many partitions there are, at once."""
        told = SimpleNamespace(error=None, partitions=range(self.partitions))
        return SimpleNamespace(topics={topic: told})

    def answer(self, end: int) -> None:
        """Say where the partition ends."""
        self.asked[-1].set_result(SimpleNamespace(offset=end))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """The only broker there is."""
    made = Broker()
    monkeypatch.setattr(progress, "AdminClient", made.connect)
    return made


@pytest.fixture
def told() -> list[CaughtUp]:
    """What the session was told."""
    return []


@pytest.fixture
def reader(broker: Broker, told: list[CaughtUp]) -> Progress:
    """Stands at offset 10."""
    made = Progress({}, told.append, broker.has_grown, lambda job: job())
    made.stand("muster.assignments", 1, 10, 4)
    return made


def test_nothing_new(reader: Progress, broker: Broker, told: list[CaughtUp]) -> None:
    """The end is where the reader stands: everything has been read."""
    reader.ask(100)
    assert told == []
    broker.answer(10)
    assert told == [CaughtUp(100)]


def test_a_reader_that_has_to_catch_up(
    reader: Progress, broker: Broker, told: list[CaughtUp]
) -> None:
    """What was asked counts when the reader gets there, and of several ends the newest reached."""
    for at_ms, end in ((100, 12), (200, 13), (300, 20)):
        reader.ask(at_ms)
        broker.answer(end)
    reader.read_to(11)
    assert told == []
    reader.read_to(13)
    assert told == [CaughtUp(200)]
    reader.read_to(20)
    assert told == [CaughtUp(200), CaughtUp(300)]


def test_read_beyond_the_answer(reader: Progress, broker: Broker, told: list[CaughtUp]) -> None:
    """A record that came while the question was open does no harm."""
    reader.ask(100)
    reader.read_to(12)
    broker.answer(11)
    assert told == [CaughtUp(100)]


def test_one_question_at_a_time(reader: Progress, broker: Broker, told: list[CaughtUp]) -> None:
    """While one is open no other is asked; one that failed says nothing, and the next is asked."""
    reader.ask(100)
    reader.ask(200)
    assert len(broker.asked) == 1
    broker.asked[0].set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    assert told == []
    reader.ask(300)
    broker.answer(10)
    assert told == [CaughtUp(300)]


def test_a_log_cut_below_the_reader(reader: Progress, broker: Broker, told: list[CaughtUp]) -> None:
    """An end before what was read long ago proves nothing: new records go where we do not look."""
    reader.ask(100)
    broker.answer(3)
    assert told == []


def test_another_partition(reader: Progress, broker: Broker, told: list[CaughtUp]) -> None:
    """The topic grew: what is said of the old partition proves nothing for the new one."""
    reader.ask(100)
    reader.stand("muster.assignments", 4, 0, 4)
    broker.answer(10)
    reader.read_to(50)
    assert told == []


def test_nothing_is_asked_too_early_or_too_late(broker: Broker, told: list[CaughtUp]) -> None:
    """Before the reader stands anywhere, and after the end."""
    reader = Progress({}, told.append, broker.has_grown, lambda job: job())
    reader.ask(100)
    reader.stand("muster.assignments", 1, 10, 4)
    reader.close()
    reader.ask(200)
    assert broker.asked == []


def test_a_client_that_failed_is_replaced(
    reader: Progress, broker: Broker, told: list[CaughtUp]
) -> None:
    """It would ask the leader it knows for ever; one that is answered is kept."""
    reader.ask(100)
    broker.asked[-1].set_exception(KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH)))
    for at_ms in (200, 300):
        reader.ask(at_ms)
        broker.answer(10)
    assert told == [CaughtUp(200), CaughtUp(300)]
    assert broker.clients == 2


def test_a_question_that_is_forgotten(
    reader: Progress, broker: Broker, told: list[CaughtUp]
) -> None:
    """After a while another client is asked; an answer that comes all the same is taken."""
    reader.ask(100)
    reader.ask(100 + progress.LOST_MS - 1)
    assert len(broker.asked) == 1
    reader.ask(100 + progress.LOST_MS)
    assert (len(broker.asked), broker.clients) == (2, 2)
    broker.asked[0].set_result(SimpleNamespace(offset=10))
    reader.ask(5_000)
    assert len(broker.asked) == 2
    broker.answer(10)
    assert told == [CaughtUp(100), CaughtUp(100 + progress.LOST_MS)]


def test_a_topic_that_has_grown(reader: Progress, broker: Broker, told: list[CaughtUp]) -> None:
    """The end of a partition that may be ours no more proves nothing, and the reader is told."""
    broker.partitions = 6
    reader.ask(100)
    broker.answer(10)
    assert (told, broker.grown) == ([], 1)
    reader.stand("muster.assignments", 5, 0, 6)
    reader.ask(200)
    broker.answer(3)
    assert told == []
    reader.read_to(3)
    assert told == [CaughtUp(200)]
