"""Members by what they may take: few kinds, however many members there are.

Knows topics and units by name; neither owners nor counts. A view has its kinds as
`GroupView.kinds`, found when they are first asked for.
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
        """bool[K]: whether each member may take a task of the unit beside it; none may."""
        units = self.allowed.shape[1]
        table = np.append(self.allowed.ravel(), np.ones(units, dtype=np.bool_))
        row = np.append(self.kind_of, len(self.allowed)).astype(np.intp) * units  # -1: the last
        place = row.take(member)
        place += unit
        answer: _BoolArray = table.take(place)
        return answer


def kinds(topics: Sequence[Topics], units: Sequence[Unit]) -> Kinds:
    """Group members by their topics.

    Args:
        topics: per member the units it may take; None = all. Equal sets are found fastest where
            they are one object.
        units: the group's units.
    """
    number: defaultdict[Topics, int] = defaultdict()
    number.default_factory = number.__len__
    kind_of = np.fromiter(map(number.__getitem__, topics), dtype=np.int32, count=len(topics))
    allowed = np.ones((len(number), len(units)), dtype=np.bool_)
    names = [unit.name for unit in units]
    for some, kind in number.items():
        if some is not None:
            allowed[kind] = list(map(some.__contains__, names))
    return Kinds(kind_of, allowed)
