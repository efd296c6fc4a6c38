"""Sessions under faults with a small coordinator: no two members use a task at the same time.

tests/simulation has ordeals with the real coordinator. Here a small, eager one replaces it: a
session must be safe with any coordinator that follows the protocol. The last two tests use both.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from fault_injection import faults
from fault_injection.fault_run import CALM_MS, CALM_STOP_MS, FaultRun
from fault_injection.faults import (
    REBALANCE_MS,
    BrokerLeaves,
    Deafens,
    FallsBehind,
    Fault,
    Freezes,
    Skews,
    Starts,
    Stops,
    Timed,
)
from fault_injection.faulty_jobs import FaultyJob
from fault_injection.small_coordinator import TASKS, SmallJob
from hypothesis import given, settings
from hypothesis import strategies as st
from support.suite.examples import examples

from muster.protocol.digest import Holding
from muster.protocol.tasks import TaskSet
from muster.worker.session_steps import State

NOT_OF_MEMBERS = (
    *(faults.Restarts, faults.Usurps),  # the small coordinator stores nothing
    *(faults.Configures, faults.Drains, faults.Lags),  # it ignores these
)
COORDINATORS = [SmallJob, FaultyJob]
LAG_MAX_MS = REBALANCE_MS // 4
"""Longest time that the small coordinator is behind."""


def stream(seed: int, until_ms: int = 12_000, stressed: tuple[type, ...] = ()) -> list[Timed]:
    """All processes start; then faults of members and of the broker, or delays."""
    timed_faults = faults.invented(seed, 300, until_ms, every_ms=200, stressed=stressed)
    given = [(at, _brief(f)) for at, f in timed_faults if not isinstance(f, NOT_OF_MEMBERS)]
    return [*((0, Starts(name)) for name in faults.NAMES), *given]


def _brief(fault: Fault) -> Fault:
    if isinstance(fault, FallsBehind | Skews):
        return replace(fault, for_ms=min(fault.for_ms, LAG_MAX_MS))
    return fault


def used(world: FaultRun) -> list[str]:
    """The tasks in use, once for each process that uses them."""
    return sorted(
        str(task)
        for process in world.processes
        if world.now < process.guard_ends
        for task in process.using
    )


def is_settled(world: FaultRun) -> bool:
    """Whether every task is used, and every process uses exactly what it holds."""
    working = [p for p in world.processes if p.session.state is State.MEMBER]
    return used(world) == list(TASKS) and all(
        process.session.holding == Holding(active=TaskSet.of(process.using)) for process in working
    )


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 2**32))
def test_no_task_has_two_users(seed: int) -> None:
    """Under all faults no two processes use a task at one moment of true time."""
    world = FaultRun(seed, job=SmallJob)
    world.play(stream(seed))


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_after_the_faults_every_task_is_used_again(seed: int) -> None:
    """When the faults have stopped, every task is used, and processes use what they hold."""
    world = FaultRun(seed, job=SmallJob)
    world.play(stream(seed))
    for process in world.processes:
        process.stop_ms = min(process.stop_ms, CALM_STOP_MS)
    end_ms = world.clock_ms + CALM_MS
    while not is_settled(world) and world.clock_ms < end_ms:
        world.happen(Starts("W1"))  # all may have died; does nothing if it runs
        world.run(world.clock_ms + 1_000)
    assert used(world) == list(TASKS)
    assert is_settled(world)


@pytest.mark.slow
def test_no_task_has_two_users_in_many_worlds() -> None:
    """The same for 300 lives; in every other one readers often hang."""
    for seed in range(300):
        world = FaultRun(seed, job=SmallJob)
        world.play(stream(seed, stressed=(Deafens,) if seed % 2 else ()))


def test_the_streams_have_every_fault() -> None:
    """A stream has every kind of fault, and tasks often change their owner."""
    given = stream(7, until_ms=60_000)
    assert {type(fault) for _, fault in given} == set(faults.KINDS) - set(NOT_OF_MEMBERS)
    world = FaultRun(7, job=SmallJob)
    world.play(given)
    assert world.changes > 50
    assert world.generations > 100


@pytest.mark.parametrize("job", COORDINATORS)
def test_a_reader_that_hangs(job: type[FaultyJob]) -> None:
    """Its heartbeats go on, but it reads no revocation: it stops, and the other gets its tasks.

    It joins again and gets tasks again, so the other has all of them only for a while.
    """
    world = FaultRun(0, job=job)
    world.play([(0, Starts("W1")), (3_000, Deafens("W1", 60_000))])
    (deaf,) = world.processes
    tasks = used(world)
    assert sorted(map(str, deaf.using)) == tasks
    world.play([(3_000, Starts("W2"))])
    taker = world.processes[1]
    while sorted(map(str, taker.using)) != tasks and world.clock_ms < 60_000:
        world.run(world.clock_ms + 250)
    assert sorted(map(str, taker.using)) == tasks
    assert used(world) == tasks


@pytest.mark.parametrize("job", COORDINATORS)
def test_leaving_during_faults(job: type[FaultyJob]) -> None:
    """A member that leaves during faults ends, and the other one gets its tasks."""
    world = FaultRun(0, job=job)
    world.play([(0, Starts("W1")), (0, Starts("W2")), (3_000, Freezes("W2", 1_500))])
    tasks = used(world)
    world.play([(3_100, BrokerLeaves(1_500)), (3_200, Stops("W1"))])
    world.run(20_000)
    (left,) = (process for process in world.processes if process.alive)
    assert left.name == "W2"
    assert sorted(map(str, left.using)) == used(world) == tasks
