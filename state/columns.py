"""What members say of themselves, in columns by slot, for code that looks at all of them at once.

A placement looks at every member. Read from ten thousand entries one by one that takes longer than
the placement itself, and nearly all of them are as they were the last time. So the columns are
kept with the group and only the entries that changed are read again.

Derived from `Group.members` alone: never stored, never published, made anew after a restart.
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
    """Members by slot; a free slot has what a member has that says nothing.

    Attributes:
        id, capacity, draining, away: as in `MemberEntry`.
        unsettled: whether the member's state is another than stable.
        config_offset: -1 = not told.
        rack, tags, topics, static, protocols: as in `GroupView`; None = no member says any.
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
        """The columns of some members by slot."""
        nothing = cls(**{f.name: np.empty(0, dtype=f.dtype) for f in _FIELDS if not f.optional})
        return nothing.renewed(members, range(len(members)))

    def renewed(self, members: Sequence[MemberEntry | None], slots: Iterable[int]) -> Columns:
        """The columns after the members in some slots changed."""
        changed = [(slot, members[slot]) for slot in slots]
        parts: dict[str, Any] = {
            f.name: _renewed(f, getattr(self, f.name), changed, len(members)) for f in _FIELDS
        }
        return Columns(**parts)

    def tell_of(self, members: Sequence[MemberEntry | None]) -> bool:
        """Whether these are the columns of some members, for those who check."""
        fresh = Columns.of(members)
        return all(
            _told(f, getattr(self, f.name), len(members))
            == _told(f, getattr(fresh, f.name), len(members))
            for f in _FIELDS
        )


def seated(column: Objects | None, seats: IntArray) -> tuple[Any, ...] | None:
    """A column in the order of some seats; None if no member says anything."""
    return None if column is None else tuple(column[seats].tolist())


class _Field(NamedTuple):
    """How a column is made: what a member says, and what stands for nothing said."""

    name: str
    dtype: type
    said: Callable[[MemberEntry], object]
    nothing: object = None
    optional: bool = False


@lru_cache(maxsize=1024)
def _set(names: tuple[str, ...]) -> frozenset[str]:
    """Equal topics are one object, so that an assignor finds members that are alike at once."""
    return frozenset(names)


@lru_cache(maxsize=1024)
def _mapping(tags: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return MappingProxyType(dict(tags))


_FIELDS = (
    _Field("id", object, lambda m: m.id),
    _Field("capacity", np.int64, lambda m: m.capacity, 1),
    _Field("draining", np.bool_, lambda m: m.draining, False),
    _Field("away", np.bool_, lambda m: m.away, False),
    _Field("unsettled", np.bool_, lambda m: m.state is not MemberState.STABLE, False),
    _Field("config_offset", np.int64, lambda m: _or(m.config_offset, -1), -1),
    _Field("rack", object, lambda m: m.rack, None, optional=True),
    _Field("tags", object, lambda m: _mapping(m.tags), _mapping(()), optional=True),
    _Field("topics", object, lambda m: _set_or_all(m.topics), None, optional=True),
    _Field("static", object, lambda m: _set(m.static), _set(()), optional=True),
    _Field("protocols", object, lambda m: m.protocols, (), optional=True),
)


def _or(value: int | None, instead: int) -> int:
    return instead if value is None else value


def _set_or_all(topics: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if topics is None else _set(topics)


def _told(field: _Field, column: NDArray[Any] | None, count: int) -> list[Any]:
    return [field.nothing] * count if column is None else column.tolist()


def _renewed(
    field: _Field,
    column: NDArray[Any] | None,
    changed: Sequence[tuple[int, MemberEntry | None]],
    count: int,
) -> NDArray[Any] | None:
    news = [(s, field.nothing if m is None else field.said(m)) for s, m in changed]
    if field.optional and column is None and all(said == field.nothing for _, said in news):
        return None
    renewed: NDArray[Any] = np.empty(count, dtype=field.dtype)
    renewed.fill(field.nothing)
    if column is not None:
        renewed[: len(column)] = column
    for slot, said in news:  # one by one: numpy would take a tuple for a row
        renewed[slot] = said
    return renewed
