"""Members grouped by what they may take: few groups (kinds), however many members there are.

This module knows topics and units by name; it knows no owners and no counts. `GroupView.kinds`
computes the kinds of a view on first use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from muster.protocol.tasks import IntArray, Unit

_BoolArray = NDArray[np.bool_]
Topics = frozenset[str] | None


@dataclass(frozen=True, eq=False)
class Kinds:
    """Members grouped by what they may take.

    Attributes:
        kind_of: int32[M], kind of each member; kinds are numbered by first member.
        allowed: bool[K, U], whether a kind may take a unit's tasks.
    """

    kind_of: IntArray
    allowed: _BoolArray

    @cached_property
    def groups(self) -> tuple[_BoolArray, IntArray]:
        """bool[K, G], distinct columns of `allowed`, and int32[U], which one each unit has."""
        if 1 <= len(self.allowed) <= 8:  # a column is one byte, and sorts as the column does
            rows = np.packbits(self.allowed, axis=0)[0]
            _, first, group = np.unique(rows, return_index=True, return_inverse=True)
            return self.allowed[:, first], group.astype(np.int32)
        columns, group = np.unique(self.allowed, axis=1, return_inverse=True)
        return columns, group.ravel().astype(np.int32)

    def may_take(self, unit: IntArray, member: IntArray) -> _BoolArray:
        """bool[K]: whether ``member[k]`` may take a task of ``unit[k]``; True for `NO_MEMBER`."""
        units = self.allowed.shape[1]
        table = np.append(self.allowed.ravel(), np.ones(units, dtype=np.bool_))
        row = np.append(self.kind_of, len(self.allowed)).astype(np.intp) * units  # -1: the last
        index = row.take(member)
        index += unit
        allowed: _BoolArray = table.take(index)
        return allowed


def kinds(topics: Sequence[Topics], units: Sequence[Unit]) -> Kinds:
    """Group members by their topics: the units that each may take; None = all.

    Fastest if equal sets are one object.
    """
    kind_by_topics: defaultdict[Topics, int] = defaultdict()
    kind_by_topics.default_factory = kind_by_topics.__len__
    kind_of = np.fromiter(
        map(kind_by_topics.__getitem__, topics), dtype=np.int32, count=len(topics)
    )
    allowed = np.ones((len(kind_by_topics), len(units)), dtype=np.bool_)
    names = [unit.name for unit in units]
    for topic_set, kind in kind_by_topics.items():
        if topic_set is not None:
            allowed[kind] = list(map(topic_set.__contains__, names))
    return Kinds(kind_of, allowed)
