"""`high-availability`: stateless tasks balance the load that runs now, and settle (S2-F25)."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignor.histories import Life
from support.assignor.placing import Member, counts, group
from support.assignor.random_groups import placed
from support.suite.examples import examples

from muster.assignor.high_availability_assignor import HighAvailability
from muster.protocol.tasks import Subtopology


def test_stateless_tasks_go_where_nothing_runs_yet() -> None:
    """P1 runs 4 stateful tasks until P2 has caught up with two of them: 4 and 3, not 6 and 1."""
    units = [Subtopology("0", 4, stateful=True), Subtopology("1", 3)]
    held = ["0_0", "0_1", "0_2", "0_3"]
    for more in ([], ["1_0", "1_1", "1_2"], ["1_1"]):
        view = group(units, {"P1": Member(active=held + more), "P2": Member()})
        assert counts(view, placed(view)) == {"P1": (4, 0, 0), "P2": (3, 0, 2)}


def test_stateless_tasks_come_back_as_copies_catch_up() -> None:
    """The same group to its end: 2 stateful tasks each, and one stateless task returns to P1."""
    units = [Subtopology("0", 4, stateful=True), Subtopology("1", 3)]
    members = {"P1": Member(active=[f"0_{n}" for n in range(4)]), "P2": Member()}
    life = Life(HighAvailability(), units, members, {"max_warmup_replicas": 1})
    held = []
    for _ in range(4):
        held.append(tuple(number[0] for number in counts(*life.round()).values()))
    assert held == [(4, 3), (3, 4), (3, 4), (3, 4)]
    _, last = life.round()
    assert last.followup_ms is None
    assert not last.reasons


def _evenest(fixed: np.ndarray, number: int) -> int:
    """The smallest possible largest load when tasks are added to loads, by greedy filling."""
    held = fixed.copy()
    for _ in range(number):
        held[np.argmin(held)] += 1
    return int(held.max())


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**40))
def test_stateless_tasks_fill_up_and_stay(seed: int) -> None:
    """While nothing catches up: equal members are as even as can be, and a second round is quiet.

    With unequal capacities too, the second round moves nothing. Then copies catch up at random, and
    the group comes to rest where it was heading.
    """
    rng = random.Random(seed)
    units = [
        Subtopology("0", rng.randint(1, 9), stateful=True),
        Subtopology("1", rng.randint(1, 9)),
    ]
    equal = rng.random() < 0.6

    def member() -> Member:
        return Member(capacity=1 if equal else rng.randint(1, 4))

    members = {f"P{n}": member() for n in range(rng.randint(1, 4))}
    life = Life(HighAvailability(), units, members, {"max_warmup_replicas": rng.randint(1, 4)})
    life.round()
    life.members.update({f"Q{n}": member() for n in range(rng.randint(1, 3))})
    life.restored = lambda _name, _task: False
    view, placement = life.round()
    stateful = view.tasks.stateful
    fixed = np.bincount(placement.active[stateful], minlength=len(view.members))
    loads = np.bincount(placement.active, minlength=len(view.members))
    if equal:
        assert loads.max() == _evenest(fixed, int((~stateful).sum()))
    _, again = life.round()
    assert not again.reasons
    life.restored = lambda _name, _task: rng.random() < 0.5
    for _ in range(200):
        _, placement = life.round()
        if placement.followup_ms is None:
            break
    assert np.array_equal(placement.active, placement.destination)
    assert not life.round()[1].reasons
