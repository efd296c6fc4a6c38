"""Groups of members that share no topic: each is balanced by itself with the fewest moves."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from muster.assignor.member_kinds import kinds
from muster.assignor.registry import get
from muster.assignor.targets import restricted
from muster.documents.problem import parse_problem
from muster.protocol.tasks import Subtopology


def _problem(members: int, tasks: int, owned: dict[str, list[str]]) -> dict[str, object]:
    rows = [
        {"id": f"m{n:02}", "topics": [str(n % 3)], "active": owned.get(f"m{n:02}", [])}
        for n in range(members)
    ]
    units = [{"subtopology": str(n), "partitions": tasks} for n in range(3)]
    return {"assignor": "sticky", "tasks": units, "members": rows}


def test_a_join_moves_what_the_newcomer_is_due_and_nothing_else() -> None:
    """Three groups of four; a fifth member of the first takes a fifth of its topic."""
    first = parse_problem(_problem(12, 20, {})).view()
    before = get("sticky").assign(first).active
    counts = np.bincount(before, minlength=12)
    assert counts.tolist() == [5] * 12
    owned = {
        name: [str(first.tasks.task(t)) for t in np.flatnonzero(before == n).tolist()]
        for n, name in enumerate(first.members)
    }
    view = parse_problem(_problem(13, 20, owned)).view()
    after = get("sticky").assign(view).active
    moved = np.flatnonzero(after != before)
    assert len(moved) == 4
    assert (after[moved] == 12).all()
    assert sorted(np.bincount(after, minlength=13)[[0, 3, 6, 9, 12]].tolist()) == [4] * 5


def test_equal_topics_are_one_object_in_a_view() -> None:
    """Code that groups members by topics compares a few objects, not all members' sets."""
    view = parse_problem(_problem(12, 2, {})).view()
    assert len({id(topics) for topics in view.topics}) == 3


@pytest.mark.parametrize("seed", range(5))
def test_dealing_unit_by_unit_is_dealing_by_class(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways to place tasks without an owner agree, however many tasks a unit has."""
    rng = random.Random(seed)
    problem = _problem(rng.randint(3, 9), rng.randint(1, 30), {})
    problem["tasks"] += [{"subtopology": "no topic's", "partitions": 3}]
    for number, row in enumerate(problem["members"]):  # some of each topic stay where they are
        row["active"] = (
            [f"{number % 3}_{number // 3}"]
            if number // 3 < problem["tasks"][0]["partitions"]
            else []
        )
    answers = []
    for runs in (0, 1 << 30):
        monkeypatch.setattr(restricted, "LONG_RUNS", runs)
        answers.append(get("sticky").assign(parse_problem(problem).view()).active.tolist())
    assert answers[0] == answers[1]
    assert answers[0].count(-1) == 3


@pytest.mark.parametrize("count", [1, 3, 8, 9, 20])
def test_units_that_the_same_members_may_take_are_a_group(count: int) -> None:
    """Groups are the distinct columns of the table, in the order of their columns."""
    rng = random.Random(count)
    units = [Subtopology(str(n), 1) for n in range(12)]
    topics = [frozenset(rng.sample("0123456789", rng.randint(0, 3))) for _ in range(count)]
    table = kinds([None, *topics, *topics], units)
    expected = [[True, *(unit.name in names for names in dict.fromkeys(topics))] for unit in units]
    assert table.allowed.T.tolist() == expected
    columns, group = table.groups
    assert columns.T.tolist() == sorted(map(list, set(map(tuple, expected))))
    assert [columns[:, number].tolist() for number in group] == expected
    members = np.arange(1 + 2 * count, dtype=np.int32)
    for unit, (member, names) in itertools.product(range(12), enumerate([None, *topics, *topics])):
        may = table.may_take(np.array([unit], np.int32), members[member : member + 1])
        assert may.tolist() == [names is None or units[unit].name in names]
