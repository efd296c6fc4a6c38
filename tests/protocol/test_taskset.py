"""The task-set codec: exact, near the entropy, deterministic, and safe against its input."""

from __future__ import annotations

from math import lgamma, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.protocol import wire
from support.suite.examples import examples

from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.tasks import EMPTY, TaskSet
from muster.protocol.taskset import (
    SET_TASKS_MAX,
    UnitRef,
    decode_segment,
    decode_set,
    encode_segment,
    encode_set,
    units_of,
)

quick = settings(max_examples=examples(80), deadline=None)


def floor_bytes(size: int, count: int) -> float:
    """log2 of the number of sets of this many positions, in bytes."""
    return (lgamma(size + 1) - lgamma(count + 1) - lgamma(size - count + 1)) / log(2) / 8


@quick
@given(st.lists(wire.task_sets(), min_size=1, max_size=3))
def test_sets_round_trip(sets: list[TaskSet]) -> None:
    """Sets that share a record's units read back in every form."""
    units = units_of(sets)
    assert [decode_set(encode_set(s, units), units) for s in sets] == sets


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 100, 4096])
def test_segments_of_every_density(size: int) -> None:
    """Every density, runs, strides and the borders, at sizes around byte and triplet borders."""
    random = np.random.default_rng(size)
    cases = [np.flatnonzero(random.random(size) < p / 20) for p in range(21)]
    cases += [np.arange(a, size, s) for a in (0, size // 2) for s in (1, 2, 3, 7)]
    cases += [np.array([0]), np.array([size - 1]), np.arange(size - 1)]
    for positions in cases:
        data = encode_segment(positions, size)
        tasks, end = decode_segment(data, 0, size)
        assert (tasks.tolist(), end) == (positions.tolist(), len(data))


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1, 0.25, 0.34, 0.38, 0.41, 0.5, 0.62, 0.9])
def test_random_sets_are_near_the_floor(density: float) -> None:
    """At most 1.03 × the entropy + 16 bytes, over three orders of size."""
    for size in (100, 10_000, 300_000):
        positions = np.flatnonzero(np.random.default_rng(size).random(size) < density)
        taken = len(encode_segment(positions, size))
        assert taken <= 1.03 * floor_bytes(size, len(positions)) + 16


def test_ranges_and_strides_are_tiny() -> None:
    """A contiguous range takes a few bytes; a round-robin share one bit per task."""
    for first, last in ((0, 10), (77, 50_000), (0, 2_000_000), (1_999_999, 2_000_000)):
        assert len(encode_segment(np.arange(first, last), 2_000_000)) <= 12
    assert len(encode_segment(np.arange(3, 100_000, 100), 100_000)) <= 1000 / 8 + 12


def test_units_far_apart_in_density_are_coded_apart() -> None:
    """With one full and one sparse unit, coding by unit is shorter."""
    full, sparse = np.arange(0, 5000, 2, dtype=np.int32), np.array([7, 4000], dtype=np.int32)
    random = np.random.default_rng(0)
    dense = np.flatnonzero(random.random(5000) < 0.5).astype(np.int32)
    tasks = TaskSet([("0", False, dense), ("1", False, sparse), ("2", False, full)])
    units = units_of([tasks])
    assert len(encode_set(tasks, units)) <= 625 + 10 + 320 + 20
    assert decode_set(encode_set(tasks, units), units) == tasks


def test_the_empty_set_is_no_bytes() -> None:
    """The empty set takes no bytes."""
    assert (encode_set(EMPTY, ()), decode_set(b"", ())) == (b"", EMPTY)


def test_segments_without_positions() -> None:
    """Segments over no units, and over units without positions, hold no tasks."""
    for units in ((), (UnitRef("0_", 0),), (UnitRef("0_", 0), UnitRef("c-", 0))):
        assert [decode_set(data, units) for data in (b"\x01\x80", b"\x01\x00")] == [EMPTY, EMPTY]


@pytest.mark.parametrize(
    ("data", "size", "reason"),
    [
        (b"\x03", 10, "codec 3"),
        (b"\x01", 10, "ends too early"),
        (b"\x01\x07", 10, "form 7"),
        (b"\x01\x04\xff", 10, "bits end too early"),
        (b"\x01\x02\x01\x0a", 10, "beyond|gaps"),
        (b"\x01\x02\x01\x09\x00", 10, "1 bytes behind"),
        (b"\x01\x02\xff\xff\xff\xff\xff\x01", 10, "more than 5 bytes"),
        (b"\x01\x02\xff\xff\xff\xff\x07\x00\x00\x00\xff", 2**31 - 1, "2147483647 gaps"),
        (b"\x01\x02\x02\x00\x00\x40\xff", 10, "Rice parameter 64"),
        (b"\x01\x01\x01\x00\x1f\x03\xff\xff\xff\x7f", 2**31 - 1, "more than 4194304|beyond"),
        (b"\x01\x01\xff\xff\xff\xff\x0f\x00\x00", 2**31 - 1, "4294967295 runs"),
        (b"\x01\x01\xff\xff\xff\x04\x20\x20", 2**31 - 1, "10485759 runs"),
        (b"\x01\x80", 2**31 - 1, "complement"),
        (b"\x01\x04", 2**31 - 1, "bits end too early"),
        (b"\x01\x03\x00", 2**31 - 1, "bits end too early"),
    ],
)
def test_hostile_sets(data: bytes, size: int, reason: str) -> None:
    """Sets that claim more than their bytes or units hold are refused before they are built."""
    with pytest.raises(DecodeError, match=reason):
        decode_set(data, (UnitRef("0_", size),))


def test_limits_hold_across_units() -> None:
    """The limit of tasks holds for the sum over all units."""
    units = tuple(UnitRef(f"{i}_", SET_TASKS_MAX) for i in range(3))
    with pytest.raises(DecodeError, match="more than"):
        decode_set(b"\x02\x80\x80\x80", units)


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=40), st.integers(0, 2**31 - 1), st.integers(0, 50))
def test_any_bytes(data: bytes, large: int, small: int) -> None:
    """Random bytes are a set or raise DecodeError, without a large allocation."""
    for size in (large, small):
        try:
            tasks = decode_set(data, (UnitRef("0_", size), UnitRef("c-", small)))
        except DecodeError:
            continue
        assert len(tasks) <= SET_TASKS_MAX


def test_tasks_outside_the_units_are_refused() -> None:
    """A set that the record's units cannot express is an EncodeError."""
    with pytest.raises(EncodeError, match="no unit"):
        encode_set(TaskSet.of(["0_5"]), (UnitRef("0_", 5),))
