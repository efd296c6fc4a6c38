"""`Worker` on librdkafka's mock cluster, with a scripted coordinator."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Message
from support.suite.waiting import PATIENCE_S
from support.worker.mock_worker import Story, given, worker
from support.worker.scripted_coordinator import ScriptedCoordinator, eventually

from muster import Worker
from muster.boottime import boottime_ms
from muster.protocol.errors import ConfigError
from muster.protocol.events import Heartbeat, Join, Lag, Leave, Report
from muster.protocol.ids import Role, Task
from muster.protocol.records import Fault
from muster.protocol.tasks import Subtopology, TaskSet
from muster.worker.errors import Fenced, WorkerError
from muster.worker.lease import lease_until_ms
from muster.worker.machine import Machine
from muster.worker.session_steps import mixed63

pytestmark = pytest.mark.usefixtures("closes_soon")


def test_life_of_a_member(mock_servers: str, coordinator: ScriptedCoordinator) -> None:
    """Join, take, release, report, leave: callbacks and events come in order."""
    story = Story()
    with worker(
        mock_servers,
        coordinator,
        member_id="m",
        rack="r1",
        capacity=3,
        tags={"zone": "a"},
        on_assigned=story.assigned,
        on_revoked=story.revoked,
    ) as w:
        join = coordinator.wait_for(Join)
        assert (join.rack, join.capacity, join.tags) == ("r1", 3, (("zone", "a"),))
        coordinator.assign(join, ["0_0", "0_1"])
        eventually(lambda: story.lines == ["assigned 0_0 0_1 @1"])
        assert w.holds("0_0")
        assert not w.holds("0_2")
        coordinator.assign(join, ["0_1"], generation=2, epoch=1)
        report = coordinator.wait_for(Report)
        assert report.holding.active == TaskSet.of(["0_1"])
        assert (report.epoch, report.revision) == (1, 2)
        assert story.lines == ["assigned 0_0 0_1 @1", "revoked 0_0 @2"]
        assert not w.holds("0_0")
        coordinator.wait_for(Heartbeat, lambda h: h.digest == report.holding.digest())
    leave = coordinator.wait_for(Leave)
    assert leave.incarnation == join.incarnation
    assert not leave.temporary
    assert story.lines[2:] == ["revoked 0_1 @2"]
    assert not w.holds("0_1")


def test_a_random_member_id(mock_servers: str, coordinator: ScriptedCoordinator) -> None:
    """Without a name a member uses a random one of 22 characters, also in its join."""
    with worker(mock_servers, coordinator) as w:
        assert coordinator.wait_for(Join).member == w.member_id
        assert len(w.member_id) == 22


def test_history_is_not_read(mock_servers: str, coordinator: ScriptedCoordinator) -> None:
    """Records written for an older process of the same name grant a new one nothing."""
    story = Story()
    with worker(mock_servers, coordinator, member_id="m") as w:
        old = coordinator.wait_for(Join)
        coordinator.assign(old, ["0_0"])
        eventually(lambda: w.holds("0_0"))
    mark = len(coordinator.events)
    with worker(mock_servers, coordinator, member_id="m", on_assigned=story.assigned) as w:
        join = coordinator.wait_for(Join, after=mark)
        assert join.incarnation != old.incarnation
        coordinator.assign(old, ["0_1"], generation=9)
        coordinator.assign(join, ["0_2"], generation=2)
        eventually(lambda: story.lines == ["assigned 0_2 @2"])
        assert not w.holds("0_1")


def test_learners(mock_servers: str, coordinator: ScriptedCoordinator) -> None:
    """A learner restores, reports its lag and that it is ready, and becomes the active."""
    story = Story()
    with worker(
        mock_servers,
        coordinator,
        on_assigned=story.assigned,
        on_learn=story.learn,
        on_forget=story.forget,
    ) as w:
        join = coordinator.wait_for(Join)
        coordinator.assign(join, learner=["0_0"], standby=["0_1"])
        eventually(lambda: len(story.lines) == 2)
        assert sorted(story.lines) == ["learn 0_0 @1", "learn 0_1 @1"]
        assert w.assignment is not None
        assert w.assignment.role_of(Task("0", 0)) is Role.LEARNER
        w.lag({"0_0": 7, "0_1": 100})
        w.ready("0_0")
        report = coordinator.wait_for(Report, lambda r: len(r.holding.ready) > 0)
        assert report.holding.ready == TaskSet.of(["0_0"])
        assert report.lags == (Lag(Task("0", 0), 0), Lag(Task("0", 1), 100))
        coordinator.assign(join, standby=["0_1"], generation=2)
        gone = coordinator.wait_for(Report, lambda r: r.revision == 2)
        assert gone.holding.learner == TaskSet()
        coordinator.assign(join, ["0_0"], standby=["0_1"], generation=2)
        eventually(lambda: story.lines[2:] == ["forget 0_0 @2", "assigned 0_0 @2"])


def test_lags_that_events_cannot_have(mock_servers: str, coordinator: ScriptedCoordinator) -> None:
    """A lag below 0 is reported as 0; what is no whole number is refused, with the others."""
    w = worker(mock_servers, coordinator)
    for lag in (1.5, None, "7", 2**63):
        with pytest.raises(ConfigError, match=r"lag of 0_1: .* whole number below 2\*\*63"):
            w.lag({"0_0": 3, "0_1": lag})  # type: ignore[dict-item]  # what the test is about
    w.lag({"0_0": -1, "0_1": 2**63 - 1})
    with w:
        join = coordinator.wait_for(Join)
    assert join.lags == (Lag(Task("0", 0), 0), Lag(Task("0", 1), 2**63 - 1))


@pytest.mark.parametrize("beside", [0, 1])
def test_large_assignments(
    mock_servers: str, coordinator: ScriptedCoordinator, beside: int
) -> None:
    """A split record is joined; for a reference to the group's dictionary, that is read.

    It is also found in the partition where it was before the topic had more partitions.
    """
    unit = Subtopology("orders-by-customer-and-region" * 20, 50)
    names = coordinator.publish_names(unit, beside=beside)
    name = unit.name
    with worker(mock_servers, coordinator) as w:
        join = coordinator.wait_for(Join)
        odd = [f"{name}_{n}" for n in range(1, 50, 7)]
        coordinator.assign(join, odd, bytes_max=300)
        eventually(lambda: w.assignment is not None and w.assignment.active == TaskSet.of(odd))
        even = [f"{name}_{n}" for n in range(0, 50, 6)]
        coordinator.assign(join, even, dictionary=names)
        eventually(lambda: w.assignment is not None and w.assignment.active == TaskSet.of(even))
        assert list(w._link._names) == [names.version]


def test_a_worker_that_restores_nothing(
    mock_servers: str, coordinator: ScriptedCoordinator
) -> None:
    """Without on_learn every copy is ready at once."""
    copies = TaskSet.of(["0_0", "0_1"])
    with worker(mock_servers, coordinator):
        coordinator.assign(coordinator.wait_for(Join), learner=["0_0"], standby=["0_1"])
        coordinator.wait_for(Report, lambda r: r.holding.ready == copies)


def test_a_record_that_cannot_be_read(
    mock_servers: str, coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """It may revoke a task: until a newer record is read, the reader has not caught up."""
    story = Story()
    coordinator.session_timeout_ms = 2_000
    with worker(mock_servers, coordinator, on_assigned=story.assigned, on_lost=story.lost) as w:
        join = given(w, coordinator, "0_0")
        coordinator.garble(w.member_id)
        again = coordinator.wait_for(Join, lambda j: j.incarnation != join.incarnation)
        assert story.lines == ["assigned 0_0 @1", "lost 0_0 @1"]
        coordinator.assign(again, ["0_1"], generation=2)
        eventually(lambda: w.holds("0_1"))
        heard = len(coordinator.events)
        coordinator.wait_for(Heartbeat, after=heard + 12)
        assert w.holds("0_1")
    assert "cannot be read" in caplog.text
    assert "assignments could not be read in time" in caplog.text


def test_a_tombstone_ends_the_session(
    mock_servers: str, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a tombstone all tasks are lost, and the member joins under another incarnation.

    Random bits of that moment decide it: another process that was restored from the same snapshot
    of the machine must not get the same one.
    """
    seeds = iter((5, 60))
    monkeypatch.setattr(Machine, "seed", lambda _: next(seeds))
    story = Story()
    with worker(mock_servers, coordinator, on_assigned=story.assigned, on_lost=story.lost) as w:
        join = coordinator.wait_for(Join)
        coordinator.assign(join, ["0_0"])
        eventually(lambda: story.lines == ["assigned 0_0 @1"])
        coordinator.let_go(w.member_id)
        again = coordinator.wait_for(Join, lambda j: j.incarnation != join.incarnation)
        assert (join.incarnation, again.incarnation) == (mixed63(5), mixed63(60))
        assert story.lines == ["assigned 0_0 @1", "lost 0_0 @1"]
        coordinator.assign(again, ["0_1"], generation=3)
        eventually(lambda: w.holds("0_1"))


