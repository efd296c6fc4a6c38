"""Codec of task sets, near the entropy of a set of the given size.

A set is coded as *positions*. The units of the record follow each other, each `UnitRef.size`
positions long. A task's position is the sum of the sizes before its unit, plus its number (for
connectors plus one, because the connector itself is -1). The empty set is no bytes; any other
starts with a codec id:

- `WHOLE` (1): one segment over all units;
- `BY_UNIT` (2): one segment per unit.

A segment is a form byte and its fields (GRAMMAR.md): nothing, runs, Rice-coded gaps, triplets or a
bitmap, of the set or of its complement. The writer takes the shortest, the first of equals in this
order. Gaps are within 2.5 % of the entropy below a density of 0.35, bitmaps from 0.42 on; triplets
(a fixed Huffman code of three positions) cover the densities between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.protocol.bits import (
    ZEROS,
    BitReader,
    BitWriter,
    put_varint,
    rice_bits,
    rice_bits_max,
    rice_parameter,
    take_varint,
)
from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.ids import Task
from muster.protocol.short_segments import (
    BITMAP,
    GAPS,
    NOTHING,
    POSITIONS_MAX,
    RUNS,
    TRIPLETS,
    read,
    shortest,
)
from muster.protocol.tasks import EMPTY, Connector, TaskSet, TaskTable, label_of, unit_order

Positions: TypeAlias = NDArray[np.int64]

WHOLE = 1
BY_UNIT = 2

COMPLEMENT = 0x80
SET_TASKS_MAX = 1 << 22
"""Larger sets are refused, because a few bytes can name billions of tasks."""
UNIT_SIZE_MAX = 2**31 - 1
LABELS_CHARS_MAX = 256
"""An assignment whose labels take more characters refers to the group's dictionary if possible."""


class UnitRef(NamedTuple):
    """A unit as records refer to it.

    Attributes:
        label: printed task id without its number: ``0_``, or ``c1-`` for connector c1.
        size: upper bound of the positions used in it.
    """

    label: str
    size: int

    @property
    def name(self) -> str:
        """The unit's name."""
        return self.label[:-1]

    @property
    def connector(self) -> bool:
        """Whether it is a connector."""
        return self.label.endswith("-")


class Layout:
    """The units of a record and the position at which each begins; reused for several sets.

    Attributes:
        starts: position of each unit's first task.
        total: number of positions of all units.
        place: (name, whether it is a connector) → index of the unit.
    """

    def __init__(self, units: Sequence[UnitRef]) -> None:
        self.units = tuple(units)
        *starts, self.total = accumulate((unit.size for unit in units), initial=0)
        self.starts = starts
        self.place = {(unit.name, unit.connector): i for i, unit in enumerate(units)}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Label → size."""
        return {unit.label: unit.size for unit in self.units}

    @classmethod
    def of(cls, units: Sequence[UnitRef] | Layout) -> Layout:
        """The layout of the units; a `Layout` is returned unchanged."""
        return units if isinstance(units, Layout) else cls(units)

    def covers(self, needed: Sequence[UnitRef]) -> bool:
        """Whether every needed unit is in the layout and large enough."""
        return all(self.sizes.get(unit.label, -1) >= unit.size for unit in needed)


def units_of(sets: Iterable[TaskSet], more: Iterable[Task] = ()) -> tuple[UnitRef, ...]:
    """The units of these sets and of more tasks, each as large as they need."""
    sizes: dict[tuple[str, bool], int] = {}
    for tasks in sets:
        for name, connector, numbers in tasks.units:
            size = int(numbers[-1]) + 1 + connector
            sizes[name, connector] = max(size, sizes.get((name, connector), 0))
    for task in more:
        size = task.number + 1 + task.connector
        sizes[task.unit, task.connector] = max(size, sizes.get((task.unit, task.connector), 0))
    ordered = sorted(sizes, key=lambda key: (key[1], unit_order(key[0])))
    return tuple(UnitRef(label_of(*key), sizes[key]) for key in ordered)


def units_of_table(table: TaskTable) -> tuple[UnitRef, ...]:
    """All units of a group, as its dictionary lists them."""
    return tuple(
        UnitRef(label_of(unit.name, isinstance(unit, Connector)), unit.size) for unit in table.units
    )


def units_text(units: Sequence[UnitRef]) -> bytes:
    """``label NUL size LF`` of every unit."""
    return "".join(f"{unit.label}\0{unit.size}\n" for unit in units).encode()


def units_version(units: Sequence[UnitRef]) -> int:
    """First 8 bytes, little endian, of the SHA-256 of the units' text."""
    return int.from_bytes(sha256(units_text(units)).digest()[:8], "little")


