"""When the reader counts as caught up: answers that are early, late, misplaced or missing."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from muster.kafka import lasting_admin
from muster.worker import reader_progress
from muster.worker.reader_progress import Progress
from muster.worker.session_messages import CaughtUp


class Broker:
    """A fake admin client: questions wait until the test answers them."""

    def __init__(self) -> None:
        self.asked: list[Future] = []
        self.clients = 0
        self.partitions = 4
        self.grown = 0

    def has_grown(self) -> None:
        """Called when the topic has more partitions."""
        self.grown += 1

    def connect(self, *_: object, **__: object) -> Broker:
        """Create a client."""
        self.clients += 1
        return self

    def list_offsets(self, wanted: dict, **_: object) -> dict:
        """Store the question."""
        self.asked.append(Future())
        return dict.fromkeys(wanted, self.asked[-1])

    def list_topics(self, topic: str, **_: object) -> SimpleNamespace:
        """Answer with the number of partitions, at once."""
        metadata = SimpleNamespace(error=None, partitions=range(self.partitions))
        return SimpleNamespace(topics={topic: metadata})

    def answer(self, end: int) -> None:
        """Answer with the end offset of the partition."""
        self.asked[-1].set_result(SimpleNamespace(offset=end))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """The broker of every client."""
    made = Broker()
    monkeypatch.setattr(lasting_admin, "AdminClient", made.connect)
    return made


@pytest.fixture
def inputs() -> list[CaughtUp]:
    """The inputs that the session got."""
    return []


@pytest.fixture
def reader(broker: Broker, inputs: list[CaughtUp]) -> Progress:
    """A reader at offset 10."""
    made = Progress({}, inputs.append, broker.has_grown, lambda job: job())
    made.stand("muster.assignments", 1, 10, 4)
    return made


def test_nothing_new(reader: Progress, broker: Broker, inputs: list[CaughtUp]) -> None:
    """If the end is the reader's position, everything has been read."""
    reader.ask(100)
    assert inputs == []
    broker.answer(10)
    assert inputs == [CaughtUp(100)]


def test_a_reader_that_has_to_catch_up(
    reader: Progress, broker: Broker, inputs: list[CaughtUp]
) -> None:
    """A question counts when the reader reaches its end; of several, the newest reached one."""
    for at_ms, end in ((100, 12), (200, 13), (300, 20)):
        reader.ask(at_ms)
        broker.answer(end)
    reader.read_to(11)
    assert inputs == []
    reader.read_to(13)
    assert inputs == [CaughtUp(200)]
    reader.read_to(20)
    assert inputs == [CaughtUp(200), CaughtUp(300)]


def test_read_beyond_the_answer(reader: Progress, broker: Broker, inputs: list[CaughtUp]) -> None:
    """A record read while the question was open does not matter."""
    reader.ask(100)
    reader.read_to(12)
    broker.answer(11)
    assert inputs == [CaughtUp(100)]


def test_one_question_at_a_time(reader: Progress, broker: Broker, inputs: list[CaughtUp]) -> None:
    """No question is asked while one is open; after a failed one the next is asked."""
    reader.ask(100)
    reader.ask(200)
    assert len(broker.asked) == 1
    broker.asked[0].set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    assert inputs == []
    reader.ask(300)
    broker.answer(10)
    assert inputs == [CaughtUp(300)]


def test_a_fresh_proof_is_not_repeated(
    reader: Progress, broker: Broker, inputs: list[CaughtUp]
) -> None:
    """Nothing is asked while the last proof is fresh; without a proof every event asks."""
    reader.stay_fresh(1_000)
    reader.ask(100)
    broker.answer(12)
    reader.ask(200)
    broker.answer(12)
    assert len(broker.asked) == 2  # nothing is proved before the reader gets to the end
    reader.read_to(12)
    reader.ask(1_199)
    assert len(broker.asked) == 2
    reader.ask(1_200)
    broker.answer(12)
    assert inputs == [CaughtUp(200), CaughtUp(1_200)]
    reader.stand("muster.assignments", 5, 0, 6)  # the topic has grown: the proof is not of it
    reader.ask(1_300)
    assert len(broker.asked) == 4


def test_a_log_truncated_below_the_reader(
    reader: Progress, broker: Broker, inputs: list[CaughtUp]
) -> None:
    """An end below the position proves nothing: the reader would miss new records."""
    reader.ask(100)
    broker.answer(3)
    assert inputs == []


def test_another_partition(reader: Progress, broker: Broker, inputs: list[CaughtUp]) -> None:
    """After the topic grew, an answer about the old partition proves nothing."""
    reader.ask(100)
    reader.stand("muster.assignments", 4, 0, 4)
    broker.answer(10)
    reader.read_to(50)
    assert inputs == []


def test_nothing_is_asked_too_early_or_too_late(broker: Broker, inputs: list[CaughtUp]) -> None:
    """Nothing is asked before the reader has a position, or after `close`."""
    reader = Progress({}, inputs.append, broker.has_grown, lambda job: job())
    reader.ask(100)
    reader.stand("muster.assignments", 1, 10, 4)
    reader.close()
    reader.ask(200)
    assert broker.asked == []


def test_a_client_that_failed_is_replaced(
    reader: Progress, broker: Broker, inputs: list[CaughtUp]
) -> None:
    """A failed client would keep asking the leader it knows; one that got an answer stays."""
    reader.ask(100)
    broker.asked[-1].set_exception(KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH)))
    for at_ms in (200, 300):
        reader.ask(at_ms)
        broker.answer(10)
    assert inputs == [CaughtUp(200), CaughtUp(300)]
    assert broker.clients == 2


def test_a_question_that_is_forgotten(
    reader: Progress, broker: Broker, inputs: list[CaughtUp]
) -> None:
    """After a while another client is asked; a late answer still counts."""
    reader.ask(100)
    reader.ask(100 + reader_progress.LOST_MS - 1)
    assert len(broker.asked) == 1
    reader.ask(100 + reader_progress.LOST_MS)
    assert (len(broker.asked), broker.clients) == (2, 2)
    broker.asked[0].set_result(SimpleNamespace(offset=10))
    reader.ask(5_000)
    assert len(broker.asked) == 2
    broker.answer(10)
    assert inputs == [CaughtUp(100), CaughtUp(100 + reader_progress.LOST_MS)]


def test_a_topic_that_has_grown(reader: Progress, broker: Broker, inputs: list[CaughtUp]) -> None:
    """The end of the old partition proves nothing, and the reader has to move."""
    broker.partitions = 6
    reader.ask(100)
    broker.answer(10)
    assert (inputs, broker.grown) == ([], 1)
    reader.stand("muster.assignments", 5, 0, 6)
    reader.ask(200)
    broker.answer(3)
    assert inputs == []
    reader.read_to(3)
    assert inputs == [CaughtUp(200)]
