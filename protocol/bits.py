"""Bits, words and varints in numpy, for the task-set and owner-vector codecs.

Bits fill bytes from the lowest up. A Rice code of parameter k writes a value's high part
``value >> k`` in unary (that many zeros, then a one) and its low k bits. The unary parts of a list
come first, then the low parts, so that numpy reads both without a loop. Parameter `ZEROS` means a
list of zeros and takes no bits, so a reader must know a bound of the list's length.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from muster.protocol.errors import DecodeError

RICE_PARAMETER_MAX = 31
ZEROS = 32
"""The Rice parameter of a list of zeros, which takes no bits."""
FEW = 48
"""Up to about this many numbers are written and read faster without numpy."""
WORD_BITS_MAX = 56
"""A word of this size fits 64 bits with the up to seven bits before it in its first byte."""


def put_varint(out: bytearray, value: int) -> None:
    """Append an unsigned LEB128 number."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def take_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned LEB128 number of at most 5 bytes; returns it and the offset of its end."""
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise DecodeError("a number ends too early", at)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise DecodeError("a number of more than 5 bytes", at)


def rice_bits(values: NDArray[np.int64], k: int) -> int:
    """Number of bits of a list in the Rice code of parameter `k`."""
    if k == ZEROS:
        return 0
    return int((values >> k).sum()) + len(values) * (k + 1)


def rice_parameter(values: NDArray[np.int64]) -> int:
    """The parameter that makes a list shortest; the smallest of equals."""
    if not values.any():
        return ZEROS
    mean = int(values.sum()) // len(values)
    guess = mean.bit_length()
    tried = range(max(0, guess - 2), min(RICE_PARAMETER_MAX, guess + 1) + 1)
    return min(tried, key=lambda k: rice_bits(values, k))


