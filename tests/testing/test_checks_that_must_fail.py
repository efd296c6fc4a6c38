"""The kit's checks fail when they must, and what they say begins where the fault is."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from muster import Assignment, Task
from muster.errors import BadInput
from muster.testing import Environment, EnvironmentFailed

STATEFUL = [{"subtopology": "orders", "partitions": 2, "stateful": True}]
Make = Callable[..., Environment]


def test_a_start_that_fails_is_not_forgotten(muster_environment: Make) -> None:
    """A task whose start raises is not run, also when the start of another one succeeds."""
    env = muster_environment({"orders": 2})

    def start(tasks: tuple[Task, ...], _: Assignment) -> None:
        if "orders_0" in map(str, tasks):
            raise OSError("disk of 0")

    env.worker("W1", on_assigned=start)
    env.worker("W2")
    env.advance(20)
    assert env.owners() == {"orders_0": "W1", "orders_1": "W2"}
    env.stop("W2")
    error = "on_assigned of W1 raised OSError: disk of 0, and is called again for orders_0"
    with pytest.raises(EnvironmentFailed, match=f"has not settled: {error}"):
        env.settle(within=10)
    with pytest.raises(EnvironmentFailed, match=f"no worker runs orders_0: {error}"):
        env.assert_owned(within=10)


def test_new_tasks_are_waited_for(muster_environment: Make) -> None:
    """Tasks that an operator has added count from then on, also while no coordinator runs."""
    env = muster_environment({"orders": 2})
    env.worker("W1")
    env.settle()
    env.coordinator_away(60)
    env.configure(tasks={"orders": 3})
    assert env.owners() == {"orders_0": "W1", "orders_1": "W1", "orders_2": None}
    with pytest.raises(EnvironmentFailed, match="no worker runs orders_2"):
        env.assert_owned(within=30)
    env.assert_owned()
    env.restart_coordinator()
    assert set(env.owners().values()) == {"W1"}


def test_settle_waits_for_what_a_worker_has_reported(muster_environment: Make) -> None:
    """A lag that the test reports is known to the group when it has settled."""
    env = muster_environment(STATEFUL, "high-availability", {"num.standby.replicas": 1})
    for name in ("W1", "W2"):
        env.worker(name, on_learn=lambda tasks, _, name=name: env.workers[name].ready(*tasks))
    env.settle()
    (copy,) = env.workers["W2"].assignment.standby
    env.coordinator_away(60)
    env.workers["W2"].lag({copy: 50_000})
    with pytest.raises(EnvironmentFailed, match="no coordinator has read what the workers wrote"):
        env.settle(within=30)
    env.settle()
    env.drain("W1")
    with pytest.raises(EnvironmentFailed, match=f"{copy} waits for W2"):
        env.settle(within=60)


def test_an_assertion_of_the_last_callback_fails_the_test() -> None:
    """An assertion that failed after the test last moved the time is raised at the end."""

    def stop(tasks: tuple[Task, ...], _: Assignment) -> None:
        raise AssertionError("not these tasks")

    def closed(after: Callable[[], object] = lambda: None) -> None:
        with Environment({"orders": 1}) as env:
            worker = env.worker("W1", on_revoked=stop)
            env.settle()
            worker.close()
            after()

    with pytest.raises(AssertionError, match="not these tasks"):
        closed()
    with pytest.raises(ZeroDivisionError):  # the test's own error counts
        closed(lambda: 1 // 0)


def test_a_worker_joins_before_it_expires(muster_environment: Make) -> None:
    """`expire` means what it says also of a worker that has just been started."""
    env = muster_environment({"orders": 2})
    env.worker("W1")
    env.worker("W2")
    env.expire("W1")
    assert "W1 expired" in env.story


def test_others_have_the_tasks_of_an_expired_worker(muster_environment: Make) -> None:
    """Connect's assignors wait for a lost worker: it is frozen until others have its tasks."""
    env = muster_environment([{"connector": "c1", "tasks": 2}], "cooperative")
    env.worker("W1")
    env.worker("W2")
    env.settle()
    frozen_at = env.now
    env.expire("W1")
    assert env.now > frozen_at + 300
    assert set(env.owners().values()) == {"W2"}


