"""`Worker` calls its user: on threads or a loop, again when it failed, beside a call that hangs."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from support.mock_worker import Story, worker
from support.scripted_coordinator import ScriptedCoordinator, eventually
from support.waiting import PATIENCE_S

from muster import Worker
from muster.protocol.errors import ConfigError
from muster.protocol.events import Join, Leave, Report
from muster.protocol.ids import Task
from muster.protocol.tasks import TaskSet
from muster.worker import callbacks
from muster.worker.assignment import Assignment
from muster.worker.errors import CallbackFailed

pytestmark = pytest.mark.usefixtures("closes_soon")


def test_callbacks_on_an_event_loop(mock_servers: str, coordinator: ScriptedCoordinator) -> None:
    """In `async with` callbacks run on the loop, coroutines are awaited, leaving too."""
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
    """A coroutine callback in a plain `with` is refused, with the way out."""

    async def assigned(tasks: tuple[Task, ...], _: Assignment) -> None: ...

    w = Worker(group="g", bootstrap_servers=mock_servers, on_assigned=assigned)
    with pytest.raises(ConfigError, match="async with"):
        w.start()


def test_a_start_that_fails_is_made_again(
    mock_servers: str, coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """on_assigned that raises is called again; meanwhile other callbacks go on."""
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


def test_a_log_line_an_assignment(
    mock_servers: str, coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """What comes again, with a question, is told once; a change is told, and so is the end."""
    caplog.set_level(logging.INFO, "muster.worker")
    with worker(mock_servers, coordinator):
        join = coordinator.wait_for(Join)
        coordinator.assign(join, ["0_0"])
        eventually(lambda: "assigned 1 active" in caplog.text)
        coordinator.assign(join, ["0_0"], report=True)
        coordinator.wait_for(Report)
        coordinator.assign(join, ["0_0", "0_1"], generation=2)
        eventually(lambda: "assigned 2 active" in caplog.text)
    told = [line for line in caplog.messages if "assigned" in line or "left" in line]
    assert [line.partition(": ")[2] for line in told] == [
        "assigned 1 active, 0 standby, 0 learner (no news)",
        "assigned 2 active, 0 standby, 0 learner (no news)",
        "has left the group",
    ]


def test_a_start_that_fails_is_given_up_with_its_task(
    mock_servers: str, coordinator: ScriptedCoordinator
) -> None:
    """A task that never started and is taken away is revoked all the same, and not tried again."""
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


def test_a_stop_that_fails_is_never_reported(
    mock_servers: str, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """on_revoked that keeps raising: no release is reported, nobody leaves, the error comes out."""
    monkeypatch.setattr(callbacks, "STOP_ATTEMPTS", 2)
    story = Story()

    def revoked(tasks: tuple[Task, ...], _: Assignment) -> None:
        raise OSError("cannot stop")

    w = worker(mock_servers, coordinator, on_revoked=revoked, on_lost=story.lost)
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


def test_loss_does_not_wait_for_a_callback(
    mock_servers: str, coordinator: ScriptedCoordinator
) -> None:
    """on_lost is called beside a callback that hangs; the task of that one gets its own after."""
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
    """A callback may close its own worker; it ends after the callback has returned."""
    w = worker(mock_servers, coordinator, on_assigned=lambda *_: w.close())
    w.start()
    coordinator.assign(coordinator.wait_for(Join), ["0_0"])
    assert w.wait(PATIENCE_S)
    coordinator.wait_for(Leave)
