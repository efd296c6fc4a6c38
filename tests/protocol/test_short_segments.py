"""What is written without numpy is, byte for byte, what the general writers write."""

from __future__ import annotations

import random

import numpy as np
import pytest

from muster.protocol import bits, taskset
from muster.protocol.bits import pack_numbers, take_numbers
from muster.protocol.errors import DecodeError
from muster.protocol.short_segments import POSITIONS_MAX
from muster.protocol.taskset import Positions, decode_segment, encode_segment

SIZES = (1, 7, 64, 200, 5_000, 4_000_000)


def drawn(rng: random.Random) -> tuple[Positions, int]:
    """Some positions, at random or in a row, and the number of positions there are."""
    size = rng.randint(1, rng.choice(SIZES))
    count = rng.randint(1, min(size, POSITIONS_MAX))
    first = rng.randint(0, size - count)
    chosen = range(first, first + count) if rng.random() < 0.3 else ()
    positions = sorted(chosen or rng.sample(range(size), count))
    return np.array(positions, dtype=np.int64), size


def test_short_segments_are_those_of_the_general_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both writers choose the same form and write the same bytes; a reader reads them."""
    rng = random.Random(5)
    problems = [drawn(rng) for _ in range(3_000)]
    short = [encode_segment(*problem) for problem in problems]
    monkeypatch.setattr(taskset, "POSITIONS_MAX", 0)
    for (positions, size), data in zip(problems, short, strict=True):
        assert data == encode_segment(positions, size), (positions, size)
        read, end = decode_segment(data, 0, size)
        assert (read.tolist(), end) == (positions.tolist(), len(data))
    assert {data[0] & 0x7F for data in short} == {0, 1, 2, 3, 4}  # 0: all positions


@pytest.mark.parametrize("width", [0, 1, 3, 8, 31, 55, 56, 57, 63])
def test_few_numbers_are_packed_as_many_are(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to pack numbers give the same bytes; a reader reads them."""
    rng = random.Random(width)
    lists = [
        np.array([rng.randint(-(1 << width), (1 << width) - 1) for _ in range(count)])
        for count in range(1, bits.FEW + 1)
    ]
    few = [pack_numbers(numbers) for numbers in lists]
    monkeypatch.setattr(bits, "FEW", 0)
    for numbers, data in zip(lists, few, strict=True):
        assert data == pack_numbers(numbers)
        assert take_numbers(data, len(numbers)).tolist() == numbers.tolist()


def test_few_numbers_are_read_as_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to read numbers give the same, also of bytes that no writer makes."""
    rng = random.Random(11)
    rows = [
        (rng.randint(1, 5), bytes([rng.randint(0, 60)]) + rng.randbytes(rng.randint(7, 40)))
        for _ in range(5_000)
    ]
    rows += [(1, b"\x38" + b"\xff" * 7 + b"\x7f" + b"\xff" * 7)]  # beyond 63 bits

    def read(count: int, data: bytes) -> object:
        try:
            return take_numbers(data, count).tolist()
        except DecodeError as error:
            return str(error)

    few = [read(count, data) for count, data in rows]
    monkeypatch.setattr(bits, "FEW", 0)
    assert few == [read(count, data) for count, data in rows]
    assert sum(isinstance(each, list) for each in few) > 100
