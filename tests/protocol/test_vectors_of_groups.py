"""Owner vectors, pairs, flags and packed numbers: exact, near the entropy, safe."""

from __future__ import annotations

import zlib
from contextlib import suppress
from math import lgamma, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.suite.examples import examples

from muster.protocol import snapshot_vectors
from muster.protocol.bits import inflate, pack_numbers, pack_words, take_numbers, take_words
from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.owner_vectors import (
    CONSTANT,
    DEFLATE,
    RADIX,
    RANS,
    RUNS,
    decode_owners,
    encode_owners,
    radix_word,
)
from muster.protocol.rans import frequencies
from muster.protocol.snapshot_vectors import (
    CHANGED,
    FULL,
    SAME,
    decode_flags,
    decode_pairs,
    decode_vector,
    encode_flags,
    encode_pairs,
    encode_vector,
)

quick = settings(max_examples=examples(80), deadline=None)
RANDOM = np.random.default_rng(5)


def floor_bytes(owners: np.ndarray) -> float:
    """log2 of the number of placements with these counts, in bytes."""
    counts = np.bincount(owners + 1)
    return (lgamma(len(owners) + 1) - sum(lgamma(c + 1) for c in counts)) / log(2) / 8


def zipf(tasks: int, members: int) -> np.ndarray:
    """Shares as 1, 1/2, 1/3 and so on."""
    share = 1 / np.arange(1, members + 1)
    return RANDOM.choice(members, tasks, p=share / share.sum()).astype(np.int32)


CASES = {
    "constant": (CONSTANT, np.full(1000, 7, dtype=np.int32)),
    "no member": (CONSTANT, np.full(10, -1, dtype=np.int32)),
    "ranges": (RUNS, np.repeat(np.arange(20), 50).astype(np.int32)),
    "even": (RADIX, RANDOM.permutation(np.arange(20_000) % 100).astype(np.int32)),
    "two": (RADIX, RANDOM.permutation(np.arange(5_000) % 2).astype(np.int32)),
    "many": (RADIX, RANDOM.permutation(np.arange(20_000)).astype(np.int32)),
    "sparse slots": (RADIX, (RANDOM.permutation(np.arange(5_000) % 10) * 1000).astype(np.int32)),
    "skewed": (DEFLATE, zipf(20_000, 60)),
    "skewed, few": (DEFLATE, zipf(1000, 40)),
    "skewed, many owners": (RANS, zipf(20_000, 600)),
    "skewed, two owners": (RANS, (RANDOM.random(5_000) < 0.1).astype(np.int32)),
    "skewed, few tasks of two": (RANS, (RANDOM.random(600) < 0.05).astype(np.int32)),
    "turns": (DEFLATE, (np.arange(5_000) % 30).astype(np.int32)),
    "turns of many": (DEFLATE, (np.arange(50_000) % 3_000).astype(np.int32)),
}


_MUTATED = ("skewed, few", "skewed, few tasks of two", "ranges", "sparse slots")


@pytest.mark.parametrize("name", CASES)
def test_owner_vectors_take_the_form_that_fits(name: str) -> None:
    """Each shape of placement reads back exactly and has the form meant for it."""
    form, owners = CASES[name]
    data = encode_owners(owners)
    frequency, end = decode_owners(data, 0, len(owners))
    assert (data[1], end, frequency.dtype) == (form, len(data), np.int32)
    assert frequency.tolist() == owners.tolist()


@pytest.mark.parametrize("name", ["even", "two", "skewed", "skewed, two owners"])
def test_owner_vectors_are_near_the_floor(name: str) -> None:
    """Random placements take at most 1.03 × the entropy, plus the alphabet."""
    _, owners = CASES[name]
    assert len(encode_owners(owners)) <= 1.03 * floor_bytes(owners) + 100


@pytest.mark.parametrize("owners", [2, 3, 10, 100, 255, 256, 1000, 10_000, 1 << 20])
def test_a_word_wastes_little(owners: int) -> None:
    """The bits per index are within 2 % of the entropy."""
    bits, group = radix_word(owners)
    assert owners**group <= 1 << bits <= 1 << 56
    assert bits / group <= 1.02 * np.log2(owners)


@quick
@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=300))
def test_frequencies_fill_the_scale(counts: list[int]) -> None:
    """For any counts, every symbol has a slot and all slots are used."""
    frequency = frequencies(np.array(counts, dtype=np.int64))
    assert int(frequency.sum()) == 1 << 16
    assert int(frequency.min()) >= 1


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=40), st.integers(0, 3000))
def test_any_bytes_are_an_owner_vector_or_an_error(data: bytes, tasks: int) -> None:
    """Random bytes, also behind each form's header, raise DecodeError or are read whole."""
    heads = [b"", *(bytes((1, form, 4, 0x80)) for form in range(6))]
    for head in heads:
        try:
            frequency, end = decode_owners(head + data, 0, tasks)
        except DecodeError:
            continue
        assert len(frequency) == tasks
        assert end <= len(head + data)


