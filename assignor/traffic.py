"""Who reads across racks: counts of topic partitions without a replica in a member's rack (S4-14).

Tasks with equal replica racks form a *class*: there are few of them however many tasks there are,
and everything about racks is decided per class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import GroupView
from muster.protocol.tasks import IntArray, RackLists, Subtopology

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
    rows: dict[tuple[int, ...], int] = {}
    class_of = np.full(len(view.tasks), UNKNOWN, dtype=np.int32)
    number = {rack: place for place, rack in enumerate(view.racks)}
    for place, unit in enumerate(view.tasks.units):
        if not isinstance(unit, Subtopology):
            continue
        lists = unit.changelog_racks if changelog else unit.source_racks
        if lists is not None:
            start = int(view.tasks.start[place])
            class_of[start : start + len(lists)] = _classes(lists, number, rows)
    across = np.array(list(rows), dtype=np.int64).reshape(len(rows), len(view.racks))
    return Reads(class_of, across)


def _classes(
    lists: RackLists, number: dict[str, int], rows: dict[tuple[int, ...], int]
) -> list[int]:
    seen: dict[tuple[tuple[str, ...], ...], int] = {}
    classes = []
    for topics in lists:
        found = seen.get(topics)
        if found is None:
            found = UNKNOWN
            if all(topics):
                row = [len(topics)] * len(number)
                for replicas in topics:
                    for rack in set(replicas):
                        if rack in number:
                            row[number[rack]] -= 1
                found = rows.setdefault(tuple(row), len(rows))
            seen[topics] = found
        classes.append(found)
    return classes


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
