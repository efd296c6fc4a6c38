"""Reads across racks: topic partitions without a replica in the reader's rack (S4-14).

Tasks with equal numbers of such reads from every rack form a *class*; there are few classes, and
everything about racks is decided per class. The `TaskTable` knows which tasks have replicas in the
same racks (`TaskTable.sources`); the view, which racks have members.
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
        across: int64[C, R], partitions that a task of the class, run in a rack, reads from others.
    """

    class_of: IntArray
    across: NDArray[np.int64]


def reads(view: GroupView, *, changelog: bool) -> Reads:
    """Compute the classes of a view from its inputs' racks, or its changelogs'."""
    table = view.tasks.changelogs if changelog else view.tasks.sources
    rows: dict[tuple[int, ...], int] = {}
    rack_index = {rack: place for place, rack in enumerate(view.racks)}
    known = [_class(topics, rack_index, rows) for topics in table.racks]
    class_of = np.array([*known, UNKNOWN], dtype=np.int32).take(table.class_of)
    across = np.array(list(rows), dtype=np.int64).reshape(len(rows), len(view.racks))
    return Reads(class_of, across)


def _class(
    topics: tuple[tuple[str, ...], ...],
    rack_index: dict[str, int],
    rows: dict[tuple[int, ...], int],
) -> int:
    if not all(topics):
        return UNKNOWN
    row = [len(topics)] * len(rack_index)
    for replicas in topics:
        for rack in set(replicas):
            if rack in rack_index:
                row[rack_index[rack]] -= 1
    return rows.setdefault(tuple(row), len(rows))


def crossings(view: GroupView, task: IntArray, member: IntArray, *, changelog: bool) -> int:
    """Partitions that the given (task, member) pairs read across racks, where racks are known."""
    if len(task) == 0 or not view.racks:
        return 0
    table = reads(view, changelog=changelog)
    if len(table.across) == 0:
        return 0
    kind, rack = table.class_of[task], view.rack[member]
    known = (kind != UNKNOWN) & (rack != UNKNOWN)
    return int(table.across[kind[known], rack[known]].sum())
