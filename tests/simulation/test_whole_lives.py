"""Simulated groups with the real coordinator: which tasks change their owner, and how often."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from fault_injection import faults
from fault_injection.fault_run import FaultRun

from muster.protocol.events import Join
from muster.protocol.ids import MemberId, Role
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector, Subtopology, Unit
from muster.simulation.scenario import Configured, Crashes, Joins, Leaves, Scenario, ScenarioEvent
from muster.simulation.scenario_player import GROUP, SimulatedGroup

Owners = dict[str, str]
TASKS = Subtopology("0", 60, stateful=True)


def comes(name: str, *, static: bool = False, heartbeat_ms: int = 3_000, **spans: Any) -> Joins:
    """A member joins."""
    instance = name if static else None
    who = Join(group=GROUP, member=MemberId(name), incarnation=0, instance_id=instance)
    return Joins(join=who, heartbeat_ms=heartbeat_ms, **spans)


def played(
    events: list[tuple[int, ScenarioEvent]],
    until_ms: int,
    *tasks: Unit,
    assignor: str = "sticky",
    **config: object,
) -> list[Owners]:
    """Owner of every task after each generation."""
    values = {key.replace("_", "."): value for key, value in config.items()}
    group = Configured(
        assignor=assignor, settings=parse_settings(values, assignor), tasks=tasks or (TASKS,)
    )
    world = SimulatedGroup()
    world.play(Scenario(group=group, events=tuple(events), until_ms=until_ms))
    assert world.timeline.settled
    entries = world.timeline.entries
    return [
        {task: name for name, held in entry.members.items() for task in next(iter(held.values()))}
        for entry in entries
    ]


def moved(before: Owners, after: Owners) -> set[str]:
    """Tasks whose owner changed."""
    return {task for task, owner in before.items() if after.get(task) != owner}


@pytest.mark.parametrize(
    ("tasks", "joins"),
    [
        pytest.param(240, 30, id="small"),
        pytest.param(2_000, 1_000, id="thousand", marks=pytest.mark.slow),
    ],
)
def test_a_trickle_of_joins_moves_each_share_once(tasks: int, joins: int) -> None:
    """Each joining member takes its share of the tasks, and nothing else moves."""
    events = [(2_000 * n, comes(f"m{n:05d}", heartbeat_ms=40_000)) for n in range(joins)]
    generations = played(
        events, 2_000 * (joins + 2), Subtopology("0", tasks), heartbeat_interval_ms=40_000
    )
    assert [len(moved(*pair)) for pair in pairwise(generations)] == [
        tasks // n for n in range(2, joins + 1)
    ]


@pytest.mark.parametrize("tasks", [12, 1_200])
@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("assignor", ["sticky", "learner", "high-availability"])
def test_a_member_gives_up_what_it_does_not_run_yet(assignor: str, units: int, tasks: int) -> None:
    """W4 joins while W1 still stops tasks for W3: W3 goes on with all that it has from W2."""
    names = [("W1", 0, 3_000), ("W2", 0, 0), ("W3", 20_000, 0), ("W4", 21_000, 0)]
    generations = played(
        [(at_ms, comes(name, ack_ms=ack_ms)) for name, at_ms, ack_ms in names],
        30_000,
        *(Subtopology(str(unit), tasks // units) for unit in range(units)),
        assignor=assignor,
    )
    running, owned = ({task for task, m in of.items() if m == "W3"} for of in generations[1:])
    assert len(running) == tasks // 6
    assert len(owned) == tasks // 4
    assert running <= owned


def test_a_learner_that_takes_over_moves_no_standby() -> None:
    """W3 joins and learns; the standbys are placed once, for the group that it becomes."""
    group = Configured(
        assignor="learner",
        settings=parse_settings({"num.standby.replicas": 1}, "learner"),
        tasks=(Subtopology("0", 3, stateful=True),),
    )
    joins = [(0, "W1"), (0, "W2"), (60_000, "W3")]
    events = tuple((at_ms, comes(name, restore_ms=20_000)) for at_ms, name in joins)
    world = SimulatedGroup()
    world.play(Scenario(group=group, events=events, until_ms=120_000))
    _, joined, learned = world.timeline.entries
    placed = [(move.role, move.to_member) for move in joined.moves]
    assert sorted(placed) == [(Role.STANDBY, "W3"), (Role.LEARNER, "W3")]
    assert [(move.role, move.to_member) for move in learned.moves] == [(Role.ACTIVE, "W3")]


@pytest.mark.parametrize("assignor", ["sticky", "learner", "high-availability"])
def test_half_of_the_fleet_is_lost_and_comes_back(assignor: str) -> None:
    """Only tasks of lost members move, in one generation each way; the others keep theirs."""
    names = [f"m{n}" for n in range(10)]
    events: list[tuple[int, ScenarioEvent]] = [(0, comes(name)) for name in names]
    events += [(100_000, Crashes(name)) for name in names[5:]]
    events += [(300_000, comes(name)) for name in names[5:]]
    generations = played(events, 900_000, assignor=assignor)
    before, lost = generations[0], generations[1]
    assert {before[task] for task in moved(before, lost)} == set(names[5:])
    assert Counter(lost.values()) == dict.fromkeys(names[:5], 12)
    back = generations[-1]
    assert Counter(back.values()) == dict.fromkeys(names, 6)
    assert {back[task] for task in moved(lost, back)} == set(names[5:])
    assert len(moved(lost, back)) == 30


def test_a_rolling_restart_of_static_members_moves_nothing() -> None:
    """Each of twelve members restarts within 10 s, one after the other; owners stay."""
    names = [f"m{n:02d}" for n in range(12)]
    events: list[tuple[int, ScenarioEvent]] = [(0, comes(name, static=True)) for name in names]
    for n, name in enumerate(names):
        at_ms = 60_000 * (n + 1)
        events += [
            (at_ms, Leaves(name, temporary=True)),
            (at_ms + 10_000, comes(name, static=True)),
        ]
    generations = played(events, 900_000)
    assert all(moved(generations[0], each) == set() for each in generations)
    assert sorted(generations[-1]) == sorted(generations[0])


def test_a_rolling_restart_of_connect_workers_within_the_delay_moves_nothing() -> None:
    """Without instance ids lost tasks wait until their member returns under the same name."""
    names = ("w1", "w2", "w3")
    units = (Connector("a", 4), Connector("b", 3))
    events: list[tuple[int, ScenarioEvent]] = [(0, comes(name)) for name in names]
    for n, name in enumerate(names):
        at_ms = 100_000 * (n + 1)
        events += [(at_ms, Leaves(name)), (at_ms + 10_000, comes(name))]
    values = {"scheduled_rebalance_max_delay_ms": 60_000}
    generations = played(events, 700_000, *units, assignor="cooperative", **values)
    placed = [each for each in generations if len(each) == 9]
    assert len(placed[0]) == 9
    sizes = sorted(Counter(placed[0].values()).values())
    for each in placed[1:]:
        assert sorted(Counter(each.values()).values()) == sizes
    survivors = [moved(*pair) for pair in pairwise(placed)]
    assert survivors == [set()] * len(survivors)


@pytest.mark.parametrize("static", [True, False])
def test_a_broker_away_for_longer_than_every_session(static: bool) -> None:
    """With real sessions members that lost their lease get the same tasks again on return."""
    world = FaultRun(0)
    world.configure(faults.Configures(0, 3, 0))
    names = faults.STATIC if static else faults.NAMES[:2]
    for name in names:
        world.happen(faults.Starts(name))
    world.run(5_000)
    before = owners(world)
    assert len(before) == 5
    changes = world.changes
    world.happen(faults.BrokerLeaves(4 * faults.SESSION_MS))
    world.run(5_000 + 3 * faults.SESSION_MS)
    assert all(not process.session.holding for process in world.processes)
    world.settle()
    after = owners(world)
    assert len(after) == 5
    assert (after, world.changes) == (before, changes)


def owners(world: FaultRun) -> dict[str, str]:
    """Task → process that uses it."""
    return {str(task): process.name for process in world.processes for task in process.using}
