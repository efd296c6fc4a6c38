"""Who may take what: the `topics` of members, as small boolean tables.

Members with the same topics form a *kind*; there are few kinds however many members there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.model import BoolArray, GroupView
from muster.protocol.tasks import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """Members grouped by what they may take.

    Attributes:
        kind_of: int32[M], kind of each member.
        allowed: bool[K, U], whether a kind may take a unit's tasks.
    """

    kind_of: IntArray
    allowed: BoolArray


def kinds(view: GroupView) -> Kinds:
    """Group the members of a view by their topics; kinds are numbered by first member."""
    names = [unit.name for unit in view.tasks.units]
    given = np.fromiter(map(id, view.topics), dtype=np.int64, count=len(view.topics))
    _, first, which = np.unique(given, return_index=True, return_inverse=True)
    number: dict[frozenset[str] | None, int] = {}
    for place in np.sort(first).tolist():
        number.setdefault(view.topics[place], len(number))
    kind_of = np.array([number[view.topics[place]] for place in first.tolist()], dtype=np.int32)
    allowed = np.ones((len(number), len(names)), dtype=np.bool_)
    for topics, kind in number.items():
        if topics is not None:
            allowed[kind] = [name in topics for name in names]
    return Kinds(kind_of[which.ravel()], allowed)


def everyone_takes_everything(view: GroupView) -> bool:
    """Whether no member restricts its topics (the common case)."""
    return view.topics.count(None) == len(view.topics)


def may_take(view: GroupView, task: IntArray, member: IntArray) -> BoolArray:
    """bool[K]: whether each member of the pairs may take the task beside it."""
    table = kinds(view)
    row = table.kind_of.take(member).astype(np.intp) * table.allowed.shape[1]
    answer: BoolArray = table.allowed.take(row + view.tasks.unit_of.take(task))
    return answer