def test_refused_for_good(mock_servers: str, coordinator: ScriptedCoordinator) -> None:
    """FENCED_INSTANCE_ID ends the worker: its tasks are lost, and `wait` raises the error."""
    story = Story()
    w = worker(mock_servers, coordinator, instance_id="i", on_lost=story.lost)
    w.start()
    join = given(w, coordinator, "0_0")
    coordinator.assign(join, fault=Fault.FENCED_INSTANCE_ID, message="another process has i")
    with pytest.raises(Fenced, match="another process has i"):
        w.wait(PATIENCE_S)
    assert story.lines == ["lost 0_0 @1"]
    with pytest.raises(Fenced):
        w.__exit__(None, None, None)


def test_a_worker_that_fails(mock_servers: str, coordinator: ScriptedCoordinator) -> None:
    """If its loop raises, it loses its tasks; `wait` raises the error, and no leave is sent."""
    story, broken = Story(), threading.Event()

    def leased(until_ms: int, stop_ms: int) -> None:
        if broken.is_set():
            raise OSError("the pipe is closed")

    w = worker(
        mock_servers, coordinator, on_lease=leased, on_assigned=story.assigned, on_lost=story.lost
    )
    w.start()
    given(w, coordinator, "0_0")
    eventually(lambda: story.lines == ["assigned 0_0 @1"])
    broken.set()
    with pytest.raises(WorkerError, match="the pipe is closed"):
        w.wait(PATIENCE_S)
    assert (w.state, w.assignment, w.holds("0_0")) == ("ended", None, False)
    w.close()
    assert story.lines == ["assigned 0_0 @1", "lost 0_0 @1"]
    assert not [e for e in coordinator.events if isinstance(e, Leave)]


