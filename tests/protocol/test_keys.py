"""Keys can be parsed in one way only, and their partitions are those of Kafka's clients."""

from __future__ import annotations

import pytest
from hypothesis import given
from support.protocol import wire

from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.keys import Key, key_of, murmur2, parse_key, partition_of, whole_key


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_as_in_java(text: bytes, hashed: int) -> None:
    """The vectors of Kafka's own UtilsTest."""
    assert murmur2(text) == hashed % 2**32


def test_murmur2_of_negative_bytes() -> None:
    """Bytes above 127, negative in Java, in the body and in each tail."""
    for length in range(1, 9):
        data = bytes(range(0xF0, 0xF0 + length))
        assert partition_of(data, 2**31) == murmur2(data) & 0x7FFFFFFF


@given(wire.texts, wire.optional(wire.texts))
def test_keys_read_back(group: str, member: str | None) -> None:
    """Keys of wholes and parts read back, and a part has the partition of its whole."""
    whole = key_of(group, member)
    part = key_of(group, member, "a3")
    assert parse_key(whole) == Key(group, member, "")
    assert parse_key(part) == Key(group, member, "a3")
    assert (whole_key(part), whole_key(whole)) == (whole, whole)
    assert partition_of(part, 97) == partition_of(whole, 97)


@pytest.mark.parametrize("key", [None, b"", b"|m", b"g|", b"g|m|", b"g|m|a1|x", b"g\t|m"])
def test_invalid_keys_are_refused(key: bytes | None) -> None:
    """Keys that no record of ours has are refused."""
    with pytest.raises(DecodeError):
        parse_key(key)


def test_invalid_member_ids_are_refused() -> None:
    """Member ids are 1 to 128 printable characters without the separator."""
    for member in ("", "a|b", "x" * 129, "tab\t"):
        with pytest.raises(EncodeError, match="member id"):
            key_of("g", member)
