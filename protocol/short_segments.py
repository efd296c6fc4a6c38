"""Segments of a few positions without numpy; `taskset` explains what a segment is.

A member rarely has more than some dozens of tasks. For ten positions each call of numpy takes
longer than the work itself, and a segment needs some sixty calls. The bytes are those of the
general writer in `taskset`. Segments for which `read` returns None are left to its general reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from muster.protocol.bits import RICE_PARAMETER_MAX, ZEROS, put_varint

POSITIONS_MAX = 48
"""From about this many positions on, the general writer is as fast."""
NOTHING, RUNS, GAPS, TRIPLETS, BITMAP = range(5)
"""The forms of a segment."""
SEGMENTS_KEPT = 1 << 12
"""A process caches this many segments, each with its positions at most 3 kB."""
_Rice = tuple[int, int]
"""Parameter and number of bits of a list in its Rice code."""


@lru_cache(SEGMENTS_KEPT)
def shortest(positions: tuple[int, ...], size: int) -> bytes:
    """The shortest form of ascending, distinct positions below `size`; there is at least one.

    It is cached, because most sets of a small group are in its next records too.
    """
    forms = [_runs(positions), _gaps(positions)]
    if size <= 8 * len(positions) + 64:
        forms += [_triplets(positions, size), _bitmap(positions, size)]
    return min(forms, key=len)


def _runs(positions: Sequence[int]) -> bytes:
    between, lengths = [positions[0]], [0]
    for last, position in pairwise(positions):
        if position == last + 1:
            lengths[-1] += 1
        else:
            between.append(position - last - 2)
            lengths.append(0)
    out = bytearray((RUNS,))
    put_varint(out, len(between))
    k_between, _ = _parameter(between)
    k_lengths, _ = _parameter(lengths)
    out += bytes((k_between, k_lengths))
    bits, end = _rice(0, 0, between, k_between)
    return bytes(out) + _filled(*_rice(bits, end, lengths, k_lengths))


def _gaps(positions: Sequence[int]) -> bytes:
    gaps = [position - last - 1 for last, position in pairwise(positions)]
    out = bytearray((GAPS,))
    put_varint(out, len(positions))
    put_varint(out, positions[0])
    if not gaps:
        return bytes(out)
    base = min(gaps)
    values = [gap - base for gap in gaps]
    k, bits = _parameter(values)
    if base:
        plain, plain_bits = _parameter(gaps)
        if plain_bits <= bits + 8:
            base, values, k = 0, gaps, plain
    put_varint(out, base)
    out.append(k)
    return bytes(out) + _filled(*_rice(0, 0, values, k))


def _parameter(values: Sequence[int]) -> _Rice:
    """The parameter that makes a list shortest, the smallest of equals, and the list's bits."""
    total, count = sum(values), len(values)
    if total == 0:
        return ZEROS, 0
    guess = (total // count).bit_length()
    best = (-1, -1)
    for k in range(max(0, guess - 2), min(RICE_PARAMETER_MAX, guess + 1) + 1):
        bits = sum([value >> k for value in values]) + count * (k + 1)
        if best[0] < 0 or bits < best[1]:
            best = (k, bits)
    return best


def _rice(bits: int, end: int, values: Iterable[int], k: int) -> _Rice:
    """The bits with a list in the Rice code of parameter `k` behind them, and their new end."""
    if k == ZEROS:
        return bits, end
    low, low_bits, mask = 0, 0, (1 << k) - 1
    for value in values:
        end += value >> k
        bits |= 1 << end
        end += 1
        low |= (value & mask) << low_bits
        low_bits += k
    return bits | low << end, end + low_bits


def _filled(bits: int, end: int) -> bytes:
    return bits.to_bytes(-(-end // 8), "little")


_FIRST = (0, 1, 1, 2, 2, 3, 3, 3)
"""Bits (2) that every triplet has, by its three positions (bit 0 = the first one)."""
_SECOND = (0, 0, 1, 1, 0, 0, 1, 1)
"""Bit that follows for triplets with a position."""


def _triplets(positions: Sequence[int], size: int) -> bytes:
    triplets: dict[int, int] = {}
    for position in positions:
        place, bit = divmod(position, 3)
        triplets[place] = triplets.get(place, 0) | 1 << bit
    bits, end = 0, 2 * -(-size // 3)
    for place, triplet in triplets.items():
        bits |= _FIRST[triplet] << 2 * place | _SECOND[triplet] << end
        end += 1
    for triplet in triplets.values():
        if triplet >= 6:  # the third bit distinguishes these two
            bits |= (triplet - 6) << end
            end += 1
    return bytes((TRIPLETS,)) + _filled(bits, end)


def _bitmap(positions: Sequence[int], size: int) -> bytes:
    bits = 0
    for position in positions:
        bits |= 1 << position
    return bytes((BITMAP,)) + _filled(bits, size)


_READ_MAX = 128
"""`read` reads segments of at most this many positions."""


def read(
    form: int, data: bytes, at: int, size: int, count_max: int
) -> tuple[list[int], int] | None:
    """The positions of a segment and the offset of its end; None = the general reader reads it.

    It reads valid segments in the dense forms, of at most `_READ_MAX` positions. The segment begins
    at `at`, behind its form, and may have `count_max` of `size` positions.
    """
    if size > _READ_MAX or form not in (TRIPLETS, BITMAP):
        return None
    bits = int.from_bytes(data[at : at + _READ_MAX], "little")
    positions, count = _read_bitmap(bits, size) if form == BITMAP else _read_triplets(bits, size)
    end = at + -(-count // 8)
    if end > len(data) or len(positions) > count_max or (positions and positions[-1] >= size):
        return None
    return positions, end


def _read_bitmap(bits: int, size: int) -> tuple[list[int], int]:
    return [place for place in range(size) if bits >> place & 1], size


def _read_triplets(bits: int, size: int) -> tuple[list[int], int]:
    triplets = range(-(-size // 3))
    firsts = [(3 * n, first) for n in triplets if (first := bits >> 2 * n & 3)]
    second = 2 * len(triplets)
    third = second + len(firsts)
    positions: list[int] = []
    for place, first in firsts:
        bit = bits >> second & 1
        second += 1
        if first == 1:
            positions.append(place + bit)
        elif first == 2:
            positions += (place, place + 1) if bit else (place + 2,)
        elif not bit:
            positions += (place, place + 2)
        else:
            positions += (place, place + 1, place + 2)[1 - (bits >> third & 1) :]
            third += 1
    return positions, third
