"""Record keys as text, and the partition a key belongs to.

A key is ``group`` or ``group|member``. The second and later parts of a split record add a part
name: ``group||a1``, ``group|member|a1``. A group's dictionary has ``group||names``, and its parts
``group||names.a1``; what was found for a group's sources has ``group||found``. Ids and part names
never contain ``|``, so a key can be parsed in one way only. A part has the partition of its whole
record (`partition_of`), because a member reads only one partition.
"""

from __future__ import annotations

from typing import NamedTuple

from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.ids import SEPARATOR, GroupId, MemberId, group_fault, member_fault

DICTIONARY_PART, FOUND_PART = "names", "found"
COORDINATOR_KEY = b"coordinator"
"""Key of every claim, because only the newest claim counts."""
SIGN_GROUP = "__muster_coordinator"
"""Reserved: coordinators' signs of life have the key ``__muster_coordinator|job``."""


class Key(NamedTuple):
    """A parsed key. `member` is None on topics keyed by group, `part` is empty for a whole."""

    group: GroupId
    member: MemberId | None = None
    part: str = ""


def key_of(group: str, member: str | None = None, part: str = "") -> bytes:
    """The bytes of a key.

    Raises:
        EncodeError: an id is not valid.
    """
    fault = group_fault(group) or (member_fault(member) if member is not None else None)
    if fault is not None:
        raise EncodeError(f"{fault}: it cannot be part of a record key")
    text = group if member is None else f"{group}{SEPARATOR}{member}"
    if part:
        text += SEPARATOR * (2 if member is None else 1) + part
    return text.encode()


def parse_key(key: bytes | None) -> Key:
    """Parse a key.

    Raises:
        DecodeError: the key is missing, not UTF-8, or has ids that are not valid.
    """
    if not key:
        raise DecodeError("a record without a key; expected the group id")
    try:
        fields = bytes(key).decode().split(SEPARATOR)
    except UnicodeDecodeError as error:
        raise DecodeError("the key is not UTF-8", error.start) from None
    if len(fields) > 3:
        raise DecodeError("the key has more than three fields; expected group|member|part")
    group, member, part = (*fields, "", "")[:3]
    fault = group_fault(group) or (member_fault(member) if member else None)
    if fault is None and ((len(fields) == 2 and not member) or (len(fields) == 3 and not part)):
        fault = "an empty last field in the key"
    if fault is not None:
        raise DecodeError(fault)
    return Key(GroupId(group), MemberId(member) if member else None, part)


def whole_key(key: bytes) -> bytes:
    """The key without a part name."""
    first, separator, behind_group = key.partition(b"|")
    member, again, _ = behind_group.partition(b"|")
    if not separator or not again:
        return key
    return first + b"|" + member if member else first


def part_key(key: bytes, index: int, turn: int) -> bytes:
    """Key of part `index` of a split record; part 0 has the record's own key.

    Even and odd values of `turn` give different keys.
    """
    if index == 0:
        return key
    separator = b"||" if b"|" not in key else b"." if key.count(b"|") == 2 else b"|"
    return key + separator + f"{'ab'[turn & 1]}{index}".encode()


def joined_key(key: bytes) -> bytes:
    """The key from which `part_key` made this one; other keys are returned unchanged."""
    first, _, name = key.rpartition(b"|")
    if key.count(b"|") == 2 and name.partition(b".")[0] == DICTIONARY_PART.encode():
        return first + b"|" + DICTIONARY_PART.encode()
    return whole_key(key)


def dead_letter_key(topic: str, partition: int, offset: int) -> bytes:
    """The key of the dead letter of the record at this place."""
    return f"{topic}|{partition}|{offset}".encode()


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key, as the Java client's default partitioner computes it.

    Every producer must use it; Spark's sink, the Java client and confluent-kafka with
    ``partitioner=murmur2_random`` do. Part names do not count.
    """
    return (murmur2(whole_key(key)) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Murmur2 as in Java's `Utils.murmur2`, as an unsigned 32-bit number."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    value = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        value = (value * m & mask) ^ k
    if len(data) > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * m & mask
    value = (value ^ (value >> 13)) * m & mask
    return value ^ (value >> 15)
