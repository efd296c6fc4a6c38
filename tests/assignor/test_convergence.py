"""`high-availability` over many rounds: S2-F29's bounds, EX-H13, EX-H14, fixed points."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignor.histories import Life
from support.assignor.placing import Member
from support.suite.examples import examples

from muster.assignor import registry
from muster.assignor.high_availability_assignor import HighAvailability
from muster.assignor.model import GroupView, Placement
from muster.protocol.tasks import Subtopology


def _units(stateful: int, stateless: int) -> list[Subtopology]:
    """Subtopologies of at most 5 partitions."""
    sizes = [(5, True)] * (stateful // 5) + [(stateful % 5, True)]
    sizes += [(5, False)] * (stateless // 5) + [(stateless % 5, False)]
    return [
        Subtopology(str(n), size, stateful=kind) for n, (size, kind) in enumerate(sizes) if size
    ]


def _life(stateful: int, stateless: int, members: int, **config: object) -> Life:
    names = {f"P{i:03}": Member() for i in range(members)}
    return Life(HighAvailability(), _units(stateful, stateless), names, config)


def _spread(counts: np.ndarray) -> int:
    return int(counts.max() - counts.min())


def _assert_balanced(view: GroupView, placement: Placement) -> None:
    """Stateful actives, all actives, standbys, and their sum differ by at most 1."""
    members = len(view.members)
    stateful = view.tasks.stateful
    actives = np.bincount(placement.active, minlength=members)
    warm = np.bincount(placement.active[stateful], minlength=members)
    standbys = np.bincount(placement.standby.member, minlength=members)
    assert _spread(warm) <= 1
    assert _spread(actives) <= 1
    assert _spread(standbys) <= 1
    assert _spread(warm + standbys) <= 1


def test_EX_H13_second_member_joins() -> None:
    """11 stateful and 7 stateless tasks on one member, a second joins: at most 6 rounds."""
    life = _life(11, 7, 1, max_warmup_replicas=2)
    assert life.converge(1) == 1
    life.members["P001"] = Member()
    assert life.converge(11 // 2 + 1) <= 6


@pytest.mark.parametrize("victim", range(7))
def test_EX_H14_one_of_seven_members_is_lost(victim: int) -> None:
    """13 stateful and 11 stateless tasks on 7 members, any one is lost: at most 8 rounds."""
    life = _life(13, 11, 7, max_warmup_replicas=2)
    assert life.converge(1) == 1
    del life.members[f"P{victim:03}"]
    assert life.converge(13 // 2 + 2) <= 8


@st.composite
def lives(draw: st.DrawFn) -> tuple[Life, random.Random]:
    life = _life(
        draw(st.integers(0, 17)),
        draw(st.integers(0, 12)),
        draw(st.integers(1, 6)),
        max_warmup_replicas=draw(st.integers(1, 5)),
        num_standby_replicas=draw(st.integers(0, 2)),
    )
    return life, random.Random(draw(st.integers(0, 2**32)))


def _perturb(life: Life, rng: random.Random) -> str:
    """Join, loss, or the start of draining."""
    names = sorted(life.members)
    kind = rng.choice(["join", "lose", "drain"])
    if kind == "join" or len(names) == 1:
        life.members[f"P{rng.randrange(1000):03}"] = Member()
        return "join"
    name = rng.choice(names)
    if kind == "lose":
        del life.members[name]
    else:
        life.members[name] = replace(life.members[name], draining=True)
    return kind


def _live(life: Life, rng: random.Random, steps: int) -> None:
    """Perturb and converge within S2-F29's bound; the end is balanced and a fixed point."""
    for _ in range(steps):
        _perturb(life, rng)
        tasks = sum(unit.partitions for unit in life.units if unit.stateful)
        standbys = int(life.config["num_standby_replicas"])
        bound = max(1, 2 * (tasks + tasks * standbys))  # without stateful tasks: one round
        life.converge(bound)
        life.members = {n: m for n, m in life.members.items() if not m.draining} or {
            "P999": Member()
        }
        life.converge(bound)
    view, placement = life.round()
    _assert_balanced(view, placement)
    _, same = life.round()
    assert np.array_equal(same.active, placement.active)
    assert np.array_equal(same.standby.code, placement.standby.code)
    assert len(same.reasons) == 0
    assert len(same.learner) == 0


@settings(max_examples=examples(40), deadline=None)
@given(lives())
def test_random_lives_converge(start: tuple[Life, random.Random]) -> None:
    """Joins, losses and drains in any order: converges in S2-F29's bound to a fixed point."""
    _live(*start, steps=3)


@pytest.mark.slow
def test_hundreds_of_random_lives_converge() -> None:
    """The same over 500 seeded lives."""
    for seed in range(500):
        rng = random.Random(seed)
        life = _life(
            rng.randrange(25),
            rng.randrange(15),
            rng.randrange(1, 9),
            max_warmup_replicas=rng.randrange(1, 6),
            num_standby_replicas=rng.randrange(3),
        )
        _live(life, rng, steps=4)


@settings(max_examples=examples(40), deadline=None)
@given(lives(), st.sampled_from(["high-availability", "learner"]))
def test_running_learners_are_kept(start: tuple[Life, random.Random], name: str) -> None:
    """Copies restore at random, in any order: a learner stays until it runs its task.

    `high-availability` promises that while members join, for learners that do not relieve a
    standby: when a member is lost, another copy may become the better destination.
    """
    life, rng = start
    life.assignor = registry.get(name)
    if name == "high-availability":
        life.config["num_standby_replicas"] = 0
    life.round()
    life.restored = lambda _name, _task: rng.random() < 0.4
    for _ in range(2):
        if name == "learner":
            _perturb(life, rng)
        else:
            life.members[f"P{rng.randrange(1000):03}"] = Member()
        _, placement = life.round()
        for _ in range(60):
            aims = placement.destination
            view, placement = life.round()
            heirs = view.learner.code[aims[view.learner.task] == view.learner.member]
            waiting = np.setdiff1d(heirs, view.ready.code)
            assert np.isin(waiting, placement.learner.code).all()
            if len(placement.learner) == 0:
                break
        assert len(placement.learner) == 0


@settings(max_examples=examples(60), deadline=None)
@given(lives())
def test_adding_and_dropping_one_member_converges_fast(start: tuple[Life, random.Random]) -> None:
    """Without standbys: floor(S/W)+1 rounds after a join, floor(S/W)+2 after a loss (S2-F29).

    Two at least after a join: one to warm up, one to take over.
    """
    life, rng = start
    life.config["num_standby_replicas"] = 0
    tasks = sum(unit.partitions for unit in life.units if unit.stateful)
    budget = int(life.config["max_warmup_replicas"])
    assert life.converge(1) == 1
    life.members["P500"] = Member()
    life.converge(max(2, tasks // budget + 1))
    del life.members[rng.choice(sorted(life.members))]
    life.converge(tasks // budget + 2)