class BitWriter:
    """Collects bits."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.uint8]] = []

    def fixed(self, values: NDArray[np.int64], width: int) -> None:
        """Append every value with `width` bits (at most 32)."""
        if width and len(values):
            wide = values.astype("<u4").view(np.uint8).reshape(-1, 4)
            bits = np.unpackbits(wide, axis=1, count=width, bitorder="little")
            self._parts.append(bits.ravel())

    def rice(self, values: NDArray[np.int64], k: int) -> None:
        """Append a list in the Rice code of parameter `k`."""
        if k == ZEROS:
            return
        ends = np.cumsum((values >> k) + 1)
        unary = np.zeros(int(ends[-1]), dtype=np.uint8)
        unary[ends - 1] = 1
        self._parts.append(unary)
        self.fixed(values & ((1 << k) - 1), k)

    def bytes(self) -> bytes:
        """All bits as bytes, the last byte filled up with zeros."""
        if not self._parts:
            return b""
        return np.packbits(np.concatenate(self._parts), bitorder="little").tobytes()


def rice_bits_max(count: int, k: int, total: int) -> int:
    """Upper bound of the bits of `count` values with Rice parameter `k` and a sum up to `total`."""
    return count * (k + 1) + (total >> min(k, 63))


class BitReader:
    """Reads at most `bits_max` bits from a byte offset on, never beyond the data."""

    def __init__(self, data: bytes, at: int, bits_max: int) -> None:
        self._at = at
        size = max(0, min(len(data) - at, -(-bits_max // 8)))
        raw = np.frombuffer(data, np.uint8, size, at) if size else np.empty(0, np.uint8)
        self._bits = np.unpackbits(raw, bitorder="little")
        self._next = 0

    def take(self, count: int) -> NDArray[np.uint8]:
        """The next bits, one per entry."""
        bits = self._bits[self._next : self._next + count]
        if len(bits) < count:
            raise DecodeError("the bits end too early", self.end())
        self._next += count
        return bits

    def fixed(self, count: int, width: int) -> NDArray[np.int64]:
        """The next `count` values of `width` bits (at most 32)."""
        if width == 0:
            return np.zeros(count, dtype=np.int64)
        bits = self.take(count * width).reshape(count, width)
        wide = np.zeros((count, 4), dtype=np.uint8)
        packed = np.packbits(bits, axis=1, bitorder="little")
        wide[:, : packed.shape[1]] = packed
        return wide.view("<u4").ravel().astype(np.int64)

    def rice(self, count: int, k: int) -> NDArray[np.int64]:
        """The next `count` values in the Rice code of parameter `k`."""
        if k == ZEROS or count == 0:
            return np.zeros(count, dtype=np.int64)
        if k > ZEROS:
            raise DecodeError(f"Rice parameter {k}; at most {ZEROS}", self.end())
        unread = self._bits[self._next :]
        if count * (k + 1) > len(unread):
            raise DecodeError(f"{count} values in {len(unread)} bits", self.end())
        ones = np.flatnonzero(unread)[:count]
        if len(ones) < count:
            raise DecodeError("the bits end too early", self.end())
        high = np.diff(ones, prepend=-1) - 1
        self._next += int(ones[-1]) + 1
        return (high << k) + self.fixed(count, k)

    def end(self) -> int:
        """Offset behind the last byte that was read."""
        return self._at + -(-self._next // 8)


def pack_words(words: NDArray[np.uint64], bits: int) -> bytes:
    """Words of up to `WORD_BITS_MAX` bits, packed without gaps from the lowest bit up."""
    # Eight words fill whole bytes, so each of eight columns has a fixed place within its row.
    rows = -(-len(words) // 8)
    padded = np.zeros((rows, 8), dtype=np.uint64)
    padded.ravel()[: len(words)] = words
    out = np.zeros((rows, bits + 8), dtype=np.uint8)
    for column in range(8):
        byte, shift = divmod(column * bits, 8)
        shifted = (padded[:, column] << np.uint64(shift)).astype("<u8")
        out[:, byte : byte + 8] |= shifted.view(np.uint8).reshape(rows, 8)
    return out[:, :bits].tobytes()[: -(-len(words) * bits // 8)]


def take_words(data: bytes, at: int, count: int, bits: int) -> tuple[NDArray[np.uint64], int]:
    """Read what `pack_words` wrote; returns the words and the offset of their end."""
    size = -(-count * bits // 8)
    if at + size > len(data):
        raise DecodeError(f"{count} words of {bits} bits in {len(data) - at} bytes", at)
    rows = -(-count // 8)
    raw = np.zeros(rows * bits + 8, dtype=np.uint8)
    raw[:size] = np.frombuffer(data, np.uint8, size, at)
    out = np.empty((rows, 8), dtype=np.uint64)
    mask = np.uint64((1 << bits) - 1)
    for column in range(8):
        byte, shift = divmod(column * bits, 8)
        windows = np.lib.stride_tricks.as_strided(raw[byte:], (rows, 8), (bits, 1))
        words = np.ascontiguousarray(windows).view("<u8").ravel()
        out[:, column] = (words >> np.uint64(shift)) & mask
    return out.ravel()[:count], at + size


def pack_numbers(numbers: NDArray[np.int64]) -> bytes:
    """Numbers as differences from the smallest, in as many bits as the largest difference needs."""
    if len(numbers) == 0:
        return b""
    if len(numbers) <= FEW:
        return _pack_few(numbers.tolist())
    least = int(numbers.min())
    bits = (int(numbers.max()) - least).bit_length()
    if bits > WORD_BITS_MAX:
        return b"\x40" + numbers.astype("<i8").tobytes()
    words = (numbers - least).astype(np.uint64)
    return bytes((bits,)) + least.to_bytes(8, "little", signed=True) + pack_words(words, bits)


def _pack_few(numbers: list[int]) -> bytes:
    """`pack_numbers` without numpy."""
    least = min(numbers)
    bits = (max(numbers) - least).bit_length()
    if bits > WORD_BITS_MAX:
        return b"\x40" + b"".join(n.to_bytes(8, "little", signed=True) for n in numbers)
    words = 0
    for place, number in enumerate(numbers):
        words |= (number - least) << place * bits
    packed = words.to_bytes(-(-len(numbers) * bits // 8), "little")
    return bytes((bits,)) + least.to_bytes(8, "little", signed=True) + packed


def take_numbers(data: bytes, count: int) -> NDArray[np.int64]:
    """Read what `pack_numbers` wrote: `count` numbers in all of `data`."""
    if count == 0 and not data:
        return np.empty(0, dtype=np.int64)
    bits = data[0] if data else 0
    if bits == 64 and len(data) == 1 + 8 * count:
        return np.frombuffer(data, "<i8", count, 1).astype(np.int64)
    if count == 0 or len(data) < 9 or bits > WORD_BITS_MAX:
        raise DecodeError(f"no {count} numbers of {bits} bits")
    if count <= FEW and 8 * (len(data) - 9) in range(count * bits, count * bits + 8):
        return _take_few(data, count, bits)
    words, end = take_words(data, 9, count, bits)
    if end != len(data):
        raise DecodeError(f"{len(data) - end} bytes behind {count} numbers", end)
    least = np.int64(int.from_bytes(data[1:9], "little", signed=True))
    return words.astype(np.int64) + least


def _take_few(data: bytes, count: int, bits: int) -> NDArray[np.int64]:
    """`take_numbers` with one call of numpy, for `count` numbers that fill `data`."""
    least = int.from_bytes(data[1:9], "little", signed=True)
    words, mask = int.from_bytes(data[9:], "little"), (1 << bits) - 1
    numbers = ((words >> place * bits & mask) + least for place in range(count))
    # A sum beyond 63 bits, which no writer makes, wraps around as numpy's does.
    return np.array([n if n < 1 << 63 else n - (1 << 64) for n in numbers], dtype=np.int64)


def inflate(data: bytes, at: int, size_max: int) -> tuple[bytes, int]:
    """Inflate a zlib stream to at most `size_max` bytes; returns them and the stream's end."""
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(data[at:], size_max + 1)
        if len(raw) <= size_max and not stream.eof:
            raw += stream.decompress(stream.unconsumed_tail, size_max + 1 - len(raw))
    except zlib.error as error:
        raise DecodeError(f"bytes that do not inflate: {error}", at) from None
    if len(raw) > size_max:
        raise DecodeError(f"inflates to more than {size_max} bytes", at)
    if not stream.eof:
        raise DecodeError("a zlib stream ends too early", len(data))
    return raw, len(data) - len(stream.unused_data)


def beginning(data: bytes, at: int, size: int) -> bytes:
    """The first `size` bytes of what a zlib stream inflates to; fewer if it has no more."""
    try:
        return zlib.decompressobj().decompress(data[at:], size)
    except zlib.error as error:
        raise DecodeError(f"bytes that do not inflate: {error}", at) from None
