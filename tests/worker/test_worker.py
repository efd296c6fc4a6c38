"""`Worker` on a real wire (librdkafka's mock cluster), a scripted coordinator at the other end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Message
from support.mock_kafka import QUICK, mock_kafka
from support.scripted_coordinator import ScriptedCoordinator, eventually
from support.waiting import PATIENCE_S

from muster import Worker
from muster.protocol.errors import ConfigError
from muster.protocol.events import Heartbeat, Join, Lag, Leave, Report
from muster.protocol.ids import Role, Task
from muster.protocol.records import Fault
from muster.protocol.tasks import Subtopology, TaskSet
from muster.worker import callbacks, kafka
from muster.worker.assignment import Assignment
from muster.worker.clock import boottime_ms
from muster.worker.errors import CallbackFailed, Fenced
from muster.worker.lease import lease_until_ms


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A mock cluster for the whole file; each test has a group of its own."""
    with mock_kafka() as servers:
        yield servers


@pytest.fixture(autouse=True)
def closes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads look more often than in earnest whether they are to end."""
    monkeypatch.setattr(kafka, "WAIT_S", 0.02)


@pytest.fixture
def coordinator(bootstrap: str, request: pytest.FixtureRequest) -> Iterator[ScriptedCoordinator]:
    """A coordinator for a group named after the test."""
    with ScriptedCoordinator(bootstrap, request.node.name) as scripted:
        yield scripted


class Story:
    """Callbacks that write down what was called."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, name: str):
        def called(tasks: tuple[Task, ...], assignment: Assignment) -> None:
            self.lines.append(f"{name} {' '.join(map(str, tasks))} @{assignment.generation}")

        return called


def worker(bootstrap: str, coordinator: ScriptedCoordinator, **more) -> Worker:
    return Worker(group=coordinator.group, bootstrap_servers=bootstrap, config=QUICK, **more)


