"""Subtopologies are spread over members: for free where moves are equal, more with a bound."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignor.histories import Life
from support.assignor.placing import Member, counts, group
from support.assignor.random_groups import placed
from support.suite.examples import examples

from muster.assignor import registry
from muster.assignor.model import NO_MEMBER, GroupView
from muster.protocol.tasks import Subtopology

NAMES = ["sticky", "high-availability"]


def by_unit(view: GroupView, owner: np.ndarray) -> np.ndarray:
    """int[U, M]: how many tasks of each subtopology each member has."""
    count = np.zeros((len(view.tasks.units), len(view.members)), dtype=np.int64)
    owned = owner != NO_MEMBER
    np.add.at(count, (view.tasks.unit_of[owned], owner[owned]), 1)
    return count


def widest(view: GroupView, owner: np.ndarray) -> int:
    """The largest difference of two members' tasks of one subtopology."""
    return int(np.ptp(by_unit(view, owner), axis=1).max(initial=0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("size", [2, 40, 1_200])
def test_a_newcomer_gets_some_of_each(name: str, state: bool, size: int) -> None:
    """P1 has two subtopologies and P2 joins: half of each moves, in small groups and large."""
    units = [Subtopology(n, size, stateful=state) for n in ("1", "2")]
    everything = [f"{unit.name}_{p}" for unit in units for p in range(size)]
    view = group(units, {"P1": Member(active=everything), "P2": Member()})
    owner = placed(view, name).destination
    assert by_unit(view, owner).tolist() == [[size // 2] * 2] * 2


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**40), st.sampled_from(NAMES))
def test_the_most_even_of_the_placements_with_fewest_moves(seed: int, name: str) -> None:
    """Up to 3 equal members and 6 stateless tasks: no placement with as few moves is more even."""
    rng = random.Random(seed)
    units = [Subtopology(str(n), rng.randint(1, 3)) for n in range(2)]
    number, tasks = rng.randint(2, 3), sum(unit.partitions for unit in units)
    home = np.array([rng.randrange(NO_MEMBER, number) for _ in range(tasks)], dtype=np.int32)
    held: dict[str, list[str]] = {f"P{m}": [] for m in range(number)}
    printed = [f"{unit.name}_{p}" for unit in units for p in range(unit.partitions)]
    for task, member in zip(printed, home.tolist(), strict=True):
        if member != NO_MEMBER:
            held[f"P{member}"].append(task)
    view = group(units, {n: Member(active=tasks) for n, tasks in held.items()})

    def judged(owner: np.ndarray) -> tuple[int, int]:
        moved = int(((owner != home) & (home != NO_MEMBER)).sum())
        return moved, int((by_unit(view, owner) ** 2).sum())

    every = np.array(list(itertools.product(range(number), repeat=tasks)), dtype=np.int32)
    fair = [
        owner for owner in every if np.ptp(np.bincount(owner, minlength=number)) <= 1
    ]  # fmt: skip
    assert judged(placed(view, name).active) == min(map(judged, fair))


def test_standbys_are_spread_as_well() -> None:
    """Two subtopologies of two tasks on four members: no member has two copies of one."""
    units = [Subtopology(n, 2, stateful=True) for n in ("1", "2")]
    members = {f"P{n}": Member() for n in range(4)}
    view = group(units, members, num_standby_replicas=1)
    placement = placed(view)
    held = by_unit(view, placement.active)
    np.add.at(held, (view.tasks.unit_of[placement.standby.task], placement.standby.member), 1)
    assert held.max() == 1


def _clumped(rng: random.Random, units: list[Subtopology], names: list[str]) -> list[str]:
    """Tasks in an order in which each member gets neighbours."""
    tasks = [f"{unit.name}_{p}" for unit in units for p in range(unit.partitions)]
    if rng.random() < 0.3:
        rng.shuffle(tasks)
    return tasks


def _life(rng: random.Random, name: str, members: int, most: int) -> Life:
    units = [
        Subtopology(str(n), rng.randint(1, most), stateful=rng.random() < 0.7)
        for n in range(rng.randint(1, 4))
    ]
    names = [f"P{n:02}" for n in range(members)]
    tasks = _clumped(rng, units, names)
    held = np.array_split(np.array(tasks), len(names))
    fleet = {n: Member(active=part.tolist()) for n, part in zip(names, held, strict=True)}
    return Life(
        registry.get(name),
        units,
        fleet,
        {
            "subtopology_imbalance_max": rng.randint(1, 2),
            "max_warmup_replicas": rng.randint(1, 4),
            "num_standby_replicas": rng.choice([0, 0, 1]) if members < 10 else 0,
        },
    )


def _lived(
    seed: int, name: str, members: tuple[int, int], most: int, caught_up: float, **config: int
) -> None:
    """Joins, losses, copies that catch up at random; the group always ends within its bound."""
    rng = random.Random(seed)
    life = _life(rng, name, rng.randint(*members), most)
    life.config.update(config)
    life.restored = lambda _name, _task: rng.random() < caught_up
    for _ in range(3):
        for _ in range(400):
            view, placement = life.round()
            if placement.followup_ms is None:
                break
        assert placement.followup_ms is None
        assert widest(view, placement.active) <= int(life.config["subtopology_imbalance_max"])
        _, again = life.round()
        assert not again.reasons
        if rng.random() < 0.5 or len(life.members) == 1:
            life.members[f"Q{rng.randrange(100):02}"] = Member()
        else:
            del life.members[rng.choice(sorted(life.members))]


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**40), st.sampled_from(NAMES))
def test_a_bound_is_reached_and_kept(seed: int, name: str) -> None:
    """Small groups that begin clumped: within the bound in the end, and then nothing moves."""
    _lived(seed, name, members=(1, 6), most=9, caught_up=0.6)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**40), st.sampled_from(NAMES))