@quick
@given(st.data())
def test_mutated_owner_vectors(data: st.DataObject) -> None:
    """A valid vector with some bytes changed is read or raises DecodeError."""
    _, owners = CASES[data.draw(st.sampled_from(_MUTATED))]
    value = bytearray(encode_owners(owners))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    with suppress(DecodeError):
        decode_owners(bytes(value), 0, len(owners))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "another codec"),
        (b"\x02", "another codec"),
        (b"\x01", "ends too early"),
        (b"\x01\x02\xff\xff\xff\xff\x0f\x00", "slots"),
        (b"\x01\x02\x04\x00", "0 owners"),
        (b"\x01\x09\x04\x80", "form 9"),
        (b"\x01\x02\x04\x80", "words of"),
        (b"\x01\x04\x04\x80" + zlib.compress(b"\x04" * 10), "not in the alphabet"),
        (b"\x01\x04\x04\x80" + zlib.compress(b"\x03" * 9), "9 bytes of owners"),
        (b"\x01\x04\x04\x80" + zlib.compress(b"\x03" * 11), "more than 10 bytes"),
        (b"\x01\x01\x04\x80\x00\x00", "0 runs"),
        (b"\x01\x01\x04\x80\x01\x20", "runs of 1 tasks"),
        (b"\x01\x03\x04\x80", "range-coded"),
        (b"\x01\x03\x04\x80\x20", "counts of 4"),
        (b"\x01\x04\x04\x80\x00\x00", "inflate"),
    ],
)
def test_hostile_owner_vectors(data: bytes, reason: str) -> None:
    """Each broken vector of ten tasks is refused with its own reason."""
    with pytest.raises(DecodeError, match=reason):
        decode_owners(data, 0, 10)


def test_range_coded_symbols_must_end_as_they_should() -> None:
    """A cut, a missing word and a changed state of a range-coded vector raise an error."""
    owners = CASES["skewed, many owners"][1]
    data = encode_owners(owners)
    flipped = bytearray(data)
    flipped[-1] ^= 0x55
    for broken in (data[:-1], data[:-40], bytes(flipped)):
        with pytest.raises(DecodeError, match=r"range-coded|end"):
            decode_owners(broken, 0, len(owners))


@quick
@given(st.integers(0, 300), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_vectors_with_a_base(tasks: int, share: float, seed: int) -> None:
    """A vector reads back with its base, however much of it differs."""
    random = np.random.default_rng(seed)
    base = random.integers(-1, 9, tasks).astype(np.int32)
    changed = random.random(tasks) < share
    owners = np.where(changed, random.integers(-1, 9, tasks), base).astype(np.int32)
    assert decode_vector(encode_vector(owners, base), base).tolist() == owners.tolist()


def test_forms_with_a_base() -> None:
    """An equal vector is one byte, a similar one a difference, another one is written in full."""
    base = RANDOM.integers(0, 50, 1000).astype(np.int32)
    little, much = base.copy(), base[::-1].copy()
    little[[3, 900]] = 7
    forms = [encode_vector(each, base)[0] for each in (base, little, much)]
    assert forms == [SAME, CHANGED, FULL]
    assert len(encode_vector(base, base)) == 1
    assert len(encode_vector(little, base)) < 25


@st.composite
def pair_arrays(draw: st.DrawFn) -> np.ndarray:
    """Some (task, slot) pairs of 50 tasks, up to several per task."""
    drawn = draw(st.lists(st.tuples(st.integers(0, 49), st.integers(0, 5)), unique=True))
    return np.array(sorted(drawn), dtype=np.int32).reshape(-1, 2)


@quick
@given(pair_arrays(), pair_arrays(), st.booleans())
def test_pairs_round_trip(pairs: np.ndarray, base: np.ndarray, alike: bool) -> None:
    """Pairs read back, alone and with a base that is similar or not."""
    if alike and len(base):
        pairs = np.unique(np.concatenate((pairs[:2], base[1:])), axis=0)
    for known in (None, base):
        data = encode_pairs(pairs, 50, known)
        assert decode_pairs(data, 50, known).tolist() == pairs.tolist()


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=30), pair_arrays())
def test_any_bytes_are_pairs_or_an_error(data: bytes, base: np.ndarray) -> None:
    """Random bytes as vectors, pairs and flags raise DecodeError or are read whole."""
    owners = np.zeros(50, dtype=np.int32)
    for read in (
        lambda: decode_pairs(data, 50, base),
        lambda: decode_vector(data, owners),
        lambda: decode_flags(data, 50),
    ):
        try:
            read()
        except DecodeError:
            continue


