"""Callbacks of `Worker`: on threads or a loop, after failures, and while another one hangs."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace

import pytest
from support.state.snapshots import orders
from support.suite.waiting import PATIENCE_S
from support.worker.mock_worker import Story, given, worker
from support.worker.scripted_coordinator import ScriptedCoordinator, eventually

from muster import Worker
from muster.protocol.errors import ConfigError
from muster.protocol.events import Join, Leave, Report
from muster.protocol.ids import GroupId, Task
from muster.protocol.records import GroupGone, no_tasks
from muster.protocol.tasks import TaskSet
from muster.worker import callbacks
from muster.worker.assignment import Assignment
from muster.worker.errors import CallbackFailed

pytestmark = pytest.mark.usefixtures("closes_soon")


def test_callbacks_on_an_event_loop(mock_servers: str, coordinator: ScriptedCoordinator) -> None:
    """In `async with` callbacks run on the loop, and coroutines are awaited, also on leaving."""
    seen: list[tuple[str, bool]] = []

    async def life() -> None:
        loop = asyncio.get_running_loop()

        async def assigned(tasks: tuple[Task, ...], _: Assignment) -> None:
            await asyncio.sleep(0)
            seen.append((f"assigned {tasks[0]}", asyncio.get_running_loop() is loop))

        def revoked(tasks: tuple[Task, ...], _: Assignment) -> None:
            seen.append((f"revoked {tasks[0]}", asyncio.get_running_loop() is loop))

        async with worker(mock_servers, coordinator, on_assigned=assigned, on_revoked=revoked) as w:
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


def test_coroutines_need_a_loop(mock_servers: str) -> None:
    """A coroutine callback in a plain `with` is refused; the error says what to use."""

    async def assigned(tasks: tuple[Task, ...], _: Assignment) -> None: ...

    w = Worker(group="g", bootstrap_servers=mock_servers, on_assigned=assigned)
    with pytest.raises(ConfigError, match="async with"):
        w.start()


def test_awaitables_need_a_loop(
    mock_servers: str, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a plain `with`, a callback that returns a coroutine failed: its tasks are not released."""
    monkeypatch.setattr(callbacks, "STOP_ATTEMPTS", 2)

    async def stop(tasks: tuple[Task, ...]) -> None: ...

    w = worker(mock_servers, coordinator, on_revoked=lambda tasks, _: stop(tasks))
    w.start()
    join = given(w, coordinator, "0_0")
    coordinator.assign(join, [], generation=2)
    with pytest.raises(CallbackFailed) as caught:
        w.wait(PATIENCE_S)
    assert isinstance(caught.value.__cause__, TypeError)
    assert "async with" in str(caught.value.__cause__)
    w.close()
    assert not [e for e in coordinator.events if isinstance(e, Report | Leave)]


