"""Codec of owner vectors, near the entropy of the vector.

An owner vector has one slot (or -1) for each of a known number of tasks. Its bytes are the codec id
(1), a form, and the alphabet: the slots that occur, plus one, as a segment of the task-set codec.
Then come indexes into the alphabet, in the cheapest form:

- `CONSTANT`: all tasks have one slot; nothing follows.
- `RUNS`: Rice-coded lengths of the runs of equal owners, and the owner of each run.
- `RADIX`: words of several indexes as digits, within 1.5 % of the entropy for even shares, where
  whole bits per index waste up to 40 %.
- `DEFLATE`: for repeating patterns, and as a Huffman code for uneven shares of up to 256 owners,
  in a fiftieth of rANS's time for small groups.
- `RANS`: a range coder, for uneven shares of more than 256 owners, of very few, in large groups.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from muster.protocol.bits import (
    FEW,
    WORD_BITS_MAX,
    BitReader,
    BitWriter,
    inflate,
    pack_words,
    put_varint,
    rice_bits_max,
    rice_parameter,
    take_varint,
    take_words,
)
from muster.protocol.errors import DecodeError
from muster.protocol.rans import rans_decode, rans_encode, rans_size
from muster.protocol.tasks import IntArray
from muster.protocol.taskset import Positions, decode_segment, encode_segment

CODEC = 1
CONSTANT, RUNS, RADIX, RANS, DEFLATE = range(5)
SLOTS_MAX = 1 << 24
RANS_OWNERS_MAX = 1 << 14
VECTORS_KEPT = 1 << 12
"""A process caches this many vectors of at most `FEW` tasks, each at most 600 bytes."""
_SAMPLE = 8192
_FEW = 1 << 17
"""From this many tasks on, rANS's lanes are full enough to be as fast as the other forms."""


def encode_owners(owners: IntArray) -> bytes:
    """The bytes of an owner vector."""
    if len(owners) <= FEW:
        return _few(owners.astype(np.int32).tobytes())
    return _encoded(owners)


@lru_cache(VECTORS_KEPT)
def _few(owners: bytes) -> bytes:
    """The bytes of a vector of few tasks; the next records of a group have nearly the same ones."""
    return _encoded(np.frombuffer(owners, dtype=np.int32))


def _encoded(owners: IntArray) -> bytes:
    out = bytearray((CODEC,))
    if len(owners) == 0:
        return bytes(out)
    if len(owners) == 1:  # the same, found sooner
        size = int(owners[0]) + 2
        out.append(CONSTANT)
        put_varint(out, size)
        return bytes(out) + encode_segment(np.array([size - 1]), size)
    counts = np.bincount(owners.astype(np.int64) + 1)
    alphabet = np.flatnonzero(counts)
    symbols = (np.cumsum(counts > 0) - 1)[owners.astype(np.int64) + 1]
    form, body = _cheapest(symbols, counts[alphabet])
    out.append(form)
    put_varint(out, len(counts))
    return bytes(out) + encode_segment(alphabet, len(counts)) + body


def decode_owners(data: bytes, at: int, count: int) -> tuple[IntArray, int]:
    """Read an owner vector of `count` tasks; returns the vector and the offset of its end."""
    if at >= len(data) or data[at] != CODEC:
        raise DecodeError(f"an owner vector of another codec than {CODEC}", at)
    if count == 0:
        return np.empty(0, dtype=np.int32), at + 1
    if at + 1 >= len(data):
        raise DecodeError("an owner vector ends too early", at)
    form = data[at + 1]
    size, at = take_varint(data, at + 2)
    if size > SLOTS_MAX:
        raise DecodeError(f"{size} slots; {SLOTS_MAX} are accepted", at)
    alphabet, at = decode_segment(data, at, size)
    if len(alphabet) == 0 or form not in _READERS:
        raise DecodeError(f"an owner vector of form {form} with {len(alphabet)} owners", at)
    symbols, at = _READERS[form](data, at, count, len(alphabet))
    if len(symbols) and int(symbols.max()) >= len(alphabet):
        raise DecodeError("an owner that is not in the alphabet", at)
    return (alphabet - 1).astype(np.int32)[symbols], at


