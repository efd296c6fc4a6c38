"""A range coder (rANS) for symbols of uneven frequency, with many lanes at a time.

Frequencies are counts scaled to a sum of 2^16. Symbol i belongs to lane i modulo `lanes_of`. A
lane's state is a 32-bit number, at least 2^16. To read a symbol, take the low 16 bits of the state
as a slot; the symbol is the one whose range has that slot. The state becomes
``frequency * (state >> 16) + slot - start of the range``; if it is below 2^16 then, it is shifted
up by 16 bits and takes the next word of the stream. Writing is the reverse, from the last symbol to
the first. After the last symbol every state must be 2^16 again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muster.protocol.bits import (
    BitReader,
    BitWriter,
    put_varint,
    rice_bits,
    rice_bits_max,
    rice_parameter,
    take_varint,
)
from muster.protocol.errors import DecodeError

SCALE_BITS = 16
SCALE = 1 << SCALE_BITS
LANES_MAX = 4096
_LANE_SYMBOLS = 512
"""Symbols per lane; a lane's four bytes are then some 1 % of the coded size."""


def lanes_of(count: int) -> int:
    """Number of lanes for `count` symbols: the largest power of two with 512 symbols per lane."""
    return min(LANES_MAX, 1 << max(0, (count // _LANE_SYMBOLS).bit_length() - 1))


def frequencies(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts scaled to a sum of `SCALE`, each at least 1.

    If the sum is too small, the difference is added to the largest (the first of equals). If it is
    too large, the difference is taken from the largest, at most half of it at a time.
    """
    scaled = np.maximum(counts * SCALE // int(counts.sum()), 1)
    excess = int(scaled.sum()) - SCALE
    while excess:
        largest = int(scaled.argmax())
        step = min(excess, int(scaled[largest]) // 2)
        scaled[largest] -= step
        excess -= step
    return scaled


def rans_size(counts: NDArray[np.int64]) -> int:
    """Estimated number of bytes that `rans_encode` gives."""
    total = int(counts.sum())
    entropy = float((counts * np.log2(total / counts)).sum())
    table = rice_bits(counts - 1, rice_parameter(counts - 1))
    return int(entropy / 8) + table // 8 + 4 * lanes_of(total) + 8


def rans_encode(symbols: NDArray[np.int64], counts: NDArray[np.int64]) -> bytes:
    """The bytes of counts, final states and words; `counts[s]` is the count of symbol s, not 0."""
    scaled = frequencies(counts)
    frequency = scaled.astype(np.uint32).take(symbols)
    start = (np.cumsum(scaled) - scaled).astype(np.uint32).take(symbols)
    limit = ((scaled << SCALE_BITS) - 1).astype(np.uint32).take(symbols)
    beside = np.uint32(SCALE) - frequency
    lanes = lanes_of(len(symbols))
    state = np.full(lanes, SCALE, dtype=np.uint32)
    words: list[NDArray[np.uint16]] = []
    shift = np.uint32(SCALE_BITS)
    for first in range((len(symbols) - 1) // lanes * lanes, -1, -lanes):
        row = slice(first, first + lanes)
        x = state[: len(symbols) - first]
        full = (x > limit[row]).nonzero()[0]
        high = x.take(full)
        words.append(high.astype(np.uint16))
        x[full] = high >> shift
        # Equals x // f * SCALE + x % f + start, with one division.
        x += x // frequency[row] * beside[row]
        x += start[row]
    k = rice_parameter(counts - 1)
    bits = BitWriter()
    bits.rice(counts - 1, k)
    stream = np.concatenate(words[::-1])
    out = bytearray((k,))
    out += bits.bytes() + state.astype("<u4").tobytes()
    put_varint(out, len(stream))
    return bytes(out) + stream.astype("<u2").tobytes()


def rans_decode(data: bytes, at: int, count: int, owners: int) -> tuple[NDArray[np.int64], int]:
    """Read `count` symbols below `owners`; returns the symbols and the offset of their end."""
    if at >= len(data) or owners > SCALE:
        raise DecodeError(f"range-coded symbols of {owners} owners", at)
    k = data[at]
    bits = BitReader(data, at + 1, rice_bits_max(owners, k, count))
    counts = bits.rice(owners, k) + 1
    if int(counts.sum()) != count:
        raise DecodeError(f"counts of {int(counts.sum())} symbols; expected {count}", at)
    lanes, at = lanes_of(count), bits.end()
    size, behind = take_varint(data, at + 4 * lanes)
    if behind + 2 * size > len(data):
        raise DecodeError("range-coded symbols end too early", at)
    state = np.frombuffer(data, "<u4", lanes, at).astype(np.uint32)
    words = np.frombuffer(data, "<u2", size, behind).astype(np.uint32)
    return _symbols(state, words, counts, count, at), behind + 2 * size


def _symbols(
    state: NDArray[np.uint32],
    words: NDArray[np.uint32],
    counts: NDArray[np.int64],
    count: int,
    at: int,
) -> NDArray[np.int64]:
    frequency = frequencies(counts)
    frequency_of = np.repeat(frequency, frequency).astype(np.uint32)
    starts = np.repeat(np.cumsum(frequency) - frequency, frequency)
    inside_of = (np.arange(SCALE) - starts).astype(np.uint32)
    slots = np.empty(count, dtype=np.intp)
    lanes, taken = len(state), 0
    shift, mask = np.uint32(SCALE_BITS), np.uint32(SCALE - 1)
    for first in range(0, count, lanes):
        x = state[: min(lanes, count - first)]
        slot = slots[first : first + len(x)]
        slot[:] = x & mask
        x >>= shift
        x *= frequency_of.take(slot)
        x += inside_of.take(slot)
        low = (x < SCALE).nonzero()[0]
        if taken + len(low) > len(words):
            raise DecodeError("range-coded symbols end too early", at)
        x[low] = x.take(low) << shift | words[taken : taken + len(low)]
        taken += len(low)
    if taken != len(words) or not (state == SCALE).all():
        raise DecodeError("range-coded symbols that do not end where they should", at)
    return np.repeat(np.arange(len(counts)), frequency).take(slots)