def test_a_failed_start_is_repeated(
    mock_servers: str, coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """An on_assigned that raises is called again; meanwhile other callbacks go on."""
    story, failed = Story(), threading.Event()

    def assigned(tasks: tuple[Task, ...], assignment: Assignment) -> None:
        if str(tasks[0]) == "0_0" and not failed.is_set():
            failed.set()
            raise OSError("disk is full")
        story.assigned(tasks, assignment)

    with worker(mock_servers, coordinator, on_assigned=assigned, on_revoked=story.revoked):
        join = coordinator.wait_for(Join)
        coordinator.assign(join, ["0_0"])
        assert failed.wait(PATIENCE_S)
        eventually(lambda: story.lines == ["assigned 0_0 @1"])
    assert "disk is full" in caplog.text
    assert story.lines == ["assigned 0_0 @1", "revoked 0_0 @1"]


def test_one_log_line_per_assignment(
    mock_servers: str, coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """A repeated assignment is logged once; a changed one and the end are logged."""
    caplog.set_level(logging.INFO, "muster.worker")
    with worker(mock_servers, coordinator):
        join = coordinator.wait_for(Join)
        coordinator.assign(join, ["0_0"])
        eventually(lambda: "assigned 1 active" in caplog.text)
        coordinator.assign(join, ["0_0"], report=True)
        coordinator.wait_for(Report)
        coordinator.assign(join, ["0_0", "0_1"], generation=2)
        eventually(lambda: "assigned 2 active" in caplog.text)
    logged = [line for line in caplog.messages if "assigned" in line or "left" in line]
    assert [line.partition(": ")[2] for line in logged] == [
        "assigned 1 active, 0 standby, 0 learner (no news)",
        "assigned 2 active, 0 standby, 0 learner (no news)",
        "has left the group",
    ]


def test_a_group_without_tasks_is_logged_once(
    mock_servers: str, coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker of an unconfigured group logs once which groups exist, and what to do."""
    published = [replace(orders(), group=GroupId(name)) for name in ("configured", "gone")]
    coordinator.publish(*published, GroupGone(group=GroupId("gone")))
    with worker(mock_servers, coordinator):
        join = coordinator.wait_for(Join)
        for report in (False, True):
            coordinator.assign(join, message=no_tasks(coordinator.group), report=report)
        coordinator.wait_for(Report)
        eventually(lambda: "has no tasks" in caplog.text)
    (line,) = [r for r in caplog.records if "no tasks" in r.getMessage()]
    assert line.levelno == logging.WARNING
    assert (
        f"group {coordinator.group!r} has no tasks; configured groups: configured; muster config "
        f"set --group {coordinator.group} --tasks FILE gives it some"
    ) in line.getMessage()


def test_a_callback_that_hangs_is_logged(
    mock_servers: str,
    coordinator: ScriptedCoordinator,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log names the tasks of the callback, and says that the group waits."""
    monkeypatch.setattr(callbacks, "HUNG_S", 0.05)
    go_on = threading.Event()
    with worker(mock_servers, coordinator, on_revoked=lambda *_: go_on.wait(PATIENCE_S)):
        join = coordinator.wait_for(Join)
        coordinator.assign(join, ["0_0", "0_1"])
        coordinator.assign(join, ["0_1"], generation=2)
        wanted = "the callback that is to stop 0_0 has run for"
        eventually(lambda: wanted in caplog.text)
        go_on.set()
        coordinator.wait_for(Report, lambda r: str(r.holding.active) == str(TaskSet.of(["0_1"])))


def test_a_failed_start_is_not_repeated_once_revoked(
    mock_servers: str, coordinator: ScriptedCoordinator
) -> None:
    """A task whose start failed is still revoked with on_revoked, and not started again."""
    story, tried = Story(), threading.Event()

    def assigned(tasks: tuple[Task, ...], _: Assignment) -> None:
        tried.set()
        raise OSError("no such table")

    with worker(mock_servers, coordinator, on_assigned=assigned, on_revoked=story.revoked):
        join = coordinator.wait_for(Join)
        coordinator.assign(join, ["0_0"])
        assert tried.wait(PATIENCE_S)
        coordinator.assign(join, [], generation=2)
        coordinator.wait_for(Report, lambda r: r.holding.active == TaskSet())
        tried.clear()
        coordinator.assign(join, ["0_1"], generation=3)
        assert tried.wait(PATIENCE_S)
    assert story.lines == ["revoked 0_0 @2", "revoked 0_1 @3"]


def test_a_failed_stop_is_not_reported(
    mock_servers: str, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If on_revoked keeps raising, no release and no leave is sent, and the error is raised."""
    monkeypatch.setattr(callbacks, "STOP_ATTEMPTS", 2)
    story = Story()

    def revoked(tasks: tuple[Task, ...], _: Assignment) -> None:
        raise OSError("cannot stop")

    w = worker(mock_servers, coordinator, on_revoked=revoked, on_lost=story.lost)
    w.start()
    join = given(w, coordinator, "0_0", "0_1")
    coordinator.assign(join, ["0_1"], generation=2)
    with pytest.raises(CallbackFailed) as caught:
        w.wait(PATIENCE_S)
    assert caught.value.tasks == ("0_0",)
    assert isinstance(caught.value.__cause__, OSError)
    assert not w.holds("0_1")
    eventually(lambda: story.lines == ["lost 0_0 0_1 @1"])
    w.close()
    assert not [e for e in coordinator.events if isinstance(e, Report | Leave)]


def test_a_task_is_released_before_the_others(
    mock_servers: str, coordinator: ScriptedCoordinator
) -> None:
    """Tasks that `released` names are reported while on_revoked stops the rest; others are ignored.

    Then the callback fails: it is called again with the tasks that have not stopped.
    """
    story, let_go = Story(), threading.Event()

    def revoked(tasks: tuple[Task, ...], assignment: Assignment) -> None:
        story.revoked(tasks, assignment)
        if len(tasks) == 2:
            w.released("0_0", "0_2", "0_9")
            assert let_go.wait(PATIENCE_S)
            raise OSError("not yet")

    with worker(mock_servers, coordinator, on_revoked=revoked) as w:
        join = given(w, coordinator, "0_0", "0_1", "0_2")
        w.released("0_0")
        coordinator.assign(join, ["0_2"], generation=2)
        first = coordinator.wait_for(Report)
        assert first.holding.active == TaskSet.of(["0_1", "0_2"])
        assert first.holding.releasing == TaskSet.of(["0_1"])
        assert (w.holds("0_0"), w.holds("0_1"), w.holds("0_2")) == (False, True, True)
        let_go.set()
        coordinator.wait_for(Report, lambda r: r.holding.active == TaskSet.of(["0_2"]))
        assert story.lines == ["revoked 0_0 0_1 @2", "revoked 0_1 @2"]


@pytest.mark.parametrize("role", ["standby", "learner"])
def test_a_copy_becomes_active(
    mock_servers: str, coordinator: ScriptedCoordinator, role: str
) -> None:
    """on_assigned is called without on_forget; a loss then names the task once."""
    story = Story()
    with worker(
        mock_servers,
        coordinator,
        on_assigned=story.assigned,
        on_learn=story.learn,
        on_forget=story.forget,
        on_lost=story.lost,
    ) as w:
        join = coordinator.wait_for(Join)
        coordinator.assign(join, **{role: ["0_0"]})
        eventually(lambda: story.lines == ["learn 0_0 @1"])
        coordinator.assign(join, ["0_0"], generation=2)
        eventually(lambda: story.lines[1:] == ["assigned 0_0 @2"])
        coordinator.let_go(w.member_id)
        coordinator.wait_for(Join, lambda j: j.incarnation != join.incarnation)
        assert story.lines[2:] == ["lost 0_0 @2"]


def test_on_wanted_names_copies_to_restore_first(
    mock_servers: str, coordinator: ScriptedCoordinator
) -> None:
    """on_wanted follows on_learn; it names each copy once."""
    story = Story()
    calls = {"on_learn": story.learn, "on_forget": story.forget, "on_wanted": story.wanted}
    with worker(mock_servers, coordinator, **calls):
        join = coordinator.wait_for(Join)
        coordinator.assign(join, standby=["0_0", "0_1"], wanted=["0_0"])
        eventually(lambda: len(story.lines) == 2)
        coordinator.assign(join, standby=["0_0"], learner=["0_1"], wanted=["0_0"], generation=2)
        eventually(lambda: len(story.lines) == 3)
    assert story.lines == [
        "learn 0_0 0_1 @1",
        "wanted 0_0 @1",
        "wanted 0_1 @2",
        *sorted(story.lines[3:]),
    ]
    assert sorted(story.lines[3:]) == ["forget 0_0 @2", "forget 0_1 @2"]


def test_a_failed_on_learn_is_not_repeated_once_active(
    mock_servers: str, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed on_learn is repeated only while the task is assigned as a copy."""
    monkeypatch.setattr(callbacks, "pause_s_of", lambda rule, attempt: 0.05)
    tried: list[str] = []

    def learn(tasks: tuple[Task, ...], _: Assignment) -> None:
        tried.append("learn")
        raise OSError("no such topic")

    def assigned(tasks: tuple[Task, ...], _: Assignment) -> None:
        tried.append(f"assigned {tasks[0]}")

    with worker(mock_servers, coordinator, on_assigned=assigned, on_learn=learn):
        join = coordinator.wait_for(Join)
        coordinator.assign(join, standby=["0_0"])
        eventually(lambda: tried.count("learn") > 1)
        coordinator.assign(join, ["0_0"], generation=2)
        eventually(lambda: "assigned 0_0" in tried)
        heard = len(tried)
        coordinator.assign(join, ["0_0", "0_1"], generation=3)
        eventually(lambda: "assigned 0_1" in tried)
        assert "learn" not in tried[heard:]


def test_loss_does_not_wait_for_a_callback(
    mock_servers: str, coordinator: ScriptedCoordinator
) -> None:
    """on_lost does not wait for a hanging on_assigned, whose task gets its own on_lost later."""
    story, hang, let_go = Story(), threading.Event(), threading.Event()

    def assigned(tasks: tuple[Task, ...], assignment: Assignment) -> None:
        story.assigned(tasks, assignment)
        if str(tasks[0]) == "0_1":
            hang.set()
            assert let_go.wait(PATIENCE_S)

    with worker(mock_servers, coordinator, on_assigned=assigned, on_lost=story.lost) as w:
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


def test_close_from_a_callback(mock_servers: str, coordinator: ScriptedCoordinator) -> None:
    """A callback may close its worker, which ends after the callback has returned."""
    w = worker(mock_servers, coordinator, on_assigned=lambda *_: w.close())
    w.start()
    coordinator.assign(coordinator.wait_for(Join), ["0_0"])
    assert w.wait(PATIENCE_S)
    coordinator.wait_for(Leave)
