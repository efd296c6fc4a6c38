"""Lags that the worker computes: positions from the user, end offsets from Kafka."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from support.kafka.fake_admin import fake_cluster
from support.suite.waiting import PATIENCE_S
from support.worker.mock_worker import worker
from support.worker.scripted_coordinator import ScriptedCoordinator, eventually
from support.worker.talk import Talk

from muster.protocol.events import Join, Lag
from muster.protocol.ids import Task
from muster.protocol.tasks import TaskSet
from muster.worker import changelog
from muster.worker.changelog import ChangelogLags
from muster.worker.session_messages import LagsKnown

CHANGELOG = "muster.lag"
"""A topic of the mock cluster."""
ENDS = (10, 7)


@pytest.fixture(scope="module")
def written(mock_servers: str) -> str:
    """A changelog with records in two partitions."""
    producer = Producer({"bootstrap.servers": mock_servers})
    for partition, count in enumerate(ENDS):
        for _ in range(count):
            producer.produce(CHANGELOG, b"", partition=partition)
    assert producer.flush(10) == 0
    return mock_servers


class Restoring:
    """Positions set by a test, and the lags that were posted."""

    def __init__(self) -> None:
        self.at: dict[str, dict[tuple[str, int], int] | Exception | None] = {}
        self.posted: list[LagsKnown] = []

    def position(self, task: Task) -> dict[tuple[str, int], int] | None:
        """The positions that the user's callback returns."""
        at = self.at.get(str(task))
        if isinstance(at, Exception):
            raise at
        return at

    @property
    def newest(self) -> dict[str, int]:
        """The newest lag of each task."""
        return {str(lag.task): lag.offsets for restored in self.posted for lag in restored.lags}


@pytest.fixture
def restoring() -> Restoring:
    """Nothing is restored yet."""
    return Restoring()


@pytest.fixture
def lags(
    written: str, restoring: Restoring, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ChangelogLags]:
    """A `ChangelogLags` that computes lags often."""
    monkeypatch.setattr(changelog, "SOON_S", 0.02)
    monkeypatch.setattr(changelog, "RARELY_S", 0.05)
    made = ChangelogLags(
        {"bootstrap.servers": written}, restoring.position, TaskSet(), restoring.posted.append
    )
    made.open(lambda: None)
    yield made
    made.close()


def test_a_copy_that_catches_up(lags: ChangelogLags, restoring: Restoring) -> None:
    """Its lag is the sum over its partitions, posted again only when it has changed."""
    restoring.at["0_0"] = {(CHANGELOG, 0): 4, (CHANGELOG, 1): 0}
    restoring.at["0_1"] = OSError("the disk is away")
    lags.assigned(Talk().record(standby=["0_0"], learner=["0_1"]))
    eventually(lambda: restoring.newest == {"0_0": 13})
    restoring.at["0_0"] = {(CHANGELOG, 0): 10, (CHANGELOG, 1): 9}
    restoring.at["0_1"] = {(CHANGELOG, 1): 6}
    eventually(lambda: restoring.newest == {"0_0": 0, "0_1": 1})
    assert [lag.offsets for r in restoring.posted for lag in r.lags if str(lag.task) == "0_0"] == [
        13,
        0,
    ]


