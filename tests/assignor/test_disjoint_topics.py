"""Members in groups that share no topic: each group is balanced by itself with the fewest moves."""

from __future__ import annotations

import numpy as np

from muster.assignor.registry import get
from muster.cli.problem import parse_problem


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
    """Whoever groups members by topics compares a few objects, not all members' sets."""
    view = parse_problem(_problem(12, 2, {})).view()
    assert len({id(topics) for topics in view.topics}) == 3