def _cheapest(symbols: Positions, counts: Positions) -> tuple[int, bytes]:
    if len(counts) == 1:
        return CONSTANT, b""
    count, owners = len(symbols), len(counts)
    bits, group = radix_word(owners)
    radix_bytes = -(-count // group) * bits // 8 + 1
    rans_bytes = rans_size(counts) if owners <= RANS_OWNERS_MAX else radix_bytes
    fewest = min(radix_bytes, rans_bytes)
    changes = int(np.count_nonzero(np.diff(symbols)))
    if changes * (bits / group + 3) < 8 * fewest:
        body = _runs(symbols, owners)
        if len(body) <= fewest:
            return RUNS, body
    sample = symbols[: max(_SAMPLE, 3 * owners)]
    if 10 * len(_deflated(sample, owners, 1)) < 8 * len(sample) * bits / group / 8:
        deflated = _deflated(symbols, owners, 6)
        if len(deflated) < fewest:
            return DEFLATE, deflated
    # rANS must save a sixteenth (large groups: a 64th) of the bytes to be worth its time.
    enough = rans_bytes + rans_bytes // (16 if count < _FEW else 64)
    if radix_bytes <= enough:
        return RADIX, _radix(symbols, owners)
    if owners <= 1 << 8:
        coded = _deflated(symbols, owners, 6, zlib.Z_HUFFMAN_ONLY)
        if len(coded) <= enough:
            return DEFLATE, coded
    return RANS, rans_encode(symbols, counts)


def _deflated(
    symbols: Positions, owners: int, level: int, strategy: int = zlib.Z_DEFAULT_STRATEGY
) -> bytes:
    stream = zlib.compressobj(level, strategy=strategy)
    return stream.compress(symbols.astype(_width(owners)).tobytes()) + stream.flush()


def _width(owners: int) -> str:
    return "<u1" if owners <= 1 << 8 else "<u2" if owners <= 1 << 16 else "<u4"


def radix_word(owners: int) -> tuple[int, int]:
    """Bits of a word and number of indexes below `owners` in it, with the fewest bits per index.

    Of equally good words it is the smallest.
    """
    best = (max(1, (owners - 1).bit_length()), 1)
    group, words = 1, owners
    while True:
        group, words = group + 1, words * owners
        bits = (words - 1).bit_length()
        if bits > WORD_BITS_MAX:
            return best
        if bits * best[1] < best[0] * group:
            best = (bits, group)


def _radix(symbols: Positions, owners: int) -> bytes:
    bits, group = radix_word(owners)
    padded = np.zeros(-(-len(symbols) // group) * group, dtype=np.uint64)
    padded[: len(symbols)] = symbols
    columns = padded.reshape(-1, group)
    words = columns[:, -1].copy()
    for column in range(group - 2, -1, -1):
        words = words * np.uint64(owners) + columns[:, column]
    return pack_words(words, bits)


def _read_radix(data: bytes, at: int, count: int, owners: int) -> tuple[Positions, int]:
    bits, group = radix_word(owners)
    words, end = take_words(data, at, -(-count // group), bits)
    out = np.empty((len(words), group), dtype=np.int64)
    base = np.uint64(owners)
    for column in range(group - 1):
        higher = words // base
        out[:, column] = words - higher * base
        words = higher
    out[:, group - 1] = words
    return out.ravel()[:count], end


def _runs(symbols: Positions, owners: int) -> bytes:
    firsts = np.append(0, np.flatnonzero(np.diff(symbols)) + 1)
    lengths = np.diff(firsts, append=len(symbols)) - 1
    k = rice_parameter(lengths)
    out = bytearray()
    put_varint(out, len(firsts))
    out.append(k)
    bits = BitWriter()
    bits.rice(lengths, k)
    return bytes(out) + bits.bytes() + _radix(symbols[firsts], owners)


def _read_runs(data: bytes, at: int, count: int, owners: int) -> tuple[Positions, int]:
    runs, at = take_varint(data, at)
    if at >= len(data) or not 1 <= runs <= count:
        raise DecodeError(f"{runs} runs of {count} tasks", at)
    bits = BitReader(data, at + 1, rice_bits_max(runs, data[at], count))
    lengths = bits.rice(runs, data[at]) + 1
    if int(lengths.sum()) != count:
        raise DecodeError(f"runs of {int(lengths.sum())} tasks; the group has {count}", at)
    symbols, end = _read_radix(data, bits.end(), runs, owners)
    return np.repeat(symbols, lengths), end


def _read_constant(data: bytes, at: int, count: int, owners: int) -> tuple[Positions, int]:
    return np.zeros(count, dtype=np.int64), at


def _read_deflate(data: bytes, at: int, count: int, owners: int) -> tuple[Positions, int]:
    width = _width(owners)
    size = count * np.dtype(width).itemsize
    raw, end = inflate(data, at, size)
    if len(raw) != size:
        raise DecodeError(f"{len(raw)} bytes of owners; expected {size}", at)
    return np.frombuffer(raw, dtype=width).astype(np.int64), end


_READERS: dict[int, Callable[[bytes, int, int, int], tuple[Positions, int]]] = {
    CONSTANT: _read_constant,
    RUNS: _read_runs,
    RADIX: _read_radix,
    RANS: rans_decode,
    DEFLATE: _read_deflate,
}
