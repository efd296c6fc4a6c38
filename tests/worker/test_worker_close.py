"""Leaving the group with `close` and `async with`, wherever they are called."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.suite.waiting import PATIENCE_S
from support.worker.mock_worker import given, worker
from support.worker.scripted_coordinator import ScriptedCoordinator

from muster import Worker
from muster.protocol.events import Join, Leave
from muster.protocol.ids import Task
from muster.worker import worker as worker_module
from muster.worker.assignment import Assignment
from muster.worker.errors import WorkerError
from muster.worker.session_messages import End

pytestmark = pytest.mark.usefixtures("closes_soon")


def test_async_with_needs_no_free_thread(
    mock_servers: str, coordinator: ScriptedCoordinator
) -> None:
    """Tasks that occupy every thread of the loop's executor are revoked on leaving the block."""
    tasks = ("0_0", "0_1")
    stops = {task: threading.Event() for task in tasks}
    running: dict[str, asyncio.Future[bool]] = {}

    async def assigned(given_tasks: tuple[Task, ...], _: Assignment) -> None:
        for task in map(str, given_tasks):
            waiting = asyncio.to_thread(stops[task].wait, PATIENCE_S)
            running[task] = asyncio.ensure_future(waiting)

    async def revoked(given_tasks: tuple[Task, ...], _: Assignment) -> None:
        for task in map(str, given_tasks):
            stops[task].set()
            assert await running[task], "on_revoked came only when the task had given up"

    async def life() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(len(tasks)))
        with ThreadPoolExecutor(1) as beside:
            async with worker(
                mock_servers, coordinator, on_assigned=assigned, on_revoked=revoked
            ) as w:
                await loop.run_in_executor(beside, given, w, coordinator, *tasks)
                while len(running) < len(tasks):
                    await asyncio.sleep(0.01)

    asyncio.run(life())
    coordinator.wait_for(Leave)


def test_async_with_abandons_callbacks_that_hang(
    mock_servers: str,
    coordinator: ScriptedCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """When on_revoked does not return, the block is left all the same, without a leave."""
    monkeypatch.setattr(worker_module, "CLOSE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(worker_module, "FLUSH_S", 0.2)

    async def revoked(tasks: tuple[Task, ...], _: Assignment) -> None:
        await asyncio.Event().wait()

    async def life() -> str:
        async with worker(mock_servers, coordinator, on_revoked=revoked) as w:
            await asyncio.to_thread(given, w, coordinator, "0_0")
        return w.state

    asyncio.run(life())
    assert "closing without a leave, so the session expires" in caplog.text
    assert not [event for event in coordinator.events if isinstance(event, Leave)]


def test_close_in_on_lost(mock_servers: str, coordinator: ScriptedCoordinator) -> None:
    """It returns at once; when on_lost has returned, the worker leaves and ends."""
    states: list[str] = []

    def lost(tasks: tuple[Task, ...], _: Assignment) -> None:
        w.close()
        states.append(w.state)

    w = worker(mock_servers, coordinator, on_lost=lost)
    w.start()
    given(w, coordinator, "0_0")
    coordinator.let_go(w.member_id)
    assert w.wait(PATIENCE_S)
    assert states == ["lost"]


def test_close_in_a_coroutine(mock_servers: str, coordinator: ScriptedCoordinator) -> None:
    """A coroutine callback may close its worker, which revokes the tasks after it has returned."""
    seen: list[str] = []

    async def assigned(tasks: tuple[Task, ...], _: Assignment) -> None:
        w.close()
        seen.append("assigned")

    async def revoked(tasks: tuple[Task, ...], _: Assignment) -> None:
        seen.append("revoked")

    w = worker(mock_servers, coordinator, on_assigned=assigned, on_revoked=revoked)

    async def life() -> None:
        async with w:
            join = await asyncio.to_thread(coordinator.wait_for, Join)
            coordinator.assign(join, ["0_0"])
            await w.ended()

    asyncio.run(life())
    coordinator.wait_for(Leave)
    assert seen == ["assigned", "revoked"]


async def on_the_event_loop(w: Worker) -> None:
    """Called by the callbacks' loop, such as a signal's handler, it asks for the leave."""
    asyncio.get_running_loop().call_soon(w.close)
    await w.ended()


async def in_another_thread(w: Worker) -> None:
    """Beside the loop that runs the callbacks, it returns when everything has stopped."""
    await asyncio.to_thread(w.close)


@pytest.mark.parametrize("close", [on_the_event_loop, in_another_thread])
def test_close_outside_a_callback(
    mock_servers: str, coordinator: ScriptedCoordinator, close: Callable[[Worker], Awaitable[None]]
) -> None:
    """The tasks are revoked, and the worker leaves and ends."""
    seen: list[str] = []

    async def revoked(tasks: tuple[Task, ...], _: Assignment) -> None:
        seen.append("revoked")

    async def life() -> None:
        async with worker(mock_servers, coordinator, on_revoked=revoked) as w:
            await asyncio.to_thread(given, w, coordinator, "0_0")
            await close(w)
            assert (seen, w.state) == (["revoked"], "ended")

    asyncio.run(life())
    coordinator.wait_for(Leave)


def test_a_failure_while_the_worker_leaves_is_kept(
    mock_servers: str, coordinator: ScriptedCoordinator
) -> None:
    """A copy's callback that fails for good just before the leave is not forgotten with it."""
    w = worker(mock_servers, coordinator)
    w._fail(OSError("the disk is full"))
    w._do(End(None, ""))
    with pytest.raises(WorkerError, match="the disk is full"), w:
        pass