def test_the_message_shows_what_happened_at_the_fault(muster_environment: Make) -> None:
    """A fault of long ago is told with the lines around it, and a steady use is one line."""
    env = muster_environment({"orders": 1})

    def work() -> None:
        while True:
            time.sleep(1)
            if env.workers["W1"].holds("orders_0"):
                env.use("orders_0")

    env.worker(
        "W1", on_assigned=lambda *_: env.thread(work), on_revoked=lambda *_: env.use("orders_0")
    )
    env.settle()
    env.advance(100)
    env.worker("W2")
    env.expire("W1")
    for _ in range(10):
        env.drain("W2")
        env.settle()
        env.drain("W2", on=False)
        env.drain("W1")
        env.settle()
        env.drain("W1", on=False)
    with pytest.raises(EnvironmentFailed, match=r"W1 used orders_0 at .*W2 runs it") as failed:
        env.assert_never_two_owners()
    told = str(failed.value)
    assert "* W1 is frozen" in told
    assert "* W1 goes on" in told
    assert "lines after" in told
    assert env.story.count("W1 uses orders_0\n") < 50


def test_what_repeats_is_told_once(muster_environment: Make) -> None:
    """Hundreds of attempts do not hide how it began."""
    env = muster_environment({"orders": 1})
    env.worker("W1", instance_id="one")
    env.settle()
    env.worker("W2", instance_id="one")
    with pytest.raises(EnvironmentFailed, match="W2 is not a member") as failed:
        env.settle()
    assert "* W1 starts" in str(failed.value)
    assert "more times, up to here" in str(failed.value)
    assert len(str(failed.value).splitlines()) < 20


def test_a_leave_that_cannot_be_sent_is_lost(muster_environment: Make) -> None:
    """A process that ends while it does not reach Kafka has left nothing to send later."""
    env = muster_environment({"orders": 1})
    env.worker("W1")
    env.settle()
    env.worker("W2")
    env.settle()
    env.partition("W1")
    env.stop("W1")
    env.advance(10)
    env.heal("W1")
    env.settle()
    assert "W1 expired" in env.story
    assert "W1 left" not in env.story
    env.start("W1")
    env.settle()
    env.partition("W1")
    env.later(2, lambda: env.heal("W1"))
    env.stop("W1")  # it has 5 s to send what it has
    env.settle()
    assert "W1 left" in env.story


def test_an_environment_without_workers_says_so(muster_environment: Make) -> None:
    """A test that has started no worker: `settle` names what is missing."""
    env = muster_environment({"orders": 1})
    with pytest.raises(EnvironmentFailed, match=r"has not settled: no worker is in the group\n"):
        env.settle(within=10)


def test_spans_and_scripts_that_are_none(muster_environment: Make) -> None:
    """Time does not go back or stand still for ever, and only faults can be played."""
    env = muster_environment({"orders": 1})
    calls: list[Callable[[Any], object]] = [
        *(env.advance, env.kafka_away, env.coordinator_away),
        *(lambda s: env.later(s, print), lambda s: env.settle(within=s)),
        lambda s: env.assert_owned(within=s),
    ]
    for call in calls:
        for span in (-1, "5", math.inf, math.nan, None):
            with pytest.raises(BadInput, match="expected seconds, 0 or more"):
                call(span)
    with pytest.raises(BadInput, match="'kill W1': expected faults, as Fault"):
        env.play(cast("Any", ["kill W1"]))


def test_a_worker_that_is_given_up_says_so(muster_environment: Make) -> None:
    """The story has that a worker ended without a leave, and why."""
    env = muster_environment({"orders": 1})
    env.worker("W1", on_revoked=lambda *_: time.sleep(60))
    env.settle()
    env.stop("W1")
    assert "W1 ends without a leave: its callbacks did not return within 30 s" in env.story


def test_an_object_may_be_an_async_callback(muster_environment: Make) -> None:
    """An object whose `__call__` is a coroutine function has an event loop, as a function has."""
    env, done = muster_environment({"orders": 1}), []

    class Start:
        async def __call__(self, tasks: tuple[Task, ...], _: Assignment) -> None:
            await asyncio.sleep(5)
            done.append(tasks)

    env.worker("W1", on_assigned=Start())
    env.settle(within=30)
    assert len(done) == 1