def test_pairs_without_a_member_and_too_many_layers_are_refused() -> None:
    """A pair must name a member, and the copies of a task are limited."""
    unheld = bytes((FULL, 1, 0x80, 1, CONSTANT, 1, 0x80))
    with pytest.raises(DecodeError, match="without a member"):
        decode_pairs(unheld, 5)
    with pytest.raises(DecodeError, match="pairs of one task"):
        decode_pairs(bytes((FULL, 0xFF, 0xFF, 0x7F)), 5)
    for data in (b"", b"\x07"):
        with pytest.raises(DecodeError, match="form"):
            decode_pairs(data, 5)


def test_what_can_be_written_of_one_task_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair of each of 1,100 members; more than a reader accepts is not written."""
    pairs = np.column_stack((np.zeros(1_100), np.arange(1_100))).astype(np.int32)
    assert decode_pairs(encode_pairs(pairs, 2), 2).tolist() == pairs.tolist()
    monkeypatch.setattr(snapshot_vectors, "LAYERS_MAX", 1_099)
    with pytest.raises(EncodeError, match="1100 pairs of one task"):
        encode_pairs(pairs, 2)


def test_one_more_of_thousands_of_members_costs_one_layer() -> None:
    """Thousands have copies of the same two tasks; the next snapshot finds theirs in the cache."""
    pairs = np.array([(task, slot) for task in (0, 1) for slot in range(task, 5_000)])
    one_more = np.insert(pairs, 5_000, (0, 5_000), axis=0)
    encoded = [encode_pairs(pairs, 2)]
    before = snapshot_vectors._few_pairs.cache_info().misses
    encoded.append(encode_pairs(one_more, 2))
    assert snapshot_vectors._few_pairs.cache_info().misses - before <= 1
    for data, wanted in zip(encoded, (pairs, one_more), strict=True):
        assert np.array_equal(decode_pairs(data, 2), wanted)
        assert len(data) <= 10 * 5_000


@quick
@given(st.lists(st.booleans(), max_size=200))
def test_flags_round_trip(flags: list[bool]) -> None:
    """A bool vector reads back; bytes behind it are refused."""
    array = np.array(flags, dtype=np.bool_)
    data = encode_flags(array)
    assert decode_flags(data, len(flags)).tolist() == flags
    with pytest.raises(DecodeError, match="behind"):
        decode_flags(data + b"\x00", len(flags))


@quick
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50), st.integers(0, 62))
def test_packed_numbers_round_trip(numbers: list[int], shift: int) -> None:
    """Numbers of any spread read back."""
    array = np.array(numbers, dtype=np.int64) >> shift
    assert take_numbers(pack_numbers(array), len(array)).tolist() == array.tolist()


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 3),
        (b"\x05", 1),
        (b"\x40" + bytes(7), 1),
        (b"\x39" + bytes(80), 1),
        (b"\x05" + bytes(9), 0),
        (b"\x05" + bytes(8), 3),
        (b"\x05" + bytes(12), 3),
    ],
)
def test_wrong_counts_of_numbers_are_refused(data: bytes, count: int) -> None:
    """The number of packed numbers must be exact."""
    with pytest.raises(DecodeError):
        take_numbers(data, count)


@pytest.mark.parametrize("bits", [1, 3, 8, 13, 31, 55, 56])
def test_words_of_every_width(bits: int) -> None:
    """Words read back at counts around eight, which fill whole bytes, with the right end."""
    for count in (1, 7, 8, 9, 64, 65):
        words = RANDOM.integers(0, 1 << bits, count, dtype=np.uint64)
        data = pack_words(words, bits)
        frequency, end = take_words(b"ab" + data, 2, count, bits)
        assert (frequency.tolist(), end) == (words.tolist(), 2 + -(-count * bits // 8))
        assert len(data) == end - 2


def test_inflating_is_bounded() -> None:
    """A stream cut short or too long is refused; bytes behind it are left."""
    data = zlib.compress(b"x" * 1000)
    assert inflate(b"__" + data + b"rest", 2, 1000) == (b"x" * 1000, 2 + len(data))
    with pytest.raises(DecodeError, match="more than 999"):
        inflate(data, 0, 999)
    with pytest.raises(DecodeError, match="too early"):
        inflate(data[:-2], 0, 1000)
