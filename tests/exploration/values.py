"""Interned values: every value of a state is a small integer, and equal values are the same one.

A value's *shape* is what remains when the moments in it are taken out. Two states that differ only
in when they happen have equal shapes, and equal moments relative to now. A moment is recognised by
its size: broker times begin at `TIME`, offsets of the input topic at `OFFSET`, and nothing else in
a group is near either.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from muster.protocol.events import Mark, Origin
from muster.protocol.tasks import TaskSet, TaskTable

TIME = 10**12
OFFSET = 10**15
COUNT = 3
"""A group counts the records that it has read (`Liveness.taken`). With one record of its config,
the count is by so much more than the offset of the newest other one."""
AS_OLD_MS = 8_000
AS_FAR_MS = 60_000
"""Moments that are further ahead are equal to each other: no scenario lasts so long."""
AS_OLD_OFFSETS = 200
"""Moments that are older are equal to each other: every deadline of a scenario is shorter."""
WORDS = frozenset({"cause", "message", "moves", "dictionary", "_columns", "_stale", "_is_shared"})
WORDS |= {"_earliest_ms", "_cache"}
"""Fields that are read by people only, or are computed from others."""


class Shape(NamedTuple):
    """A value without its moments.

    Attributes:
        rest: digest of what remains, 16 bytes.
        times: broker times, in the order of the walk.
        offsets: offsets and counts of records; negative where the value has the negative.
        stamps: broker times that are only compared with each other, the clock among them.
    """

    rest: bytes
    times: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    stamps: tuple[int, ...] = ()


class _Moments(NamedTuple):
    """The moments of a value, while it is walked through."""

    times: list[int]
    offsets: list[int]
    stamps: list[int]


def digest(plain: Any) -> bytes:
    """16 bytes that two plain values share only if they are equal, in this process or another.

    Python's own `hash` does not do: -1 and -2 have the same one, also within a tuple.

    Args:
        plain: tuples of tuples, texts, bytes, numbers, booleans and None.
    """
    return blake2b(marshal.dumps(plain, 2), digest_size=16).digest()


def shape_of(value: Any) -> Shape:
    """The shape of a value."""
    found = _Moments([], [], [])
    rest = digest(_walk(value, found))
    return Shape(rest, *map(tuple, found))


@cache
def _names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that count."""
    return tuple(field.name for field in fields(kind) if field.name not in WORDS)


def _walk(value: Any, found: _Moments) -> Any:
    """A plain value (see `digest`) of a value; its moments are put into the lists."""
    kind = type(value)
    if kind is int:
        return _number(value, found)
    if value is None or kind in (str, bool, bytes, float):
        return value
    if kind is np.ndarray:
        if value.dtype != np.int64:
            return (value.shape, value.tobytes())
        return (value.shape, *[_number(n, found) for n in value.ravel().tolist()])
    if kind is TaskSet:
        return (kind.__name__, repr(value))
    if kind is TaskTable:
        return (kind.__name__, repr(value.units))
    if isinstance(value, Enum):
        return (kind.__name__, value.name)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.generic):
        return _walk(value.item(), found)
    return _walk_parts(value, found)


def _walk_parts(value: Any, found: _Moments) -> Any:
    """A plain value of a value that consists of others."""
    kind = type(value)
    if isinstance(value, Mapping):
        pairs = sorted(value.items(), key=repr)
        return tuple([(_walk(k, _Moments([], [], [])), _walk(v, found)) for k, v in pairs])
    if isinstance(value, (set, frozenset)):
        return tuple([_walk(v, found) for v in sorted(value)])
    if kind is Origin:
        return _walk_offsets(tuple(value), found)
    if kind is Mark and 0 < value.taken < OFFSET:  # before the first record of the log
        value = value._replace(taken=OFFSET + COUNT - 1)
    if isinstance(value, (tuple, list)):
        return (kind.__name__, *[_walk(v, found) for v in value])
    if is_dataclass(value):
        parts = [_OTHERWISE.get(name, _walk)(getattr(value, name), found) for name in _names(kind)]
        return (kind.__name__, *parts)
    if hasattr(value, "__dict__"):
        held = sorted(vars(value).items())
        parts = [(k, _walk(v, found)) for k, v in held if k not in WORDS]
        return (kind.__name__, *parts)
    return repr(value)


