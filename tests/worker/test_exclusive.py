"""No two members use a task at once, under any coordinator: sessions under every fault.

The ordeal with the coordinator as it is belongs to tests/simulation. Here a small eager one takes
its place (any that keeps the contract must do); the two stories at the end are told with both.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.small_coordinator import TASKS, SmallJob

from muster.protocol.digest import Holding
from muster.protocol.tasks import TaskSet
from muster.simulation import faults
from muster.simulation.faults import (
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
from muster.simulation.jobs import Job
from muster.simulation.ordeal import CALM_MS, CALM_STOP_MS, Ordeal
from muster.worker.states import State

NOT_OF_MEMBERS = (
    *(faults.Restarts, faults.Usurps),  # it keeps nothing
    *(faults.Configures, faults.Drains, faults.Lags),  # it knows nothing of these
)
COORDINATORS = [SmallJob, Job]
LAG_MAX_MS = REBALANCE_MS // 4
"""As long as the small coordinator is behind at once."""


def stream(seed: int, until_ms: int = 12_000, stressed: tuple[type, ...] = ()) -> list[Timed]:
    """Every process starts; then faults of members and of the broker, or make it lag."""
    found = faults.invented(seed, 300, until_ms, every_ms=200, stressed=stressed)
    given = [(at, _brief(fault)) for at, fault in found if not isinstance(fault, NOT_OF_MEMBERS)]
    return [*((0, Starts(name)) for name in faults.NAMES), *given]


def _brief(fault: Fault) -> Fault:
    if isinstance(fault, FallsBehind | Skews):
        return replace(fault, for_ms=min(fault.for_ms, LAG_MAX_MS))
    return fault


def used(world: Ordeal) -> list[str]:
    """Every task in use, once for each process that uses it."""
    return sorted(
        str(task)
        for process in world.processes
        if world.now < process.guard_ends
        for task in process.using
    )


def is_settled(world: Ordeal) -> bool:
    """Whether every task is used, and every process has what it holds."""
    working = [p for p in world.processes if p.session.state is State.MEMBER]
    return used(world) == list(TASKS) and all(
        process.session.holding == Holding(active=TaskSet.of(process.using)) for process in working
    )


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 2**32))
def test_no_task_has_two_users(seed: int) -> None:
    """Whatever goes wrong, no two processes use one task at one moment of true time."""
    world = Ordeal(seed, job=SmallJob)
    world.play(stream(seed))


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_after_the_trouble_everything_is_owned_again(seed: int) -> None:
    """When nothing goes wrong any more, every task is used, and every process knows what it has."""
    world = Ordeal(seed, job=SmallJob)
    world.play(stream(seed))
    for process in world.processes:
        process.stop_ms = min(process.stop_ms, CALM_STOP_MS)
    end_ms = world.clock_ms + CALM_MS
    while not is_settled(world) and world.clock_ms < end_ms:
        world.happen(Starts("W1"))  # all may have died; one that runs is left alone
        world.run(world.clock_ms + 1_000)
    assert used(world) == list(TASKS)
    assert is_settled(world)


@pytest.mark.slow
def test_no_task_has_two_users_in_many_worlds() -> None:
    """The same for three hundred lives; in every other one readers hang all the time."""
    for seed in range(300):
        world = Ordeal(seed, job=SmallJob)
        world.play(stream(seed, stressed=(Deafens,) if seed % 2 else ()))


def test_the_world_is_troubled_enough() -> None:
    """The property above is not empty: tasks change hands often, under every kind of fault."""
    given = stream(7, until_ms=60_000)
    assert {type(fault) for _, fault in given} == set(faults.KINDS) - set(NOT_OF_MEMBERS)
    world = Ordeal(7, job=SmallJob)
    world.play(given)
    assert world.changes > 50
    assert world.generations > 100


@pytest.mark.parametrize("job", COORDINATORS)
def test_a_reader_that_hangs(job: type[Job]) -> None:
    """Its heartbeats go on, what it is asked back it never reads: others get it, and it stops.

    It joins again and is given tasks again, so the others have all of them only for a while.
    """
    world = Ordeal(0, job=job)
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
def test_leaving_in_trouble(job: type[Job]) -> None:
    """A member that leaves a troubled group ends, and its tasks are another's."""
    world = Ordeal(0, job=job)
    world.play([(0, Starts("W1")), (0, Starts("W2")), (3_000, Freezes("W2", 1_500))])
    tasks = used(world)
    world.play([(3_100, BrokerLeaves(1_500)), (3_200, Stops("W1"))])
    world.run(20_000)
    (left,) = (process for process in world.processes if process.alive)
    assert left.name == "W2"
    assert sorted(map(str, left.using)) == used(world) == tasks