def check_units(units: Sequence[UnitRef]) -> None:
    """Refuse invalid unit lists.

    Raises:
        DecodeError: an invalid label, a unit named twice, or a size out of bounds.
    """
    for unit in units:
        if len(unit.label) < 2 or unit.label[-1] not in "_-":
            raise DecodeError(f"unit label {unit.label[:40]!r}; expected a name and '_' or '-'")
        if not 0 <= unit.size <= UNIT_SIZE_MAX:
            raise DecodeError(f"unit {unit.label[:40]!r} of size {unit.size}")
    if len({unit.label for unit in units}) != len(units):
        raise DecodeError("a unit is named twice")


def encode_set(tasks: TaskSet, units: Sequence[UnitRef] | Layout) -> bytes:
    """The bytes of a set, given the units of its record.

    Raises:
        EncodeError: a task outside the units, or more than `SET_TASKS_MAX` tasks.
    """
    if not tasks.units:
        return b""
    if len(tasks) > SET_TASKS_MAX:
        raise EncodeError(f"a set of {len(tasks)} tasks; {SET_TASKS_MAX} are accepted")
    layout = Layout.of(units)
    by_unit: dict[int, Positions] = {}
    for name, connector, numbers in tasks.units:
        at = layout.place.get((name, connector))
        positions = numbers.astype(np.int64) + connector
        if at is None or positions[0] < 0 or positions[-1] >= layout.units[at].size:
            raise EncodeError(f"tasks of {name!r} that are in no unit of the record")
        by_unit[at] = positions
    together = [by_unit[i] + layout.starts[i] for i in sorted(by_unit)]
    whole = encode_segment(
        together[0] if len(together) == 1 else np.concatenate(together), layout.total
    )
    if len(layout.units) == 1 or len(whole) <= len(layout.units):
        return bytes((WHOLE,)) + whole
    nothing = np.empty(0, dtype=np.int64)
    split = b"".join(
        encode_segment(by_unit.get(i, nothing), unit.size) for i, unit in enumerate(layout.units)
    )
    return bytes((BY_UNIT,)) + split if len(split) < len(whole) else bytes((WHOLE,)) + whole


def decode_set(
    data: bytes, units: Sequence[UnitRef] | Layout, tasks_max: int = SET_TASKS_MAX
) -> TaskSet:
    """Read what `encode_set` wrote with the same units, which `check_units` has checked.

    Raises:
        DecodeError: the bytes are not a set of these units, or of more than `tasks_max` tasks.
    """
    if not data:
        return EMPTY
    layout = Layout.of(units)
    parts: list[Positions] = []
    if data[0] == WHOLE:
        positions, at = decode_segment(data, 1, layout.total, tasks_max)
        parts = _cut(positions, layout.starts)
    elif data[0] == BY_UNIT:
        at, count = 1, 0
        for unit in layout.units:
            positions, at = decode_segment(data, at, unit.size, tasks_max)
            parts.append(positions)
            count += len(positions)
            if count > tasks_max:
                raise DecodeError(f"a set of more than {tasks_max} tasks", at)
    else:
        raise DecodeError(f"task-set codec {data[0]}; known are {WHOLE} and {BY_UNIT}")
    if at != len(data):
        raise DecodeError(f"{len(data) - at} bytes behind a task set", at)
    return TaskSet(
        (unit.name, unit.connector, (part - unit.connector).astype(np.int32))
        for unit, part in zip(layout.units, parts, strict=True)
    )


