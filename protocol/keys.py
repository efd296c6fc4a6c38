"""Record keys: plain text, one rule, and the partition they belong to.

A key is ``group``, ``group|member`` or, for the second and later parts of a record that was split,
one of these with a part's name behind: ``group||a1``, ``group|member|a1``. Neither ids nor parts
contain ``|``, so a key reads back one way only. A part lives in the partition of the record it is
a part of (`partition_of`), because a member reads only one partition. The dictionary of a group
stands beside its snapshot in the same way, as ``group||names``, its own parts as
``group||names.a1``.
"""

from __future__ import annotations

from typing import NamedTuple

from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.ids import GroupId, MemberId

GROUP_ID_CHARS_MAX = 249
"""As a Kafka topic name: group ids end up in metrics, file names and topic-like places."""
MEMBER_ID_CHARS_MAX = 128
NAME_CHARS_MAX = 512
"""Names of racks, instances and the like."""
UNIT_CHARS_MAX = 8_192
"""A unit may be called by a whole expression."""
SEPARATOR = "|"
DICTIONARY_PART = "names"
"""Part name of a group's dictionary: ``group||names``."""
COORDINATOR_KEY = b"coordinator"
"""Key of every claim: only the newest is of interest."""


class Key(NamedTuple):
    """A key taken apart. `member` is None on topics keyed by group, `part` is empty for a whole."""

    group: GroupId
    member: MemberId | None = None
    part: str = ""


def group_fault(group: str) -> str | None:
    """What is wrong with a group id; None when it is fine."""
    return _id_fault("group id", group, GROUP_ID_CHARS_MAX)


def member_fault(member: str) -> str | None:
    """What is wrong with a member id; None when it is fine."""
    return _id_fault("member id", member, MEMBER_ID_CHARS_MAX)


def name_fault(what: str, text: str, most: int = NAME_CHARS_MAX) -> str | None:
    """What is wrong with a name that an event gives to something; None when it is fine.

    Names are shown in terminals and logs, where a control character does harm, and they are kept.
    """
    if len(text) > most:
        return f"{what} of {len(text)} characters; at most {most} are accepted"
    if not text.isprintable():
        return f"{what} {text[:40]!r} with a character that does not print"
    return None


def _id_fault(what: str, text: str, longest: int) -> str | None:
    if not 1 <= len(text) <= longest:
        return f"{what} of {len(text)} characters; 1 to {longest} are accepted"
    if SEPARATOR in text or not text.isprintable():
        return f"{what} {text[:40]!r} with '|' or a character that does not print"
    return None


def key_of(group: str, member: str | None = None, part: str = "") -> bytes:
    """The key's bytes.

    Raises:
        EncodeError: an id that breaks the rules above.
    """
    fault = group_fault(group) or (member_fault(member) if member is not None else None)
    if fault is not None:
        raise EncodeError(f"{fault}: it cannot be part of a record key")
    text = group if member is None else f"{group}{SEPARATOR}{member}"
    if part:
        text += SEPARATOR * (2 if member is None else 1) + part
    return text.encode()


def parse_key(key: bytes | None) -> Key:
    """Take a key apart.

    Raises:
        DecodeError: no key, not UTF-8, or ids that break the rules above.
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
    """The key of the record a part belongs to; other keys stay as they are."""
    first, separator, rest = key.partition(b"|")
    member, again, _ = rest.partition(b"|")
    if not separator or not again:
        return key
    return first + b"|" + member if member else first


def part_key(key: bytes, index: int, turn: int) -> bytes:
    """Key of the part `index` of a record that was split; the first has the record's own."""
    if index == 0:
        return key
    separator = b"||" if b"|" not in key else b"." if key.count(b"|") == 2 else b"|"
    return key + separator + f"{'ab'[turn & 1]}{index}".encode()


def joined_key(key: bytes) -> bytes:
    """The key `part_key` made this of; other keys stay as they are."""
    first, _, name = key.rpartition(b"|")
    if key.count(b"|") == 2 and name.partition(b".")[0] == DICTIONARY_PART.encode():
        return first + b"|" + DICTIONARY_PART.encode()
    return whole_key(key)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition a key belongs to: the Java client's default partitioner.

    Every producer must agree on it: confluent-kafka's ``partitioner=murmur2_random``, Spark's sink
    and the Java client do. Parts go where the record they are parts of goes.
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
