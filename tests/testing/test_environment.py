"""`muster.testing.Environment`: the real worker and coordinator on simulated time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from muster import Assignment, Task
from muster.assignor.api import (
    ApplicationState,
    AssignedTask,
    KafkaStreamsAssignment,
    TaskAssignment,
    TaskAssignor,
    TaskType,
)
from muster.errors import BadInput
from muster.protocol.errors import ConfigError
from muster.testing import CallbackHangs, Environment, EnvironmentFailed, Fault, threads

FOUR = {"orders": 4}
STATEFUL = [{"subtopology": "orders", "partitions": 2, "stateful": True}]
Make = Callable[..., Environment]


def story(seed: int) -> str:
    """A story with many faults."""
    with Environment(FOUR, seed=seed) as env:
        for name in ("W1", "W2", "W3"):
            env.worker(name, on_assigned=lambda *_: time.sleep(1))
        env.settle()
        env.freeze("W1")
        env.restart_coordinator(written=50)
        env.advance(50)
        env.thaw("W1")
        env.kill("W2")
        env.settle()
        return env.story


def test_a_seed_gives_one_story() -> None:
    """The same seed gives the same story to the millisecond, another seed another one."""
    assert story(1) == story(1)
    assert story(1) != story(2)


def test_a_task_moves_to_a_new_worker(muster_environment: Make) -> None:
    """Tasks are shared, moved to a newcomer, and given back when it leaves."""
    env = muster_environment(FOUR)
    env.worker("W1")
    env.assert_owned()
    assert set(env.owners().values()) == {"W1"}
    env.worker("W2")
    env.settle()
    assert sorted(env.owners().values()) == ["W1", "W1", "W2", "W2"]
    env.stop("W2")
    env.settle()
    assert set(env.owners().values()) == {"W1"}
    env.assert_never_two_owners()


def test_a_callback_takes_simulated_time(muster_environment: Make) -> None:
    """`time.sleep`, `time.monotonic` and `time.time` of a callback are simulated."""
    env, seen = muster_environment(FOUR), []

    def start(tasks: tuple[Task, ...], _: Assignment) -> None:
        before = (time.monotonic(), time.time())
        time.sleep(600)
        seen.append((time.monotonic() - before[0], time.time() - before[1]))

    env.worker("W1", on_assigned=start)
    assert env.settle() > 600
    assert seen == [(pytest.approx(600), pytest.approx(600))]
    env.close()
    assert time.sleep.__module__ == "time"


def test_coroutines_run_on_simulated_time(muster_environment: Make) -> None:
    """Callbacks may be coroutines and start tasks; `asyncio.sleep` is simulated."""
    env, beats = muster_environment(FOUR), []

    async def beat() -> None:
        while True:
            beats.append(asyncio.get_running_loop().time())
            await asyncio.sleep(10)

    running = []

    async def start(tasks: tuple[Task, ...], _: Assignment) -> None:
        running.append(asyncio.create_task(beat()))
        await asyncio.sleep(5)

    env.worker("W1", on_assigned=start)
    env.settle()
    env.advance(100)
    assert len(beats) in (11, 12)
    assert beats[1] - beats[0] == pytest.approx(10)


def test_a_thread_of_a_task_stops_when_it_is_frozen_or_killed(muster_environment: Make) -> None:
    """A thread that a callback starts belongs to the process: frozen and killed with it."""
    env, ticks = muster_environment({"orders": 1}), []

    def work() -> None:
        while True:
            time.sleep(1)
            ticks.append(env.now)

    env.worker("W1", on_assigned=lambda *_: env.thread(work))
    env.settle()
    env.advance(10)
    alive = len(ticks)
    assert alive >= 9
    env.freeze("W1")
    env.advance(10)
    assert len(ticks) == alive
    env.thaw("W1")
    env.advance(10)
    assert len(ticks) > alive
    env.kill("W1")
    alive = len(ticks)
    env.advance(10)
    assert len(ticks) == alive


def test_threads_of_the_program_may_be_waited_for(muster_environment: Make) -> None:
    """A callback may join an ordinary thread, which runs in real time."""
    env, done = muster_environment({"orders": 1}), []

    def start(tasks: tuple[Task, ...], _: Assignment) -> None:
        thread = threading.Thread(target=lambda: done.append(tasks))
        thread.start()
        thread.join()

    env.worker("W1", on_assigned=start)
    env.settle()
    assert len(done) == 1


def test_a_worker_that_asks_before_it_uses_is_never_wrong(muster_environment: Make) -> None:
    """`holds` protects a frozen consumer; without the question the kit finds the use."""
    wrong = []
    for asks in (True, False):
        env = muster_environment({"orders": 1})

        def work(env: Environment = env, asks: bool = asks) -> None:
            while True:
                time.sleep(0.1)
                if not asks or env.workers["W1"].holds("orders_0"):
                    env.use("orders_0")

        env.worker("W1", on_assigned=lambda *_, env=env, work=work: env.thread(work))
        env.settle()
        env.worker("W2")
        env.expire("W1")
        env.advance(5)
        try:
            env.assert_never_two_owners()
        except EnvironmentFailed as failure:
            wrong.append((asks, "W1 used orders_0 at" in str(failure)))
    assert wrong == [(False, True)]


def test_a_partitioned_worker_loses_its_tasks_in_time(muster_environment: Make) -> None:
    """The lease ends before the group gives the tasks away, and the worker comes back."""
    env, lost = muster_environment(FOUR), []
    env.worker("W1", on_lost=lambda tasks, _: lost.extend(tasks))
    env.worker("W2")
    env.settle()
    env.partition("W1")
    env.advance(60)
    assert len(lost) == 2
    assert set(env.owners().values()) == {"W2"}
    env.heal("W1")
    env.settle()
    assert sorted(env.owners().values()) == ["W1", "W1", "W2", "W2"]
    env.assert_never_two_owners()


def test_a_lost_checkpoint_and_an_outage_move_nothing(muster_environment: Make) -> None:
    """Neither a coordinator without its checkpoint nor a short outage of Kafka moves a task."""
    env = muster_environment(FOUR)
    env.worker("W1")
    env.worker("W2")
    env.settle()
    before = env.owners()
    env.lose_checkpoint()
    env.settle()
    env.kafka_away(20)
    env.advance(25)
    env.coordinator_away(300)
    env.advance(310)
    env.settle()
    assert env.owners() == before


def test_a_shorter_session_stops_no_task(muster_environment: Make) -> None:
    """A fleet with the rhythm of a long session goes on when the operator shortens it.

    The shorter timeout counts afterwards: for the workers, which lose their tasks by it, and for
    the group, which gives them away no sooner.
    """
    lost: list[str] = []
    env = muster_environment(
        {"orders": 6},
        config={"session.timeout.ms": 300_000, "heartbeat.interval.ms": 20_000},
    )
    for name in ("W1", "W2", "W3"):
        env.worker(
            name,
            on_assigned=lambda tasks, _: [env.use(task) for task in tasks],
            on_lost=lambda *_, name=name: lost.append(name),
        )
        env.advance(1.5)
    env.settle()
    for at_s, session_ms in ((77.5, 20_000), (33.3, 6_000)):
        env.advance(at_s)
        owners = env.owners()
        env.configure(
            config={"session.timeout.ms": session_ms, "heartbeat.interval.ms": session_ms // 4}
        )
        env.advance(60)
        assert (lost, env.owners()) == ([], owners)
    env.partition("W1")
    env.advance(30)
    assert lost == ["W1"]
    assert set(env.owners().values()) == {"W2", "W3"}
    env.assert_never_two_owners()


def test_a_drained_worker_is_emptied(muster_environment: Make) -> None:
    """A drain empties a worker, and undoing it fills it again."""
    env = muster_environment(FOUR)
    env.worker("W1")
    env.worker("W2")
    env.settle()
    env.drain("W1")
    env.settle()
    assert set(env.owners().values()) == {"W2"}
    env.drain("W1", on=False)
    env.settle()
    assert "W1" in env.owners().values()
    env.ask_to_leave("W1")
    env.settle()
    assert set(env.owners().values()) == {"W2"}


def test_an_order_that_no_coordinator_reads(muster_environment: Make) -> None:
    """The group has not settled before the coordinator has read what an operator wrote."""
    env = muster_environment({"orders": 2})
    env.worker("W1")
    env.settle()
    env.coordinator_away(60)
    env.configure(tasks={"orders": 3})
    with pytest.raises(EnvironmentFailed, match="no coordinator has read what the operator wrote"):
        env.settle(within=30)
    env.settle()
    assert len(env.owners()) == 3


def test_a_copy_takes_over_when_it_is_ready(muster_environment: Make) -> None:
    """`ready` of the user's callback decides when a stateful task moves."""
    env = muster_environment(STATEFUL, "high-availability")
    env.worker("W1")
    env.settle()

    def restore(tasks: tuple[Task, ...], _: Assignment) -> None:
        time.sleep(30)
        env.workers["W2"].ready(*tasks)

    env.worker("W2", on_learn=restore)
    assert 30 <= env.settle() < 60
    assert sorted(env.owners().values()) == ["W1", "W2"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_copy_that_falls_behind_and_catches_up(muster_environment: Make, is_lost: bool) -> None:
    """The newest word of a copy counts: a lag takes `ready` back, and `ready` the lag.

    So it is for the next coordinator, which may have lost the checkpoint, from reports alone.
    """
    env = muster_environment(STATEFUL, "high-availability", {"num.standby.replicas": 1})
    for name in ("W1", "W2"):
        env.worker(name, on_learn=lambda tasks, _, name=name: env.workers[name].ready(*tasks))
    env.settle()
    (copy,) = env.workers["W2"].assignment.standby
    env.workers["W2"].lag({copy: 50_000})
    env.advance(5)
    if is_lost:
        env.lose_checkpoint()
        env.advance(60)
    env.drain("W1")
    env.advance(60)
    assert env.owner(copy) == "W1"
    env.workers["W2"].ready(copy)
    env.settle()
    assert set(env.owners().values()) == {"W2"}


def test_lags_from_changelogs(muster_environment: Make) -> None:
    """A worker reports lags by the ends that the test gives."""
    env = muster_environment(STATEFUL, "high-availability")
    env.changelogs |= {("log", 0): 90_000, ("log", 1): 90_000}
    env.worker("W1")
    env.settle()
    restored = {"at": 0}
    positions = lambda task: {("log", task.number): restored["at"]}  # noqa: E731
    env.worker("W2", on_learn=lambda *_: None, lag_from_changelog=positions)
    env.advance(60)
    assert set(env.owners().values()) == {"W1"}
    restored["at"] = 89_999
    env.settle()
    assert sorted(env.owners().values()) == ["W1", "W2"]


def test_tasks_that_are_released_early_go_early(muster_environment: Make) -> None:
    """A task named by `released` has its next owner before `on_revoked` returns."""
    env = muster_environment(FOUR)

    def stop(tasks: tuple[Task, ...], _: Assignment) -> None:
        env.workers["W1"].released(tasks[0])
        time.sleep(60)

    env.worker("W1", on_revoked=stop)
    env.settle()
    env.worker("W2")
    env.advance(10)
    assert list(env.owners().values()).count("W2") == 1
    env.settle()
    env.assert_never_two_owners()


def test_tasks_revoked_before_a_leave_go_before_it(muster_environment: Make) -> None:
    """A task that another worker waits for does not wait for the slowest task of a leave."""
    env = muster_environment({"orders": 2})

    def stop(tasks: tuple[Task, ...], _: Assignment) -> None:
        time.sleep(5 if len(asked) == 0 else 60)
        asked.append(tasks)

    asked: list[tuple[Task, ...]] = []
    env.worker("W1", on_assigned=lambda tasks, _: [env.use(t) for t in tasks], on_revoked=stop)
    env.settle()
    env.worker("W2", on_assigned=lambda tasks, _: [env.use(t) for t in tasks])
    env.advance(2)
    env.ask_to_leave("W1")
    env.advance(8)
    assert sorted(map(str, env.owners().values())) == ["W1", "W2"]
    env.settle()
    assert set(env.owners().values()) == {"W2"}
    env.assert_never_two_owners()


def test_a_static_member_returns_to_its_tasks(muster_environment: Make) -> None:
    """A member with an instance id is back within its session, and no task moves."""
    env = muster_environment(FOUR)
    env.worker("W1", instance_id="i1")
    env.worker("W2")
    env.settle()
    before = env.owners()
    env.stop("W1")
    env.advance(5)
    env.start("W1")
    env.settle()
    assert env.owners() == before


class First(TaskAssignor):
    """Everything to the first member."""

    def assign(self, state: ApplicationState) -> TaskAssignment:
        """Assign each task as an active."""
        members = {name: KafkaStreamsAssignment.of(name) for name in state.kafka_streams_states()}
        for task in state.all_tasks:
            members[min(members)].assign_task(AssignedTask(task, TaskType.ACTIVE))
        return TaskAssignment.of(members.values())


@pytest.mark.parametrize("assignor", [First, First()], ids=["class", "object"])
def test_an_assignor_of_the_user(muster_environment: Make, assignor: type | TaskAssignor) -> None:
    """A class or an object with `assign` places the group, also one that is not importable."""
    env = muster_environment(FOUR, assignor)
    env.worker("W2")
    env.worker("W1")
    env.settle()
    assert set(env.owners().values()) == {"W1"}


def test_an_assertion_of_a_callback_fails_the_test(muster_environment: Make) -> None:
    """The worker repeats a callback that raises; an assertion reaches the test as well."""
    env = muster_environment(FOUR)

    def start(tasks: tuple[Task, ...], _: Assignment) -> None:
        raise AssertionError("not these tasks")

    env.worker("W1", on_assigned=start)
    with pytest.raises(AssertionError, match="not these tasks"):
        env.advance(10)
    assert "on_assigned raised AssertionError: not these tasks" in env.story


def test_a_callback_that_raises_is_called_again(muster_environment: Make) -> None:
    """As in a real worker, a start that failed is repeated until it succeeds."""
    env, tries = muster_environment({"orders": 1}), []

    def start(tasks: tuple[Task, ...], _: Assignment) -> None:
        tries.append(env.now)
        if len(tries) < 4:
            raise OSError("disk is full")

    env.worker("W1", on_assigned=start)
    env.settle()
    assert len(tries) == 4


def test_a_group_with_a_callback_that_always_raises_has_not_settled(
    muster_environment: Make,
) -> None:
    """A task whose start never succeeds is not run; when another worker has it, it is."""
    env = muster_environment({"orders": 1})

    def start(tasks: tuple[Task, ...], _: Assignment) -> None:
        raise KeyError("table")

    env.worker("W1", on_assigned=start)
    error = "on_assigned of W1 raised KeyError: 'table', and is called again for orders_0"
    with pytest.raises(EnvironmentFailed, match=f"has not settled: {error}"):
        env.settle(within=60)
    with pytest.raises(EnvironmentFailed, match=f"no worker runs orders_0: {error}"):
        env.assert_owned(within=60)
    env.worker("W2")
    env.drain("W1")
    env.settle()
    env.assert_owned()
    assert env.owners() == {"orders_0": "W2"}


def test_a_copy_whose_restore_always_raises(muster_environment: Make) -> None:
    """The message has the error beside the copy that is waited for."""
    env = muster_environment(STATEFUL, "high-availability")
    env.worker("W1")
    env.settle()

    def learn(tasks: tuple[Task, ...], _: Assignment) -> None:
        raise KeyError("table")

    env.worker("W2", on_learn=learn)
    with pytest.raises(EnvironmentFailed, match="on_learn of W2 raised KeyError: 'table'"):
        env.settle(within=60)


def test_a_callback_that_is_given_up_has_its_own_name(muster_environment: Make) -> None:
    """The story names the function of the user, as the log of a real worker does."""
    env = muster_environment({"orders": 1})

    def stop(tasks: tuple[Task, ...], _: Assignment) -> None:
        raise KeyError("table")

    env.worker("W1", on_revoked=stop)
    env.settle()
    env.drain("W1")
    env.worker("W2")
    env.settle()
    assert "<locals>.stop kept failing for orders_0" in env.story


def test_a_coroutine_that_nothing_awaits_has_stopped_nothing(muster_environment: Make) -> None:
    """A plain callback that returns a coroutine did not run it, so its task is not released."""
    env = muster_environment({"orders": 2})

    async def stop() -> None:
        """Would stop the tasks."""

    env.worker("W1", on_revoked=lambda *_: stop())
    env.settle()
    env.worker("W2")
    env.advance(60)
    assert "on_revoked raised TypeError: it returned an awaitable" in env.story
    assert "its on_revoked returned" not in env.story


def test_a_callback_that_waits_outside_is_named(
    muster_environment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback that waits for something real that never comes is an error that shows where."""
    monkeypatch.setattr(threads, "HANGS_S", 0.2)
    env, never = muster_environment({"orders": 1}), threading.Event()
    env.worker("W1", on_assigned=lambda *_: never.wait() and None)
    with pytest.raises(CallbackHangs, match=r"(?s)W1-muster-callbacks .*never\.wait"):
        env.settle()
    never.set()


def test_the_second_of_two_processes_waits(muster_environment: Make) -> None:
    """Two processes of one name: the second gets nothing until the first has ended."""
    env, started = muster_environment({"orders": 1}), []
    first = env.worker("W1", on_assigned=lambda *_: env.use("orders_0") or started.append(env.now))
    env.settle()
    second = env.start("W1")
    with pytest.raises(EnvironmentFailed, match=r"W1 \(process 2\) waits: a process before it"):
        env.settle(within=60)
    assert (first.state, second.state, len(started)) == ("member", "joining", 1)
    first.close()
    env.settle()
    assert len(started) == 2
    env.assert_never_two_owners()


def test_a_callback_may_ignore_its_end(muster_environment: Make) -> None:
    """Closing an environment ends threads and coroutines that clean up in their own way."""
    env, cleaned = muster_environment({"orders": 2}), []

    async def start(tasks: tuple[Task, ...], _: Assignment) -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            cleaned.append("coroutine")
            await asyncio.sleep(1)

    def run(tasks: tuple[Task, ...], _: Assignment) -> None:
        try:
            time.sleep(3_600)
        finally:
            cleaned.append("thread")
            raise ValueError("on the way out")

    env.worker("W1", on_assigned=start)
    env.worker("W2", on_assigned=run)
    env.advance(30)
    env.close()
    assert sorted(cleaned) == ["coroutine", "thread"]


def test_questions_about_what_is_not_there(muster_environment: Make) -> None:
    """Unknown workers, malformed tasks and a group without a running worker are errors in words."""
    env = muster_environment(FOUR)
    with pytest.raises(EnvironmentFailed, match="there is no worker 'W9'"):
        env.freeze("W9")
    with pytest.raises(EnvironmentFailed, match="after 5 s no worker runs orders_0, orders_1"):
        env.assert_owned(within=5)
    with pytest.raises(BadInput, match="partitions"):
        Environment({"orders": 0})
    env.worker("W1")
    for ask in (env.drain, env.start, lambda name: env.play([Fault("freeze", name, 1)])):
        with pytest.raises(EnvironmentFailed, match="no worker 'W9' yet; there are: W1"):
            ask("W9")
    with pytest.raises(EnvironmentFailed, match="the group never had a task 'order_0'"):
        env.owner("order_0")
    with pytest.raises(BadInput, match="worker 'W2': member_id: expected nothing"):
        env.worker("W2", member_id="W3")
    env.close()
    for late in (env.settle, lambda: env.start("W1")):
        with pytest.raises(EnvironmentFailed, match="the environment is closed"):
            late()


def test_a_configuration_that_is_refused_changes_nothing(muster_environment: Make) -> None:
    """The group keeps its tasks and settings, and can be asked about as before."""
    env = muster_environment(FOUR)
    env.worker("W1")
    env.settle()
    with pytest.raises(ConfigError, match="sesion"):
        env.configure(tasks={"orders": 9}, config={"sesion.timeout.ms": 6_000})
    env.assert_never_two_owners()
    env.configure(tasks={"orders": 3}, config={"session.timeout.ms": 6_000})
    env.settle()
    assert len(env.owners()) == 3
    assert env.owner("orders_3") is None  # it was one


@pytest.mark.parametrize("tasks", ["orders", ["orders:4"]])
def test_tasks_of_another_shape_are_named(tasks: object) -> None:
    """The message says what was given, and both shapes that are right."""
    with pytest.raises(BadInput, match=r"tasks: expected \{'orders': 4\} or rows as .* not "):
        Environment(tasks)  # type: ignore[arg-type]
