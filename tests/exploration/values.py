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

from muster.protocol.tasks import TaskSet, TaskTable

TIME = 10**12
OFFSET = 10**15
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
        offsets: offsets and sums of them; negative where the value has the negative.
    """

    rest: bytes
    times: tuple[int, ...]
    offsets: tuple[int, ...]


def digest(plain: Any) -> bytes:
    """16 bytes that two plain values share only if they are equal, in this process or another.

    Python's own `hash` does not do: -1 and -2 have the same one, also within a tuple.

    Args:
        plain: tuples of tuples, texts, bytes, numbers, booleans and None.
    """
    return blake2b(marshal.dumps(plain, 2), digest_size=16).digest()


def shape_of(value: Any) -> Shape:
    """The shape of a value."""
    times: list[int] = []
    offsets: list[int] = []
    rest = digest(_walk(value, times, offsets))
    return Shape(rest, tuple(times), tuple(offsets))


@cache
def _names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that count."""
    return tuple(field.name for field in fields(kind) if field.name not in WORDS)


def _walk(value: Any, times: list[int], offsets: list[int]) -> Any:
    """A plain value (see `digest`) of a value; its moments are put into the lists."""
    kind = type(value)
    if kind is int:
        return _number(value, times, offsets)
    if value is None or kind in (str, bool, bytes, float):
        return value
    if kind is np.ndarray:
        if value.dtype != np.int64:
            return (value.shape, value.tobytes())
        return (value.shape, *[_number(n, times, offsets) for n in value.ravel().tolist()])
    if kind is TaskSet:
        return (kind.__name__, repr(value))
    if kind is TaskTable:
        return (kind.__name__, repr(value.units))
    if isinstance(value, Enum):
        return (kind.__name__, value.name)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.generic):
        return _walk(value.item(), times, offsets)
    return _walk_parts(value, times, offsets)


def _walk_parts(value: Any, times: list[int], offsets: list[int]) -> Any:
    """A plain value of a value that consists of others."""
    kind = type(value)
    if isinstance(value, Mapping):
        pairs = sorted(value.items(), key=repr)
        return tuple([(_walk(k, [], []), _walk(v, times, offsets)) for k, v in pairs])
    if isinstance(value, (set, frozenset)):
        return tuple([_walk(v, times, offsets) for v in sorted(value)])
    if isinstance(value, (tuple, list)):
        return (kind.__name__, *[_walk(v, times, offsets) for v in value])
    if is_dataclass(value):
        parts = [_walk(getattr(value, name), times, offsets) for name in _names(kind)]
        return (kind.__name__, *parts)
    if hasattr(value, "__dict__"):
        held = sorted(vars(value).items())
        parts = [(k, _walk(v, times, offsets)) for k, v in held if k not in WORDS]
        return (kind.__name__, *parts)
    return repr(value)


def _number(value: int, times: list[int], offsets: list[int]) -> Any:
    if TIME <= value < 2 * TIME:
        times.append(value)
        return "time"
    if OFFSET <= abs(value) < 2 * OFFSET:
        offsets.append(value)
        return "offset"
    return value


class Values:
    """The table of interned values of one exploration."""

    def __init__(self, as_old_ms: int = AS_OLD_MS) -> None:
        self._as_old_ms = as_old_ms
        self._values: list[Any] = [None]
        self._shapes: list[Shape] = [Shape(b"", (), ())]
        self._numbers: dict[Shape, int] = {self._shapes[0]: 0}
        self._relative: dict[tuple[int, int, int], bytes] = {}

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

    def relative(self, number: int, now: int, end: int) -> bytes:
        """A digest that two values share if they are equal but for when they happen."""
        shape = self._shapes[number]
        if not shape.times and not shape.offsets:
            return shape.rest
        place = (number, now, end)
        known = self._relative.get(place)
        if known is None:
            since = -self._as_old_ms
            times = tuple([min(max(at - now, since), AS_FAR_MS) for at in shape.times])
            offsets = tuple([_behind(at, end) for at in shape.offsets])
            known = self._relative[place] = digest((shape.rest, times, offsets))
        return known


def _behind(offset: int, end: int) -> int:
    """How far an offset is behind the end of the log, and with which sign it was written."""
    behind = max(abs(offset) - end, -AS_OLD_OFFSETS)
    return behind if offset > 0 else behind - 10_000
