"""The members' fields as arrays by slot, for code that reads all members at once.

The group caches the columns and reads again only the entries that changed, because reading ten
thousand entries takes longer than a placement. They are never stored or published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import BoolArray
from muster.protocol.records import MemberEntry, MemberState
from muster.protocol.tasks import IntArray

Objects: TypeAlias = NDArray[np.object_]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Columns:
    """Member fields by slot; a free slot has the default values.

    Attributes:
        id, capacity, draining, away: as in `MemberEntry`.
        unsettled: whether the member's state is not stable.
        config_offset: -1 = not given.
        rack, tags, topics, static, protocols: as in `GroupView`; None = no member gives any.
    """

    id: Objects
    capacity: NDArray[np.int64]
    draining: BoolArray
    away: BoolArray
    unsettled: BoolArray
    config_offset: NDArray[np.int64]
    rack: Objects | None = None
    tags: Objects | None = None
    topics: Objects | None = None
    static: Objects | None = None
    protocols: Objects | None = None

    @classmethod
    def of(cls, members: Sequence[MemberEntry | None]) -> Columns:
        """The columns of members by slot."""
        no_columns = cls(**{f.name: np.empty(0, dtype=f.dtype) for f in _FIELDS if not f.optional})
        return no_columns.renewed(members, range(len(members)))

    def renewed(self, members: Sequence[MemberEntry | None], slots: Iterable[int]) -> Columns:
        """The columns after the members in these slots changed."""
        changed = [(slot, members[slot]) for slot in slots]
        parts: dict[str, Any] = {
            f.name: _renewed(f, getattr(self, f.name), changed, len(members)) for f in _FIELDS
        }
        return Columns(**parts)

    def agree_with(self, members: Sequence[MemberEntry | None]) -> bool:
        """Whether these are the columns of the given members, for invariant checks."""
        defaults = {f.name: [f.default] * len(members) for f in _FIELDS}

        def values(columns: Columns, name: str) -> list[Any]:
            column = getattr(columns, name)
            return defaults[name] if column is None else column.tolist()

        recomputed = Columns.of(members)
        return all(values(self, name) == values(recomputed, name) for name in defaults)


def values_of(column: Objects | None, placeable: IntArray) -> tuple[Any, ...] | None:
    """A column in the order of the given slots; None if the column is None."""
    return None if column is None else tuple(column[placeable].tolist())


class _Field(NamedTuple):
    """How to read a column's values from members; `default` is the value of free slots."""

    name: str
    dtype: type
    value_of: Callable[[MemberEntry], object]
    default: object = None
    optional: bool = False


@lru_cache(maxsize=1024)
def _set(names: tuple[str, ...]) -> frozenset[str]:
    """One object for equal topics, so that an assignor groups equal members quickly."""
    return frozenset(names)


@lru_cache(maxsize=1024)
def _mapping(tags: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return MappingProxyType(dict(tags))


def _config_offset(member: MemberEntry) -> int:
    return -1 if member.config_offset is None else member.config_offset


def _topics(member: MemberEntry) -> frozenset[str] | None:
    return None if member.topics is None else _set(member.topics)


_FIELDS = (
    _Field("id", object, lambda m: m.id),
    _Field("capacity", np.int64, lambda m: m.capacity, 1),
    _Field("draining", np.bool_, lambda m: m.draining, False),
    _Field("away", np.bool_, lambda m: m.away, False),
    _Field("unsettled", np.bool_, lambda m: m.state is not MemberState.STABLE, False),
    _Field("config_offset", np.int64, _config_offset, -1),
    _Field("rack", object, lambda m: m.rack, None, optional=True),
    _Field("tags", object, lambda m: _mapping(m.tags), _mapping(()), optional=True),
    _Field("topics", object, _topics, None, optional=True),
    _Field("static", object, lambda m: _set(m.static), _set(()), optional=True),
    _Field("protocols", object, lambda m: m.protocols, (), optional=True),
)


def _renewed(
    field: _Field,
    column: NDArray[Any] | None,
    changed: Sequence[tuple[int, MemberEntry | None]],
    count: int,
) -> NDArray[Any] | None:
    new_values = [(s, field.default if m is None else field.value_of(m)) for s, m in changed]
    if field.optional and column is None and all(value == field.default for _, value in new_values):
        return None
    if column is not None and len(column) == count and all(column[s] == v for s, v in new_values):
        return column  # of a member that changes, most fields stay the same
    renewed: NDArray[Any] = np.empty(count, dtype=field.dtype)
    renewed.fill(field.default)
    if column is not None:
        renewed[: len(column)] = column
    for slot, value in new_values:  # one by one, because numpy would read a tuple as a row
        renewed[slot] = value
    return renewed
