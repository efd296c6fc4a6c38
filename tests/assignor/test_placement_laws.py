"""Laws of placement: fewest moves, balance, never cold, budgets, optimal racks, determinism.

Small groups are compared with brute force over every possible answer.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import cache

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.placing import Member, group, holdings

from muster.assignor import check, registry
from muster.assignor.model import NOBODY, GroupView, Placement, group_view
from muster.assignor.shares import rounded_down
from muster.protocol.settings import Settings
from muster.protocol.tasks import Subtopology, TaskTable


def _placed(view: GroupView, name: str = "high-availability") -> Placement:
    placement = registry.get(name).assign(view)
    check.valid(view, placement)
    return placement


@cache
def _balanced(tasks: int, members: int) -> np.ndarray:
    """Every assignment of tasks to equal members whose counts differ by at most 1."""
    every = np.array(list(itertools.product(range(members), repeat=tasks)), dtype=np.int32)
    every = every.reshape(members**tasks, tasks)
    counts = np.stack([(every == m).sum(axis=1) for m in range(members)])
    return every[counts.max(axis=0) - counts.min(axis=0) <= 1]


@pytest.mark.parametrize("name", ["sticky", "high-availability"])
@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_fewest_moves_exhaustively(members: int, name: str) -> None:
    """Up to 4 members and 5 tasks, every previous placement: no balanced answer moves fewer."""
    for tasks in range(1, 6):
        answers = _balanced(tasks, members)
        table = TaskTable([Subtopology("0", tasks)])
        for home in itertools.product(range(NOBODY, members), repeat=tasks):
            owner = np.array(home, dtype=np.int32)
            view = group_view(
                tasks=table,
                settings=Settings(),
                members=("a", "b", "c", "d")[:members],
                active=owner,
            )
            active = registry.get(name).assign(view).active
            moved = int(((active != owner) & (owner != NOBODY)).sum())
            fewest = int(((answers != owner) & (owner != NOBODY)).sum(axis=1).min())
            assert moved == fewest, (home, active)
            counts = np.bincount(active, minlength=members)
            assert counts.max() - counts.min() <= 1


LAGS = [0, 50, 100, 101, 5000]


@st.composite
def problems(draw: st.DrawFn, *, racks: bool = False) -> tuple[list[Subtopology], dict, dict]:
    """Units, members by name, config: any roles, lags, capacities, draining."""
    chance = random.Random(draw(st.integers(0, 2**40)))
    units = []
    for name in range(chance.randint(1, 3)):
        size = chance.randint(1, 6)
        lists = tuple((tuple(chance.sample(["r0", "r1", "r2"], 2)),) for _ in range(size))
        units.append(
            Subtopology(
                str(name),
                size,
                stateful=chance.random() < 0.7,
                source_racks=lists if racks else None,
                changelog_racks=lists if racks else None,
            )
        )
    members = _members(chance, units, racks)
    config: dict[str, object] = {
        "num_standby_replicas": chance.randint(0, 2),
        "max_warmup_replicas": chance.randint(1, 4),
        "acceptable_recovery_lag": 100,
    }
    if racks:
        config["rack_aware_assignment_strategy"] = chance.choice(
            ["min_traffic", "balance_subtopology"]
        )
    return units, members, config


def _members(chance: random.Random, units: list[Subtopology], racks: bool) -> dict[str, Member]:
    names = [f"P{n}" for n in range(chance.randint(1, 6))]
    restricted = chance.random() < 0.3
    equal = chance.random() < 0.5
    held: dict[str, dict[str, list[str]]] = {
        n: {"active": [], "standby": [], "learner": [], "ready": []} for n in names
    }
    lag: dict[str, dict[str, int]] = {n: {} for n in names}
    for unit in units:
        for task in (f"{unit.name}_{p}" for p in range(unit.partitions)):
            roles = chance.sample(names, len(names))
            if chance.random() < 0.8:
                held[roles.pop()]["active"].append(task)
            if not unit.stateful:
                continue
            for role in ("standby", "standby", "learner"):
                if roles and chance.random() < 0.4:
                    name = roles.pop()
                    held[name][role].append(task)
                    lag[name][task] = chance.choice(LAGS)
                    if role == "learner" and chance.random() < 0.5:
                        held[name]["ready"].append(task)
            for name in roles:
                if chance.random() < 0.1:
                    lag[name][task] = chance.choice(LAGS)
    return {
        n: Member(
            capacity=1 if equal else chance.randint(1, 4),
            rack=chance.choice(["r0", "r1", "r2"]) if racks else None,
            draining=chance.random() < 0.15,
            topics=_topics(chance, units) if restricted else None,
            lag=lag[n],
            **held[n],
        )
        for n in names
    }


def _topics(chance: random.Random, units: list[Subtopology]) -> list[str] | None:
    return None if chance.random() < 0.4 else [u.name for u in units if chance.random() < 0.7]


def _restricted(view: GroupView) -> bool:
    return any(topics is not None for topics in view.topics)


def _may(view: GroupView) -> np.ndarray:
    """bool[T, M]: who may take what."""
    names = [u.name for u in view.tasks.units]
    return np.array(
        [
            [topics is None or names[unit] in topics for topics in view.topics]
            for unit in view.tasks.unit_of.tolist()
        ]
    ).reshape(len(view.tasks), len(view.members))


def _warm(view: GroupView) -> np.ndarray:
    """bool[T, M]: who could run what at once."""
    warm = np.zeros((len(view.tasks), len(view.members)), dtype=np.bool_)
    acceptable = view.lags.offsets <= view.settings.acceptable_recovery_lag
    warm[view.lags.task[acceptable], view.lags.member[acceptable]] = True
    warm[view.ready.task, view.ready.member] = True
    owned = view.active != NOBODY
    warm[np.flatnonzero(owned), view.active[owned]] = True
    return warm


@settings(max_examples=150, deadline=None)
@given(problems())
def test_high_availability_obeys_its_laws(problem: tuple) -> None:
    """Any group: lawful, balanced in the end, never cold beside warm, learners in budget."""
    units, members, config = problem
    view = group(units, members, **config)
    placement = _placed(view)
    draining = view.draining & ~view.draining.all()
    capacity = np.where(draining, 0, view.capacity)
    stateful = view.tasks.stateful
    if not _restricted(view):
        counts = np.bincount(placement.destination, minlength=len(capacity))
        load = counts[capacity > 0] / capacity[capacity > 0]
        assert load.max() - load.min() <= 1 + 1e-9
        counts = np.bincount(placement.destination[stateful], minlength=len(capacity))
        load = counts[capacity > 0] / capacity[capacity > 0]
        assert load.max() - load.min() <= 1 + 1e-9
    warm = _warm(view)
    for task in np.flatnonzero(stateful).tolist():
        could = (
            warm[task]
            & _may(view)[task]
            & (~draining | (view.active[task] == np.arange(len(capacity))))
        )
        if could.any():
            assert warm[task, placement.active[task]]
    assert len(placement.learner) <= view.settings.max_warmup_replicas
    wanted = min(view.settings.num_standby_replicas, int((capacity > 0).sum()) - 1)
    copies = np.bincount(placement.standby.task, minlength=len(view.tasks))
    assert _restricted(view) or (copies[stateful] == max(wanted, 0)).all()


@settings(max_examples=150, deadline=None)
@given(problems())
def test_high_availability_moves_no_stateful_task_in_vain(problem: tuple) -> None:
    """Stateful tasks that end elsewhere are as few as any floor-or-ceiling shares allow."""
    units, members, config = problem
    view = group(
        units, {n: replace(m, capacity=1, topics=None) for n, m in members.items()}, **config
    )
    placement = _placed(view)
    draining = view.draining & ~view.draining.all()
    mine = view.tasks.stateful & (view.active != NOBODY)
    staying = mine & ~draining[view.active]
    held = np.bincount(view.active[staying], minlength=len(draining))[~draining]
    floor, extras = rounded_down(int(view.tasks.stateful.sum()), np.ones(len(held), dtype=np.int64))
    kept = np.minimum(held, floor).sum() + min(extras, int((held > floor).sum()))
    moved = staying & (placement.destination != view.active)
    assert int(moved.sum()) == int(staying.sum() - kept)


@settings(max_examples=100, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_input_order_does_not_matter(problem: tuple, chance: random.Random) -> None:
    """Members and units in another order: the same placement, reasons included."""
    units, members, config = problem
    names = list(members)
    chance.shuffle(names)
    shuffled = group(chance.sample(units, len(units)), {n: members[n] for n in names}, **config)
    view = group(units, members, **config)
    for name in ("high-availability", "sticky", "learner", "fallback"):
        one, other = _placed(view, name), _placed(shuffled, name)
        assert holdings(view, one) == holdings(shuffled, other)
        assert one.reasons == other.reasons


@settings(max_examples=100, deadline=None)
@given(problems(racks=True))
def test_every_move_has_a_reason(problem: tuple) -> None:
    """Whatever is held after and was not before, and nothing else, is given a reason."""
    units, members, config = problem
    view = group(units, members, **config)
    for name in ("high-availability", "sticky", "learner", "fallback"):
        placement = _placed(view, name)
        told = {(r.task, int(r.role), r.destination) for r in placement.reasons}
        after = {(t, 1, int(m)) for t, m in enumerate(placement.active) if m != NOBODY}
        before = {(t, 1, int(m)) for t, m in enumerate(view.active)}
        for role, now, then in (
            (2, placement.standby, view.standby),
            (3, placement.learner, view.learner),
        ):
            after |= {(int(t), role, int(m)) for t, m in zip(now.task, now.member, strict=True)}
            before |= {(int(t), role, int(m)) for t, m in zip(then.task, then.member, strict=True)}
        assert told == after - before
        assert all(reason.text for reason in placement.reasons)


def _across(view: GroupView) -> np.ndarray:
    """int[T, M]: partitions each task reads across racks on each member, from the declaration."""
    rows = []
    for unit in view.tasks.units:
        for topics in unit.source_racks:
            rows.append([sum(view.racks[r] not in racks for racks in topics) for r in view.rack])
    return np.array(rows).reshape(len(view.tasks), len(view.members))


def _cheapest(view: GroupView, tasks: np.ndarray, by_unit: bool) -> int:
    """Least cost over every balanced placement of the tasks, by enumeration."""
    answers = _balanced(len(tasks), len(view.members))
    stateful = bool(view.tasks.stateful[tasks].any())
    traffic, overlap = (10, 1) if stateful else (1, 0)
    home = view.active[tasks]
    across = _across(view)[tasks]
    cost = traffic * across[np.arange(len(tasks)), answers].sum(axis=1)
    cost = cost + overlap * ((answers != home) & (home != NOBODY)).sum(axis=1)
    if by_unit:
        units = view.tasks.unit_of[tasks]
        fits = np.ones(len(answers), dtype=np.bool_)
        for unit in np.unique(units):
            mine = units == unit
            for member in range(len(view.members)):
                count = (answers == member).sum(axis=1)
                most = -(-int(mine.sum()) * count // len(tasks))
                fits &= (answers[:, mine] == member).sum(axis=1) <= most
        cost = cost[fits]
    return int(cost.min())


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**40))
def test_racks_are_optimal(seed: int) -> None:
    """Up to 3 members and 6 tasks of one kind: the cost is the least any balanced answer has."""
    chance = random.Random(seed)
    stateful = chance.random() < 0.6
    units = [
        Subtopology(
            str(n),
            chance.randint(1, 3),
            stateful=stateful,
            source_racks=None,
        )
        for n in range(2)
    ]
    units = [
        replace(
            u,
            source_racks=tuple(
                tuple(
                    tuple(chance.sample(["r0", "r1", "r2"], 2)) for _ in range(chance.randint(1, 2))
                )
                for _ in range(u.partitions)
            ),
        )
        for u in units
    ]
    names = [f"P{n}" for n in range(chance.randint(2, 3))]
    held: dict[str, list[str]] = {n: [] for n in names}
    for unit in units:
        for p in range(unit.partitions):
            if chance.random() < 0.8:
                held[chance.choice(names)].append(f"{unit.name}_{p}")
    members = {n: Member(rack=chance.choice(["r0", "r1", "r2"]), active=held[n]) for n in names}
    for strategy in ("min_traffic", "balance_subtopology"):
        view = group(units, members, rack_aware_assignment_strategy=strategy)
        placement = _placed(view)
        everything = np.arange(len(view.tasks))
        assert placement.cost_lower_bound <= placement.cost
        best = _cheapest(view, everything, strategy == "balance_subtopology")
        assert placement.cost == best, strategy


def test_racks_are_optimal_by_networkx() -> None:
    """90 tasks on 9 members with history: the same cost as networkx's network simplex."""
    chance = random.Random(11)
    racks = ["r0", "r1", "r2"]
    lists = tuple((tuple(chance.sample(racks, 1)),) for _ in range(90))
    unit = Subtopology("0", 90, stateful=True, source_racks=lists)
    held: dict[str, list[str]] = {f"P{n}": [] for n in range(9)}
    for p in range(90):
        held[f"P{chance.randrange(9)}"].append(f"0_{p}")
    members = {n: Member(rack=racks[int(n[1]) % 3], active=a) for n, a in held.items()}
    view = group([unit], members, rack_aware_assignment_strategy="min_traffic")
    across = _across(view)
    graph = nx.DiGraph()
    for task in range(90):
        graph.add_node(("t", task), demand=-1)
        for member in range(9):
            price = 10 * int(across[task, member]) + int(view.active[task] != member)
            graph.add_edge(("t", task), ("m", member), capacity=1, weight=price)
    for member in range(9):
        graph.add_node(("m", member), demand=10)
    placement = _placed(view)
    assert placement.cost == placement.cost_lower_bound == nx.min_cost_flow_cost(graph)