def _walk_offsets(value: Any, found: _Moments) -> Any:
    """As `_walk`; an offset becomes the count of records up to it."""
    inner = _Moments(found.times, [], found.stamps)
    plain = _walk(value, inner)
    found.offsets.extend([offset + COUNT for offset in inner.offsets])
    return plain


def _walk_stamp(value: Any, found: _Moments) -> Any:
    """A plain value of a time that is only compared with others."""
    found.stamps.append(value)
    return "stamp"


def _walk_clock(value: Any, found: _Moments) -> Any:
    found.stamps.append(value)
    return _walk(value, found)


_OTHERWISE = {
    "through": _walk_offsets,
    "joined_ms": _walk_stamp,
    "generation_ms": _walk_stamp,
    "clock_ms": _walk_clock,
}
"""Fields that are walked through in another way."""


def _number(value: int, found: _Moments) -> Any:
    if TIME <= value < 2 * TIME:
        found.times.append(value)
        return "time"
    if OFFSET <= abs(value) < 2 * OFFSET:
        found.offsets.append(value)
        return "offset"
    return value


class Values:
    """The table of interned values of one exploration."""

    def __init__(self, as_old_ms: int = AS_OLD_MS) -> None:
        self._as_old_ms = as_old_ms
        self._values: list[Any] = [None]
        self._shapes: list[Shape] = [Shape(b"")]
        self._numbers: dict[Shape, int] = {self._shapes[0]: 0}
        self._relative: dict[tuple[int, int], bytes] = {}

    def put(self, value: Any, seen: Callable[[Any], Any] | None = None) -> int:
        """The number of a value; `seen` gives what is compared, if that is not the value."""
        shape = shape_of(value if seen is None else seen(value))
        number = self._numbers.get(shape)
        if number is None:
            number = self._numbers[shape] = len(self._values)
            self._values.append(value)
            self._shapes.append(shape)
        return number

    def __getitem__(self, number: int) -> Any:
        return self._values[number]

    def __len__(self) -> int:
        return len(self._values)

    def relative(self, number: int, now: int) -> bytes:
        """A digest that two values share if they are equal but for when they happen.

        Counts of records are left out; see `counts`.
        """
        shape = self._shapes[number]
        if not shape.times and not shape.stamps:
            return shape.rest
        place = (number, now)
        known = self._relative.get(place)
        if known is None:
            ranks = {at: rank for rank, at in enumerate(sorted(set(shape.stamps)))}
            stamps = tuple([ranks[at] for at in shape.stamps])
            times = self._since(shape.times, now)
            known = self._relative[place] = digest((shape.rest, times, stamps))
        return known

    def behind(self, number: int, now: int, end: int) -> bytes:
        """A digest that two values share if they are equal but for when they happen, exactly."""
        if number < 0:
            return digest(number + now)
        shape = self._shapes[number]
        times = self._since((*shape.times, *shape.stamps), now)
        counts = tuple([(max(abs(n) - end, -AS_OLD_OFFSETS), n > 0) for n in shape.offsets])
        return digest((shape.rest, times, counts))

    def _since(self, times: tuple[int, ...], now: int) -> tuple[int, ...]:
        """How far times are ahead of now."""
        return tuple([min(max(at - now, -self._as_old_ms), AS_FAR_MS) for at in times])

    def counts(self, number: int) -> tuple[int, ...]:
        """The counts of records in a value; a negative one was written with its sign."""
        return self._shapes[number].offsets


def ranked(counts: list[int], first: int, end: int) -> tuple[int, ...]:
    """Counts of records as far as two states can differ in them.

    Code only compares counts. Those that will be made are at least `first`; so of older ones only
    their order counts.

    Args:
        counts: all of a state, in a fixed order; negative where the state has the negative.
        first: the smallest count that can still be made.
        end: the count of all records that there are.
    """
    old = sorted({abs(n) for n in counts if abs(n) < first})
    ranks = {n: first - len(old) + rank for rank, n in enumerate(old)}
    return tuple([(ranks.get(abs(n), abs(n)) - end) * 2 + (n > 0) for n in counts])