@pytest.mark.slow
def test_the_lease_runs_out(mock_servers: str, request: pytest.FixtureRequest) -> None:
    """If Kafka takes no heartbeats, tasks are lost before the session ends."""
    leases: list[int] = []
    with (
        ScriptedCoordinator(
            mock_servers, request.node.name, session_timeout_ms=5_000
        ) as coordinator,
        worker(
            mock_servers, coordinator, on_lease=lambda until_ms, _: leases.append(until_ms)
        ) as w,
    ):
        join = given(w, coordinator, "0_0")
        sent = w._link.send
        w._link.send = lambda _: None  # type: ignore[method-assign]  # as if the broker answered nothing
        silent_ms = boottime_ms()
        eventually(lambda: w.state == "joining")
        assert max(leases) <= lease_until_ms(silent_ms, 5_000)
        assert not w.holds("0_0")
        w._link.send = sent  # type: ignore[method-assign]
        again = coordinator.wait_for(Join, lambda j: j.incarnation != join.incarnation)
        coordinator.assign(again, ["0_0"], generation=2)
        eventually(lambda: w.holds("0_0"))


@pytest.mark.slow
def test_a_reader_that_hangs(mock_servers: str, request: pytest.FixtureRequest) -> None:
    """If heartbeats are acknowledged but no record is read, tasks are lost; the member rejoins."""
    story, hung, let_go = Story(), threading.Event(), threading.Event()
    with (
        ScriptedCoordinator(
            mock_servers, request.node.name, session_timeout_ms=6_000
        ) as coordinator,
        worker(mock_servers, coordinator, on_assigned=story.assigned, on_lost=story.lost) as w,
    ):
        join = given(w, coordinator, "0_0")
        take = w._link._take

        def hang(message: Message) -> None:
            hung.set()
            assert let_go.wait(PATIENCE_S)
            take(message)

        w._link._take = hang  # type: ignore[method-assign]
        coordinator.assign(join, [], generation=2)
        assert hung.wait(PATIENCE_S)
        mark = len(coordinator.events)
        eventually(lambda: story.lines == ["assigned 0_0 @1", "lost 0_0 @1"])
        assert not w.holds("0_0")
        # Its heartbeats were acknowledged until then: they alone would have kept the lease.
        last = [e for e in coordinator.events[mark:] if isinstance(e, Heartbeat)][-1]
        left = coordinator.wait_for(Leave)
        assert left.origin.at_ms - last.origin.at_ms < coordinator.session_timeout_ms / 2
        let_go.set()
        again = coordinator.wait_for(Join, lambda j: j.incarnation != join.incarnation)
        coordinator.assign(again, ["0_1"], generation=3)
        eventually(lambda: w.holds("0_1"))


def test_static_members_leave_temporarily(
    mock_servers: str, coordinator: ScriptedCoordinator
) -> None:
    """A member with an instance id leaves temporarily, unless `close` says otherwise."""
    with worker(mock_servers, coordinator, instance_id="i"):
        coordinator.assign(coordinator.wait_for(Join))
    assert coordinator.wait_for(Leave).temporary
    mark = len(coordinator.events)
    w = worker(mock_servers, coordinator, instance_id="i")
    w.start()
    coordinator.assign(coordinator.wait_for(Join, after=mark))
    w.close(temporary=False)
    assert not coordinator.wait_for(Leave, after=mark).temporary


def test_without_a_broker() -> None:
    """Without a broker a worker waits, and can be closed at any time."""
    w = Worker(group="g", bootstrap_servers="127.0.0.1:1")
    w.start()
    assert w.state == "new"
    w.close()
    assert w.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"group": ""}, "group"),
        ({"group": "a|b"}, "group"),
        ({"member_id": "a|b"}, "member_id"),
        ({"capacity": 0}, "capacity"),
        ({"config": {"ssl.truststore.location": "x.jks"}}, "ssl.truststore.type"),
        ({"config": {"no.such.setting": "1"}}, "no.such.setting"),
    ],
)
def test_bad_arguments_are_named(given: dict, problem: str) -> None:
    """A bad argument is a ConfigError that names it."""
    with pytest.raises(ConfigError, match=problem):
        Worker(**{"group": "g", "bootstrap_servers": "127.0.0.1:1", **given})