def test_missing_racks_are_warned_of_and_skipped() -> None:
    """A member without a rack, or a partition with unknown replicas: off, with the reason."""
    known = Subtopology("0", 1, source_racks=((("r0",),),))
    unknown = Subtopology("1", 1)
    strategy = {"rack_aware_assignment_strategy": "min_traffic"}
    view = group([known], {"P1": Member(rack="r0"), "P2": Member()}, **strategy)
    assert _placed(view).warnings == ("racks are ignored: member P2 has no rack",)
    view = group([known, unknown], {"P1": Member(rack="r0")}, **strategy)
    assert _placed(view).warnings == (
        "racks are ignored: racks of the inputs of task 1_0 are unknown",
    )


def test_rack_traffic_is_not_bought_with_balance() -> None:
    """Every replica in one rack: counts stay balanced all the same (S4-11)."""
    unit = Subtopology("0", 6, stateful=True, source_racks=((("r0",),),) * 6)
    members = {"P1": Member(rack="r0"), "P2": Member(rack="r1")}
    view = group([unit], members, rack_aware_assignment_strategy="min_traffic")
    placement = _placed(view)
    assert np.bincount(placement.active).tolist() == [3, 3]
    assert placement.cost == 30


@pytest.mark.parametrize("seed", range(5))
def test_extras_are_spread_over_seeds(seed: int) -> None:
    """A member joins and leaves at random 40 times: moves stay at the fewest, round by round."""
    chance = random.Random(seed)
    table = TaskTable([Subtopology("0", 100)])
    members = {f"m{n}" for n in range(7)}
    owner: dict[int, str] = {}
    for _ in range(40):
        name = f"m{chance.randrange(30)}"
        members = (members - {name}) or {name} if name in members else members | {name}
        names = tuple(sorted(members))
        active = np.array(
            [names.index(owner[t]) if owner.get(t) in members else NOBODY for t in range(100)],
            dtype=np.int32,
        )
        view = group_view(tasks=table, settings=Settings(), members=names, active=active)
        placement = _placed(view, "sticky")
        held = np.bincount(active[active != NOBODY], minlength=len(names))
        floor, extras = divmod(100, len(names))
        kept = np.minimum(held, floor).sum() + min(extras, int((held > floor).sum()))
        stayed = int((placement.active == active).sum())
        assert stayed == kept
        owner = {t: names[m] for t, m in enumerate(placement.active.tolist())}


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**40))
def test_restricted_topics_are_as_even_as_can_be(seed: int) -> None:
    """3 members with topics, up to 6 tasks: sum of squared loads least, then fewest moves."""
    chance = random.Random(seed)
    units = [Subtopology(str(n), chance.randint(1, 3)) for n in range(2)]
    topics = [chance.choice([["0"], ["1"], ["0", "1"], None]) for _ in range(3)]
    tasks = [f"{u.name}_{p}" for u in units for p in range(u.partitions)]
    held: list[list[str]] = [[], [], []]
    for task in tasks:
        if chance.random() < 0.8:
            held[chance.randrange(3)].append(task)
    members = {f"P{n}": Member(active=held[n], topics=topics[n]) for n in range(3)}
    view = group(units, members)
    may = _may(view)
    reachable = np.flatnonzero(may.any(axis=1))
    every = np.array(list(itertools.product(range(3), repeat=len(reachable))), dtype=np.int32)
    every = every[may[reachable, every].all(axis=1)]
    home = view.active[reachable]
    uneven = sum((every == m).sum(axis=1) ** 2 for m in range(3))
    best = every[uneven == uneven.min()]
    staying = (home != NOBODY) & may[reachable, home]
    fewest = ((best != home) & staying).sum(axis=1).min()
    for name in ("sticky", "high-availability"):
        active = _placed(view, name).active[reachable]
        counts = np.bincount(active, minlength=3)
        assert (counts**2).sum() == uneven.min()
        assert ((active != home) & staying).sum() == fewest
