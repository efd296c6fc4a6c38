"""What `Worker` answers to arguments and calls that cannot be right."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from support.suite.waiting import PATIENCE_S

from muster import Task, Worker
from muster.protocol.errors import ConfigError
from muster.testing import Environment
from muster.worker.assignment import Assignment
from muster.worker.errors import WorkerError
from muster.worker.worker_end import Ending

NO_BROKER = "127.0.0.1:1"


class AsyncCall:
    """An object that is called as a coroutine function."""

    async def __call__(self, tasks: tuple[Task, ...], assignment: Assignment) -> None:
        """Do nothing."""


async def coroutine(*_: object) -> None: ...


def new(**given: Any) -> Worker:
    """A worker that never reaches Kafka."""
    return Worker(**{"group": "g", "bootstrap_servers": NO_BROKER, **given})


@pytest.fixture
def started() -> Iterator[Worker]:
    """A worker that waits for Kafka."""
    with new() as worker:
        yield worker


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ({"group": None}, "group: no value; expected a text"),
        ({"member_id": 5}, "member_id: 5 .* a text"),
        ({"bootstrap_servers": ["a:1", "b:1"]}, "bootstrap_servers: .* a text"),
        ({"instance_id": 7}, "instance_id: 7 .* a text"),
        ({"rack": "a\nb"}, "rack: .* printing characters"),
        ({"rack": "r" * 600}, "rack: .* at most 512"),
        ({"capacity": "2"}, "capacity: '2' .* a whole number from 1"),
        ({"capacity": 1.5}, "capacity: 1.5 .* a whole number from 1"),
        ({"capacity": 2**31}, "capacity: .* to 2147483647"),
        ({"rebalance_timeout_ms": -1}, "rebalance_timeout_ms: -1 .* a whole number from 0"),
        ({"rebalance_timeout_ms": "5000"}, "rebalance_timeout_ms: '5000' .* a whole number"),
        ({"tags": {"zone": 1}}, "tags: 1 .* a text"),
        ({"tags": {"zone": "a\n"}}, "tags: .* printing characters"),
        ({"tags": ["zone"]}, "tags: .* a mapping"),
        ({"topics": "orders"}, r"topics: 'orders' .* a list .*: \['orders'\]"),
        ({"topics": [1]}, "topics: 1 .* a text"),
        ({"static": "c1"}, r"static: 'c1' .* a list .*: \['c1'\]"),
        ({"protocols": "eager"}, r"protocols: 'eager' .* a list .*: \['eager'\]"),
        ({"on_disk": "orders_3"}, "on_disk: 'orders_3' .* tasks or their ids"),
        ({"on_disk": [3]}, "on_disk: .* tasks or their ids"),
        ({"on_assigned": "start"}, r"on_assigned: 'start' .* a function of \(tasks, assignment\)"),
        ({"on_revoked": lambda tasks: None}, r"on_revoked: .*, not of \(tasks\)"),
        ({"on_lease": coroutine}, r"on_lease: .* a function of \(until_ms, stop_ms\) that is not"),
        ({"lag_from_changelog": coroutine}, r"lag_from_changelog: .* that is not `async`"),
        ({"lag_from_changelog": {}}, r"lag_from_changelog: {} .* a function of \(task\)"),
    ],
)
def test_arguments_that_cannot_be_right(given: dict[str, Any], right: str) -> None:
    """The error names the argument, and says what would be right."""
    with pytest.raises(ConfigError, match=right):
        new(**given)


def test_callbacks_that_can_be_called() -> None:
    """Functions of C, which may not say what they take, and further parameters are accepted."""
    for callback in (print, dict, lambda *_: None, lambda tasks, assignment, more=1: None):
        new(on_assigned=callback)


def test_an_object_that_is_called_as_a_coroutine_function() -> None:
    """It needs an event loop: a plain start refuses it."""
    with pytest.raises(ConfigError, match="async with"):
        new(on_revoked=AsyncCall()).start()


def test_what_is_no_task_is_refused_where_it_is_given(started: Worker) -> None:
    """The caller gets the error; the worker goes on."""
    wrong: Any
    for wrong in (("orders", 3), 3, None, ""):
        for call in (started.ready, started.released, lambda task: started.lag({task: 1})):
            with pytest.raises(ConfigError, match="tasks or their ids"):
                call(wrong)
    started.ready("orders_3")
    assert not started.wait(0)
    assert started.error is None


def test_the_wait_of_a_worker_that_was_not_started() -> None:
    """It would never end."""
    worker = new()
    with pytest.raises(WorkerError, match="not started"):
        worker.wait()
    with pytest.raises(WorkerError, match="not started"):
        asyncio.run(worker.ended())


def test_the_wait_on_the_event_loop_of_the_callbacks() -> None:
    """It would never end; a wait with a limit is a question."""

    async def life() -> None:
        async with new() as worker:
            with pytest.raises(WorkerError, match=r"await worker\.ended\(\)"):
                worker.wait()
            assert not worker.wait(0)

    asyncio.run(life())


def test_the_wait_in_a_callback() -> None:
    """It would never end."""
    said: list[str] = []

    def assigned(*_: object) -> None:
        try:
            env.workers["W1"].wait()
        except WorkerError as error:
            said.append(str(error))

    with Environment(tasks={"orders": 1}) as env:
        env.worker("W1", on_assigned=assigned)
        env.settle()
    assert len(said) == 1
    assert "let callbacks return" in said[0]


def test_tasks_whose_start_ended_with_an_exit_are_lost() -> None:
    """A callback that raises SystemExit fails the worker, and on_lost names its tasks as well."""
    lost: list[str] = []

    def assigned(*_: object) -> None:
        raise SystemExit(1)

    with Environment(tasks={"orders": 2}) as env:
        worker = env.worker(
            "W1", on_assigned=assigned, on_lost=lambda tasks, _: lost.extend(map(str, tasks))
        )
        env.advance(60)
        assert sorted(lost) == ["orders_0", "orders_1"]
        with pytest.raises(WorkerError, match="SystemExit"):
            worker.wait(0)


def test_short_waits_of_coroutines_leave_nothing() -> None:
    """`ended` with a limit, again and again, does not keep what would wake it."""
    ending = Ending()
    assert not asyncio.run(ending.wait_async(0))
    assert ending._wakers == []
    ending.set()
    assert asyncio.run(ending.wait_async(PATIENCE_S))
    assert ending._wakers == []


def refusals(worker: Worker) -> list[str]:
    """Call a worker in a process that is not its own."""
    said = []
    for call in (worker.holds, worker.ready, worker.released, lambda _: worker.wait(0)):
        try:
            call("orders_3")
            said.append("answered")
        except WorkerError:
            said.append("refused")
    worker.close(0)
    return [*said, worker.state]


def test_a_forked_process_has_no_worker(started: Worker) -> None:
    """There `holds` and reports raise, because no thread follows the session; `close` returns."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads
        child = os.fork()
    if child == 0:
        try:
            os.write(writer, " ".join(refusals(started)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert answer.read() == "refused refused refused refused new"
    os.waitpid(child, 0)
    assert not started.holds("orders_3")


def test_a_worker_that_nothing_has_closed_does_not_delay_the_end_of_python() -> None:
    """When Python ends a forgotten generator the worker's threads have ended: none is awaited."""
    program = f"""
from muster import Worker

def life():
    with Worker(group="g", bootstrap_servers="{NO_BROKER}"):
        yield

forgotten = life()
next(forgotten)
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "callbacks did not stop" not in ended.stderr