def test_a_changelog_that_does_not_answer(
    lags: ChangelogLags, restoring: Restoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no lag, and the others have theirs; after an election a new client asks."""
    places = [("a-changelog", 0), ("b-changelog", 0), ("c-changelog", 0)]
    cluster = fake_cluster(monkeypatch, dict.fromkeys(places, 9))
    cluster.leaderless.add(places[1])
    for number, place in enumerate(places):
        restoring.at[f"0_{number}"] = {place: 0}
    lags.assigned(Talk().record(learner=["0_0", "0_1", "0_2"]))
    eventually(lambda: restoring.newest == {"0_0": 9, "0_2": 9})
    cluster.elect(*places)
    cluster.leaderless.clear()
    eventually(lambda: restoring.newest == {"0_0": 9, "0_1": 9, "0_2": 9})


def test_an_active_that_still_restores(lags: ChangelogLags, restoring: Restoring) -> None:
    """Its lag is posted while it is behind; once it has caught up, no lag is computed."""
    restoring.at["0_0"] = {(CHANGELOG, 0): 1}
    restoring.at["0_1"] = {(CHANGELOG, 0): 10}
    lags.assigned(Talk().record("0_0", "0_1", "0_2"))
    eventually(lambda: restoring.newest == {"0_0": 9})
    restoring.at["0_1"] = {(CHANGELOG, 0): 2}  # its own writes move the end
    restoring.at["0_0"] = None
    eventually(lambda: restoring.newest == {"0_0": 0})
    assert all(str(lag.task) == "0_0" for r in restoring.posted for lag in r.lags)


def test_the_first_join_has_lags_of_the_disk(
    written: str, coordinator: ScriptedCoordinator, restoring: Restoring
) -> None:
    """The first join waits for the lags of copies that an earlier process left."""
    restoring.at["0_7"] = {(CHANGELOG, 1): 2}
    with worker(
        written, coordinator, lag_from_changelog=restoring.position, on_disk=["0_7", "0_8"]
    ):
        assert coordinator.wait_for(Join).lags == (Lag(Task("0", 7), 5),)


def test_the_first_join_waits_for_the_broker(
    written: str,
    coordinator: ScriptedCoordinator,
    restoring: Restoring,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the broker does not answer at first, the first join still has the lags."""
    answer = ChangelogLags._ends
    answers: list[dict[tuple[str, int], int]] = []

    def slow(self: ChangelogLags, places: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
        answers.append(answer(self, places) if answers else {})
        return answers[-1]

    monkeypatch.setattr(ChangelogLags, "_ends", slow)
    monkeypatch.setattr(changelog, "SOON_S", 0.02)
    restoring.at["0_7"] = {(CHANGELOG, 1): 2}
    with worker(written, coordinator, lag_from_changelog=restoring.position, on_disk=["0_7"]):
        assert coordinator.wait_for(Join).lags == (Lag(Task("0", 7), 5),), answers


@pytest.mark.parametrize(
    "wrong",
    [
        {(CHANGELOG, 0): None},
        {(CHANGELOG, 0): 1.5},
        {(CHANGELOG, None): 1},
        {(CHANGELOG, 2**40): 1},
        {CHANGELOG: 1},
        [(CHANGELOG, 0)],
        OSError("the disk is away"),
    ],
)
def test_positions_that_are_none(
    written: str,
    restoring: Restoring,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wrong: object,
) -> None:
    """The log says once what is wrong; the worker may join, and lags go on being computed."""
    monkeypatch.setattr(changelog, "SOON_S", 0.02)
    restoring.at["0_7"] = wrong  # type: ignore[assignment]  # what the test is about
    asked: list[Task] = []
    opened = threading.Event()

    def position(task: Task) -> dict[tuple[str, int], int] | None:
        asked.append(task)
        return restoring.position(task)

    lags = ChangelogLags(
        {"bootstrap.servers": written}, position, TaskSet.of(["0_7"]), restoring.posted.append
    )
    lags.open(opened.set)
    try:
        assert opened.wait(PATIENCE_S)
        lags.assigned(Talk().record(learner=["0_7"]))
        eventually(lambda: len(asked) > 3)
        assert restoring.newest == {}
        restoring.at["0_7"] = {(CHANGELOG, 1): 6}
        eventually(lambda: restoring.newest == {"0_7": 1})
    finally:
        lags.close()
    logged = [r for r in caplog.records if r.name == changelog.log.name]  # not of another worker
    assert len([record for record in logged if record.levelname == "ERROR"]) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_function_that_ends_the_thread(written: str, coordinator: ScriptedCoordinator) -> None:
    """The worker joins all the same."""

    def position(task: Task) -> None:
        raise SystemExit

    with worker(written, coordinator, lag_from_changelog=position, on_disk=["0_7"]):
        coordinator.wait_for(Join)
