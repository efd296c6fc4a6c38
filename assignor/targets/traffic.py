"""Who reads across racks: counts of topic partitions without a replica in a member's rack (S4-14).

Tasks that read as much across racks from everywhere form a *class*: there are few of them however
many tasks there are, and everything about racks is decided per class. Which tasks have replicas in
the same racks is known with the tasks (`TaskTable.sources`); which racks have members, with a view.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import GroupView
from muster.protocol.tasks import IntArray

UNKNOWN = -1


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """What tasks read, by rack of the reader.

    Attributes:
        class_of: int32[T], class of each task, `UNKNOWN` where its racks are not all known.
        across: int64[C, R], partitions a task of the class reads across racks from a rack.
    """

    class_of: IntArray
    across: NDArray[np.int64]


def reads(view: GroupView, *, changelog: bool) -> Reads:
    """Build the classes of a view from its inputs' racks, or its changelogs'."""
    table = view.tasks.changelogs if changelog else view.tasks.sources
    rows: dict[tuple[int, ...], int] = {}
    number = {rack: place for place, rack in enumerate(view.racks)}
    known = [_class(topics, number, rows) for topics in table.racks]
    class_of = np.array([*known, UNKNOWN], dtype=np.int32).take(table.class_of)
    across = np.array(list(rows), dtype=np.int64).reshape(len(rows), len(view.racks))
    return Reads(class_of, across)


def _class(
    topics: tuple[tuple[str, ...], ...], number: dict[str, int], rows: dict[tuple[int, ...], int]
) -> int:
    if not all(topics):
        return UNKNOWN
    row = [len(topics)] * len(number)
    for replicas in topics:
        for rack in set(replicas):
            if rack in number:
                row[number[rack]] -= 1
    return rows.setdefault(tuple(row), len(rows))


def crossings(view: GroupView, task: IntArray, member: IntArray, *, changelog: bool) -> int:
    """Partitions read across racks by these (task, member) pairs, as far as racks are known."""
    if len(task) == 0 or not view.racks:
        return 0
    table = reads(view, changelog=changelog)
    if len(table.across) == 0:
        return 0
    kind, rack = table.class_of[task], view.rack[member]
    known = (kind != UNKNOWN) & (rack != UNKNOWN)
    return int(table.across[kind[known], rack[known]].sum())