def test_life_of_a_member(bootstrap: str, coordinator: ScriptedCoordinator) -> None:
    """Join, take, give up, report, leave: callbacks and events come in order."""
    story = Story()
    with worker(
        bootstrap,
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


def test_a_member_id_of_its_own(bootstrap: str, coordinator: ScriptedCoordinator) -> None:
    """Without a name a member takes a random one of 22 characters, and leaves it with its join."""
    with worker(bootstrap, coordinator) as w:
        assert coordinator.wait_for(Join).member == w.member_id
        assert len(w.member_id) == 22


def test_history_is_not_read(bootstrap: str, coordinator: ScriptedCoordinator) -> None:
    """What was written for an older process of the same name gives a new one nothing."""
    story = Story()
    with worker(bootstrap, coordinator, member_id="m") as w:
        old = coordinator.wait_for(Join)
        coordinator.assign(old, ["0_0"])
        eventually(lambda: w.holds("0_0"))
    mark = len(coordinator.events)
    with worker(bootstrap, coordinator, member_id="m", on_assigned=story.assigned) as w:
        join = coordinator.wait_for(Join, after=mark)
        assert join.incarnation != old.incarnation
        coordinator.assign(old, ["0_1"], generation=9)
        coordinator.assign(join, ["0_2"], generation=2)
        eventually(lambda: story.lines == ["assigned 0_2 @2"])
        assert not w.holds("0_1")


def test_learners(bootstrap: str, coordinator: ScriptedCoordinator) -> None:
    """A learner restores, says how far it is and that it is ready, gives way to the active."""
    story = Story()
    with worker(
        bootstrap,
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
        assert report.lags == (Lag(Task("0", 0), 7), Lag(Task("0", 1), 100))
        coordinator.assign(join, standby=["0_1"], generation=2)
        gone = coordinator.wait_for(Report, lambda r: r.revision == 2)
        assert gone.holding.learner == TaskSet()
        coordinator.assign(join, ["0_0"], standby=["0_1"], generation=2)
        eventually(lambda: story.lines[2:] == ["forget 0_0 @2", "assigned 0_0 @2"])


def test_large_assignments(bootstrap: str, coordinator: ScriptedCoordinator) -> None:
    """A record that was split is joined; one that refers to the group's dictionary looks it up."""
    names = coordinator.publish_names(Subtopology("orders-by-customer-and-region" * 20, 50))
    unit = names.units[0].label.removesuffix("_")
    with worker(bootstrap, coordinator) as w:
        join = coordinator.wait_for(Join)
        odd = [f"{unit}_{n}" for n in range(1, 50, 7)]
        coordinator.assign(join, odd, bytes_max=300)
        eventually(lambda: w.assignment is not None and w.assignment.active == TaskSet.of(odd))
        even = [f"{unit}_{n}" for n in range(0, 50, 6)]
        coordinator.assign(join, even, dictionary=names)
        eventually(lambda: w.assignment is not None and w.assignment.active == TaskSet.of(even))
        assert list(w._link._names) == [names.version]


def test_a_worker_that_restores_nothing(bootstrap: str, coordinator: ScriptedCoordinator) -> None:
    """Without on_learn a learner is ready at once: there is nothing to wait for."""
    with worker(bootstrap, coordinator):
        coordinator.assign(coordinator.wait_for(Join), learner=["0_0"])
        assert coordinator.wait_for(Report).holding.ready == TaskSet.of(["0_0"])


def test_callbacks_on_an_event_loop(bootstrap: str, coordinator: ScriptedCoordinator) -> None:
    """In `async with` callbacks run on the loop, coroutines are awaited, leaving too."""
    seen: list[tuple[str, bool]] = []

    async def life() -> None:
        loop = asyncio.get_running_loop()

        async def assigned(tasks: tuple[Task, ...], _: Assignment) -> None:
            await asyncio.sleep(0)
            seen.append((f"assigned {tasks[0]}", asyncio.get_running_loop() is loop))

        def revoked(tasks: tuple[Task, ...], _: Assignment) -> None:
            seen.append((f"revoked {tasks[0]}", asyncio.get_running_loop() is loop))

        async with worker(bootstrap, coordinator, on_assigned=assigned, on_revoked=revoked) as w:
            join = await asyncio.to_thread(coordinator.wait_for, Join)
            coordinator.assign(join, ["0_0"])
            await asyncio.to_thread(eventually, lambda: seen)
            ended = asyncio.create_task(w.ended())
            await asyncio.sleep(0)
            assert not ended.done()
        await ended
        await w.ended()

    asyncio.run(life())
    coordinator.wait_for(Leave)
    assert seen == [("assigned 0_0", True), ("revoked 0_0", True)]


def test_coroutines_need_a_loop(bootstrap: str) -> None:
    """A coroutine callback in a plain `with` is refused, with the way out."""

    async def assigned(tasks: tuple[Task, ...], _: Assignment) -> None: ...

    w = Worker(group="g", bootstrap_servers=bootstrap, on_assigned=assigned)
    with pytest.raises(ConfigError, match="async with"):
        w.start()


def test_a_start_that_fails_is_made_again(
    bootstrap: str, coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """on_assigned that raises is called again; meanwhile other callbacks go on."""
    story, failed = Story(), threading.Event()

    def assigned(tasks: tuple[Task, ...], assignment: Assignment) -> None:
        if str(tasks[0]) == "0_0" and not failed.is_set():
            failed.set()
            raise OSError("disk is full")
        story.assigned(tasks, assignment)

    with worker(bootstrap, coordinator, on_assigned=assigned, on_revoked=story.revoked):
        join = coordinator.wait_for(Join)
        coordinator.assign(join, ["0_0"])
        assert failed.wait(PATIENCE_S)
        eventually(lambda: story.lines == ["assigned 0_0 @1"])
    assert "disk is full" in caplog.text
    assert story.lines == ["assigned 0_0 @1", "revoked 0_0 @1"]


def test_a_start_that_fails_is_given_up_with_its_task(
    bootstrap: str, coordinator: ScriptedCoordinator
) -> None:
    """A task that never started and is taken away is revoked all the same, and not tried again."""
    story, tried = Story(), threading.Event()

    def assigned(tasks: tuple[Task, ...], _: Assignment) -> None:
        tried.set()
        raise OSError("no such table")

    with worker(bootstrap, coordinator, on_assigned=assigned, on_revoked=story.revoked):
        join = coordinator.wait_for(Join)
        coordinator.assign(join, ["0_0"])
        assert tried.wait(PATIENCE_S)
        coordinator.assign(join, [], generation=2)
        coordinator.wait_for(Report, lambda r: r.holding.active == TaskSet())
        tried.clear()
        coordinator.assign(join, ["0_1"], generation=3)
        assert tried.wait(PATIENCE_S)
    assert story.lines == ["revoked 0_0 @2", "revoked 0_1 @3"]


def test_a_stop_that_fails_is_never_reported(
    bootstrap: str, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """on_revoked that keeps raising: no release is reported, nobody leaves, the error comes out."""
    monkeypatch.setattr(callbacks, "STOP_ATTEMPTS", 2)
    story = Story()

    def revoked(tasks: tuple[Task, ...], _: Assignment) -> None:
        raise OSError("cannot stop")

    w = worker(bootstrap, coordinator, on_revoked=revoked, on_lost=story.lost)
    w.start()
    join = coordinator.wait_for(Join)
    coordinator.assign(join, ["0_0", "0_1"])
    eventually(lambda: w.holds("0_0"))
    coordinator.assign(join, ["0_1"], generation=2)
    with pytest.raises(CallbackFailed) as caught:
        w.wait(PATIENCE_S)
    assert caught.value.tasks == ("0_0",)
    assert isinstance(caught.value.__cause__, OSError)
    assert not w.holds("0_1")
    eventually(lambda: story.lines == ["lost 0_0 0_1 @1"])
    w.close()
    assert not [e for e in coordinator.events if isinstance(e, Report | Leave)]


def test_the_coordinator_lets_a_member_go(bootstrap: str, coordinator: ScriptedCoordinator) -> None:
    """A tombstone: everything is lost at once, the member joins anew under another incarnation."""
    story = Story()
    with worker(bootstrap, coordinator, on_assigned=story.assigned, on_lost=story.lost) as w:
        join = coordinator.wait_for(Join)
        coordinator.assign(join, ["0_0"])
        eventually(lambda: story.lines == ["assigned 0_0 @1"])
        coordinator.let_go(w.member_id)
        again = coordinator.wait_for(Join, lambda j: j.incarnation != join.incarnation)
        assert story.lines == ["assigned 0_0 @1", "lost 0_0 @1"]
        coordinator.assign(again, ["0_1"], generation=3)
        eventually(lambda: w.holds("0_1"))


def test_turned_away_for_good(bootstrap: str, coordinator: ScriptedCoordinator) -> None:
    """FENCED_INSTANCE_ID ends the worker: its tasks are lost, the error comes out of `wait`."""
    story = Story()
    w = worker(bootstrap, coordinator, instance_id="i", on_lost=story.lost)
    w.start()
    join = coordinator.wait_for(Join)
    coordinator.assign(join, ["0_0"])
    eventually(lambda: w.holds("0_0"))
    coordinator.assign(join, fault=Fault.FENCED_INSTANCE_ID, message="another process has i")
    with pytest.raises(Fenced, match="another process has i"):
        w.wait(PATIENCE_S)
    assert story.lines == ["lost 0_0 @1"]
    with pytest.raises(Fenced):
        w.__exit__(None, None, None)


@pytest.mark.slow
def test_the_lease_runs_out(bootstrap: str, request: pytest.FixtureRequest) -> None:
    """Heartbeats that Kafka does not take: tasks are lost before the session is over."""
    leases: list[int] = []
    with (
        ScriptedCoordinator(bootstrap, request.node.name, session_timeout_ms=5_000) as coordinator,
        worker(bootstrap, coordinator, on_lease=lambda until_ms, _: leases.append(until_ms)) as w,
    ):
        join = coordinator.wait_for(Join)
        coordinator.assign(join, ["0_0"])
        eventually(lambda: w.holds("0_0"))
        sent = w._link.send
        w._link.send = lambda _: None  # type: ignore[method-assign]  # a broker that swallows all
        silent_ms = boottime_ms()
        eventually(lambda: w.state == "joining")
        assert max(leases) <= lease_until_ms(silent_ms, 5_000)
        assert not w.holds("0_0")
        w._link.send = sent  # type: ignore[method-assign]
        again = coordinator.wait_for(Join, lambda j: j.incarnation != join.incarnation)
        coordinator.assign(again, ["0_0"], generation=2)
        eventually(lambda: w.holds("0_0"))


@pytest.mark.slow
def test_a_reader_that_hangs(bootstrap: str, request: pytest.FixtureRequest) -> None:
    """Heartbeats are acknowledged, records are not read: tasks are lost, the member joins anew."""
    story, hung, let_go = Story(), threading.Event(), threading.Event()
    with (
        ScriptedCoordinator(bootstrap, request.node.name, session_timeout_ms=6_000) as coordinator,
        worker(bootstrap, coordinator, on_assigned=story.assigned, on_lost=story.lost) as w,
    ):
        join = coordinator.wait_for(Join)
        coordinator.assign(join, ["0_0"])
        eventually(lambda: w.holds("0_0"))
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
        # It was heard to the end: the newest heartbeat alone would have kept the lease.
        last = [e for e in coordinator.events[mark:] if isinstance(e, Heartbeat)][-1]
        left = coordinator.wait_for(Leave)
        assert left.origin.at_ms - last.origin.at_ms < coordinator.session_timeout_ms / 2
        let_go.set()
        again = coordinator.wait_for(Join, lambda j: j.incarnation != join.incarnation)
        coordinator.assign(again, ["0_1"], generation=3)
        eventually(lambda: w.holds("0_1"))


def test_loss_does_not_wait_for_a_callback(
    bootstrap: str, coordinator: ScriptedCoordinator
) -> None:
    """on_lost is called beside a callback that hangs; the task of that one gets its own after."""
    story, hang, let_go = Story(), threading.Event(), threading.Event()

    def assigned(tasks: tuple[Task, ...], assignment: Assignment) -> None:
        story.assigned(tasks, assignment)
        if str(tasks[0]) == "0_1":
            hang.set()
            assert let_go.wait(PATIENCE_S)

    with worker(bootstrap, coordinator, on_assigned=assigned, on_lost=story.lost) as w:
        join = coordinator.wait_for(Join)
        coordinator.assign(join, ["0_0"])
        eventually(lambda: len(story.lines) == 1)
        coordinator.assign(join, ["0_0", "0_1"], generation=2)
        assert hang.wait(PATIENCE_S)
        coordinator.assign(join, ["0_0", "0_1", "0_2"], generation=3)
        eventually(lambda: w.holds("0_2"))
        coordinator.let_go(w.member_id)
        eventually(lambda: len(story.lines) == 3)
        assert w.state == "lost"
        let_go.set()
        coordinator.wait_for(Join, lambda j: j.incarnation != join.incarnation)
    assert story.lines == ["assigned 0_0 @1", "assigned 0_1 @2", "lost 0_0 @1", "lost 0_1 @2"]


def test_static_members_leave_for_a_while(bootstrap: str, coordinator: ScriptedCoordinator) -> None:
    """A member with an instance id leaves temporarily, unless it is told otherwise."""
    with worker(bootstrap, coordinator, instance_id="i"):
        coordinator.assign(coordinator.wait_for(Join))
    assert coordinator.wait_for(Leave).temporary
    mark = len(coordinator.events)
    w = worker(bootstrap, coordinator, instance_id="i")
    w.start()
    coordinator.assign(coordinator.wait_for(Join, after=mark))
    w.close(temporary=False)
    assert not coordinator.wait_for(Leave, after=mark).temporary


def test_close_from_a_callback(bootstrap: str, coordinator: ScriptedCoordinator) -> None:
    """A callback may close its own worker; it ends after the callback has returned."""
    w = worker(bootstrap, coordinator, on_assigned=lambda *_: w.close())
    w.start()
    coordinator.assign(coordinator.wait_for(Join), ["0_0"])
    assert w.wait(PATIENCE_S)
    coordinator.wait_for(Leave)


def test_a_broker_that_is_not_there() -> None:
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
    """What cannot be used is a ConfigError that names it."""
    with pytest.raises(ConfigError, match=problem):
        Worker(**{"group": "g", "bootstrap_servers": "127.0.0.1:1", **given})