def test_a_bound_is_reached_in_large_groups(seed: int, name: str) -> None:
    """The same with 41 and more members, where no answer is found task by task."""
    _lived(seed, name, members=(42, 50), most=60, caught_up=0.8, max_warmup_replicas=40)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**40), st.sampled_from(NAMES))
def test_a_bound_counts_by_capacity(seed: int, name: str) -> None:
    """Members of capacity 1 to 4: loads of a subtopology by capacity come within the bound."""
    rng = random.Random(seed)
    life = _life(rng, name, rng.randint(2, 6), 9)
    life.members = {
        n: Member(active=list(m.active), capacity=rng.choice([1, 2, 4]))
        for n, m in life.members.items()
    }
    life.config["subtopology_imbalance_max"] = 2
    for _ in range(400):
        view, placement = life.round()
        if placement.followup_ms is None:
            break
    size = view.capacity // np.gcd.reduce(view.capacity)
    assert float(np.ptp(by_unit(view, placement.active) / size, axis=1).max()) <= 2 + 1e-9
    assert not life.round()[1].reasons


@pytest.mark.parametrize("name", NAMES)
def test_without_a_bound_nothing_moves_for_it(name: str) -> None:
    """Each of two members has a subtopology: they stay; with a bound of 1, half are exchanged."""
    units = [Subtopology(n, 4) for n in ("0", "1")]
    members = {
        n: Member(active=[f"{u}_{p}" for p in range(4)]) for n, u in (("A", "0"), ("B", "1"))
    }
    assert not placed(group(units, members), name).reasons
    bound = group(units, members, subtopology_imbalance_max=1)
    placement = placed(bound, name)
    assert by_unit(bound, placement.active).tolist() == [[2, 2], [2, 2]]
    texts = {reason.text for reason in placement.reasons}
    assert texts == {
        "balance of subtopology 0 4/0 -> 2/2",
        "balance of subtopology 1 4/0 -> 2/2",
    }
    assert counts(bound, placement) == {"A": (4, 0, 0), "B": (4, 0, 0)}


def test_a_bound_that_cannot_be_honoured_is_reported() -> None:
    """Too many subtopologies x members for a bound: a warning, and the placement without it."""
    units = [Subtopology(str(n), 1) for n in range(2_001)]
    view = group(units, {f"P{n:03}": Member() for n in range(100)}, subtopology_imbalance_max=1)
    assert placed(view).warnings == (
        "subtopology.imbalance.max is not honoured: more than 200,000 subtopologies x members",
    )


def test_topics_are_spread_where_members_differ() -> None:
    """P1 may take two subtopologies, the newcomer P3 the same: it gets one task of each."""
    units = [Subtopology(n, 2) for n in ("1", "2", "3")]
    members = {
        "P1": Member(active=["1_0", "1_1", "2_0", "2_1"], topics=["1", "2"]),
        "P2": Member(active=["3_0", "3_1"], topics=["3"]),
        "P3": Member(topics=["1", "2"]),
    }
    view = group(units, members)
    assert by_unit(view, placed(view, "sticky").active).tolist() == [
        [1, 0, 1],
        [1, 0, 1],
        [0, 2, 0],
    ]
