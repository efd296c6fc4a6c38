"""Bits and varints, in numpy: what the task-set and owner-vector codecs are written with.

Bits fill bytes from the lowest up. A Rice code of parameter k writes a value's high part
``value >> k`` in unary (that many zeros, then a one) and its low k bits as they are; the unary
parts of a list come first, then the low parts, so that both are read without a loop.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muster.protocol.errors import DecodeError

RICE_PARAMETER_MAX = 31


def put_varint(out: bytearray, value: int) -> None:
    """Append an unsigned LEB128 number."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def take_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned LEB128 number of at most 5 bytes; the number and where it ends."""
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
    """How many bits a list takes."""
    return int((values >> k).sum()) + len(values) * (k + 1)


def rice_parameter(values: NDArray[np.int64]) -> int:
    """The parameter with which a list is shortest; the smallest of equals."""
    if len(values) == 0:
        return 0
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
        if len(values) == 0:
            return
        ends = np.cumsum((values >> k) + 1)
        unary = np.zeros(int(ends[-1]), dtype=np.uint8)
        unary[ends - 1] = 1
        self._parts.append(unary)
        self.fixed(values & ((1 << k) - 1), k)

    def bytes(self) -> bytes:
        """Everything, the last byte filled with zeros."""
        if not self._parts:
            return b""
        return np.packbits(np.concatenate(self._parts), bitorder="little").tobytes()


class BitReader:
    """Reads bits from a byte on; every read is bounded by the bytes that are there."""

    def __init__(self, data: bytes, at: int) -> None:
        self._at = at
        self._bits = np.unpackbits(np.frombuffer(data, np.uint8)[at:], bitorder="little")
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
        if k > RICE_PARAMETER_MAX:
            raise DecodeError(f"Rice parameter {k}; at most {RICE_PARAMETER_MAX}", self.end())
        if count == 0:
            return np.empty(0, dtype=np.int64)
        rest = self._bits[self._next :]
        if count * (k + 1) > len(rest):
            raise DecodeError(f"{count} values in {len(rest)} bits", self.end())
        ones = np.flatnonzero(rest)[:count]
        if len(ones) < count:
            raise DecodeError("the bits end too early", self.end())
        high = np.diff(ones, prepend=-1) - 1
        self._next += int(ones[-1]) + 1
        return (high << k) + self.fixed(count, k)

    def end(self) -> int:
        """Byte behind the last byte touched."""
        return self._at + -(-self._next // 8)
