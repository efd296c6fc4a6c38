"""No two members use a task at once: sessions in a world of delays, freezes and lost time.

The coordinator is a small eager one (any that keeps the contract will do), and the real `advance`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.world import (
    BEAT_MS,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    TASKS,
    Coordinator,
    SmallCoordinator,
    World,
)

from muster.protocol.digest import Holding
from muster.protocol.events import Event, GroupConfig, Origin
from muster.protocol.records import Record
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology, TaskSet
from muster.state import invariants, machine
from muster.state.group import Group
from muster.worker.exchange import Begin, LeaveAsked
from muster.worker.states import State


class RealCoordinator:
    """`advance`, batch by batch."""

    def __init__(self) -> None:
        values = {
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": BEAT_MS,
            "rebalance.timeout.ms": REBALANCE_MS,
        }
        config = GroupConfig(
            group=GROUP,
            assignor="sticky",
            settings=parse_settings(values),
            tasks=(Subtopology("0", len(TASKS)),),
            origin=Origin("muster.config", 0, 0, 1),
        )
        self.group = Group.new(GROUP)
        self.wake: int | None = None
        self.take([config])

    @property
    def generation(self) -> int:
        """Of the group."""
        return self.group.generation

    def wake_ms(self) -> int | None:
        """When it wants a tick at the latest."""
        return self.wake

    def take(self, events: Sequence[Event]) -> Sequence[Record]:
        """One step."""
        step = machine.advance(self.group, events, coordinator_epoch=1)
        self.group, self.wake = step.group, step.wake_at_ms
        invariants.check(self.group)
        return step.records


COORDINATORS = [SmallCoordinator, RealCoordinator]


@pytest.mark.parametrize("coordinator", COORDINATORS)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4))
def test_no_task_has_two_users(coordinator: type[Coordinator], seed: int, count: int) -> None:
    """Whatever goes wrong, no two members use one task at one moment of true time."""
    world = World(random.Random(seed), count, coordinator())
    world.begin()
    world.run(20_000)
    assert world.overlaps == []


@pytest.mark.parametrize("coordinator", COORDINATORS)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4))
def test_after_the_trouble_everything_is_owned_again(
    coordinator: type[Coordinator], seed: int, count: int
) -> None:
    """When nothing goes wrong any more, every task is used and every session well."""
    world = World(random.Random(seed), count, coordinator())
    world.begin()
    world.run(8_000)
    world.calm()
    world.run(30_000)
    assert {m.session.state for m in world.members} == {State.MEMBER}
    assert [t for t in TASKS if not any(world.uses(m, t) for m in world.members)] == []
    for member in world.members:
        assert member.session.holding == Holding(active=TaskSet.of(member.using))
    assert world.overlaps == []


@pytest.mark.slow
@pytest.mark.parametrize("coordinator", COORDINATORS)
def test_no_task_has_two_users_in_many_worlds(coordinator: type[Coordinator]) -> None:
    """The same for sixty worlds of up to six members, half a minute each."""
    found = {}
    for seed in range(60):
        world = World(random.Random(seed), 1 + seed % 6, coordinator())
        world.begin()
        world.run(30_000)
        found[seed] = world.overlaps
    assert {seed: overlaps for seed, overlaps in found.items() if overlaps} == {}


@pytest.mark.parametrize("coordinator", COORDINATORS)
def test_the_world_is_troubled_enough(coordinator: type[Coordinator]) -> None:
    """The property above is not empty: tasks change hands often, sessions are lost and regained."""
    world = World(random.Random(7), 3, coordinator())
    first = [m.session.incarnation for m in world.members]
    world.begin()
    world.run(60_000)
    assert world.owner_changes > 10
    assert world.coordinator.generation > 10
    assert all(m.session.incarnation != i for m, i in zip(world.members, first, strict=True))


@pytest.mark.parametrize("coordinator", COORDINATORS)
def test_a_reader_that_hangs(coordinator: type[Coordinator]) -> None:
    """Its heartbeats go on, what it is asked back it never reads: others get it, and it stops."""
    world = World(random.Random(5), 2, coordinator())
    deaf, other = world.members
    world.at(0, lambda: world.give(deaf, Begin()))
    world.run(3_000)
    assert all(world.uses(deaf, task) for task in TASKS)
    deaf.deaf_until = 60_000
    world.at(world.now, lambda: world.give(other, Begin()))
    world.run(20_000)
    assert all(world.uses(other, task) for task in TASKS)
    assert world.overlaps == []


@pytest.mark.parametrize("coordinator", COORDINATORS)
def test_leaving_in_trouble(coordinator: type[Coordinator]) -> None:
    """A member that leaves a troubled group ends, and its tasks are somebody else's."""
    world = World(random.Random(3), 2, coordinator())
    world.begin()
    world.run(5_000)
    world.calm()
    world.give(world.members[0], LeaveAsked())
    world.run(20_000)
    assert world.members[0].session.state is State.ENDED
    assert sorted(world.members[1].using) == sorted(TASKS)
    assert world.overlaps == []