def _cut(positions: Positions, starts: Sequence[int]) -> list[Positions]:
    cuts = [*np.searchsorted(positions, starts).tolist(), len(positions)]
    return [positions[a:b] - s for (a, b), s in zip(pairwise(cuts), starts, strict=True)]


def encode_segment(positions: Positions, size: int, count_max: int = SET_TASKS_MAX) -> bytes:
    """The shortest segment for ascending, distinct positions below `size`; see `decode_segment`."""
    best = _direct(positions, size)
    count = len(positions)
    if 2 * count > size and size <= count_max:
        is_outside = np.ones(size, dtype=np.bool_)
        is_outside[positions] = False
        other = _direct(np.flatnonzero(is_outside), size)
        if len(other) < len(best):
            return bytes((other[0] | COMPLEMENT,)) + other[1:]
    return best


def _direct(positions: Positions, size: int) -> bytes:
    if len(positions) == 0:
        return bytes((NOTHING,))
    if len(positions) <= POSITIONS_MAX:
        return shortest(tuple(positions.tolist()), size)
    forms = [_runs(positions), _gaps(positions)]
    if size <= 8 * len(positions) + 64:
        member = np.zeros(-(-size // 3) * 3, dtype=np.uint8)
        member[positions] = 1
        bitmap = np.packbits(member[:size], bitorder="little").tobytes()
        forms += [_triplets(member), bytes((BITMAP,)) + bitmap]
    return min(forms, key=len)


def _runs(positions: Positions) -> bytes:
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    firsts = positions[np.append(0, breaks)]
    lasts = positions[np.append(breaks, len(positions)) - 1]
    between = firsts - np.append(-1, lasts[:-1]) - 1
    between[1:] -= 1
    lengths = lasts - firsts
    out = bytearray((RUNS,))
    put_varint(out, len(firsts))
    bits = BitWriter()
    for values in (between, lengths):
        k = rice_parameter(values)
        out.append(k)
        bits.rice(values, k)
    return bytes(out) + bits.bytes()


def _gaps(positions: Positions) -> bytes:
    gaps = np.diff(positions, prepend=-1) - 1
    base = int(gaps[1:].min()) if len(gaps) > 1 else 0
    # The first gap is written on its own, because it may be smaller than the base of the others.
    values = gaps[1:] - base
    k = rice_parameter(values)
    out = bytearray((GAPS,))
    put_varint(out, len(positions))
    put_varint(out, int(gaps[0]))
    if len(gaps) > 1:
        plain = rice_parameter(gaps[1:])
        if base and rice_bits(gaps[1:], plain) <= rice_bits(values, k) + 8:
            base, values, k = 0, gaps[1:], plain
        put_varint(out, base)
        out.append(k)
    bits = BitWriter()
    bits.rice(values, k)
    return bytes(out) + bits.bytes()


def _triplets(member: NDArray[np.uint8]) -> bytes:
    symbols = _RANK[member.reshape(-1, 3) @ np.array([1, 2, 4], dtype=np.uint8)]
    bits = BitWriter()
    first = np.minimum((symbols + 1) >> 1, 3)
    bits.fixed(first, 2)
    second = symbols[symbols > 0]
    bits.fixed(np.where(second >= 5, np.minimum(second - 5, 1), (second + 1) & 1), 1)
    bits.fixed(symbols[symbols >= 6] - 6, 1)
    return bytes((TRIPLETS,)) + bits.bytes()


_RANK = np.array([0, 1, 2, 4, 3, 5, 6, 7], dtype=np.int64)
"""Symbol of each triplet (bit 0 = first position): 000, 100, 010, 001, 110, 101, 011, 111."""
_TRIPLET = np.argsort(_RANK).astype(np.uint8)


def decode_segment(
    data: bytes, at: int, size: int, count_max: int = SET_TASKS_MAX
) -> tuple[Positions, int]:
    """Read at most `count_max` positions below `size`; returns them and the offset of their end."""
    if at >= len(data):
        raise DecodeError("a task set ends too early", at)
    form, complement = data[at] & ~COMPLEMENT, bool(data[at] & COMPLEMENT)
    if complement and size > count_max:
        raise DecodeError(f"the complement of a set in {size} positions", at)
    readers = {RUNS: _read_runs, GAPS: _read_gaps, TRIPLETS: _read_triplets, BITMAP: _read_bitmap}
    short = read(form, data, at + 1, size, count_max)
    if short is not None:
        positions, end = np.array(short[0], dtype=np.int64), short[1]
    elif form == NOTHING:
        positions, end = np.empty(0, dtype=np.int64), at + 1
    elif form in readers:
        positions, end = readers[form](data, at + 1, size, count_max)
    else:
        raise DecodeError(f"task-set form {form}; known are 0 to {BITMAP}", at)
    if len(positions) and (positions[-1] >= size or len(positions) > count_max):
        raise DecodeError(f"a task set beyond its {size} positions", at)
    if not complement:
        return positions, end
    is_outside = np.ones(size, dtype=np.bool_)
    is_outside[positions] = False
    return np.flatnonzero(is_outside), end


def _read_runs(data: bytes, at: int, size: int, count_max: int) -> tuple[Positions, int]:
    count, at = take_varint(data, at)
    if at + 2 > len(data):
        raise DecodeError("a task set ends too early", at)
    if not 1 <= count <= min(size, count_max):
        raise DecodeError(f"{count} runs in {size} positions", at)
    k_between, k_length = data[at], data[at + 1]
    bits_max = rice_bits_max(count, k_between, size) + rice_bits_max(count, k_length, size)
    bits = BitReader(data, at + 2, bits_max)
    between = bits.rice(count, k_between)
    lengths = bits.rice(count, k_length)
    if int(between.sum()) + int(lengths.sum()) + 2 * count - 1 > size:
        raise DecodeError(f"runs beyond their {size} positions", at)
    if int(lengths.sum()) + count > count_max:
        raise DecodeError(f"a set of more than {count_max} tasks", at)
    sizes = lengths + 1
    firsts = np.cumsum(between + 1) - 1 + np.append(0, np.cumsum(sizes[:-1]))
    inside = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.repeat(firsts, sizes) + inside, bits.end()


def _read_gaps(data: bytes, at: int, size: int, count_max: int) -> tuple[Positions, int]:
    count, at = take_varint(data, at)
    first, at = take_varint(data, at)
    base, k = 0, ZEROS
    if count > 1:
        base, at = take_varint(data, at)
        if at >= len(data):
            raise DecodeError("a task set ends too early", at)
        k, at = data[at], at + 1
    if not 1 <= count <= count_max or max(count, first, base) > size:
        raise DecodeError(f"{count} gaps in {size} positions", at)
    bits = BitReader(data, at, rice_bits_max(count, k, size))
    steps = bits.rice(count - 1, k)
    if first + int(steps.sum()) + (count - 1) * (base + 1) >= size:
        raise DecodeError(f"gaps beyond their {size} positions", at)
    return np.cumsum(np.append(first, steps + base + 1)), bits.end()


def _read_triplets(data: bytes, at: int, size: int, count_max: int) -> tuple[Positions, int]:
    bits = BitReader(data, at, size // 3 * 4 + 4)
    first = bits.fixed(-(-size // 3), 2)
    symbols = np.maximum(2 * first - 1, 0)
    nonzero = np.flatnonzero(first)
    symbols[nonzero] += bits.fixed(len(nonzero), 1)
    last = np.flatnonzero(symbols == 6)
    symbols[last] += bits.fixed(len(last), 1)
    triplets = _TRIPLET[symbols]
    member = (triplets[:, None] >> np.arange(3, dtype=np.uint8)) & 1
    return np.flatnonzero(member.ravel()), bits.end()


def _read_bitmap(data: bytes, at: int, size: int, count_max: int) -> tuple[Positions, int]:
    bits = BitReader(data, at, size)
    return np.flatnonzero(bits.take(size)), bits.end()
