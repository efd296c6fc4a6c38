"""What a clock has heard of a group: the extra ``cover`` of a tick.

Members that *heartbeat apart* write to ``<prefix>.heartbeats``, which a clock reads and the
coordinator does not. So the heartbeats of 5,000 members cost the coordinator one event.

A cover says: *every heartbeat of this group with a broker time above `from_ms` and up to
`through_ms` is known to the clock, and these members wrote one.* The coordinator counts only
covered time against a silent member. GRAMMAR.md has the layout.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np

from muster.protocol.bits import beginning, inflate
from muster.protocol.errors import DecodeError
from muster.protocol.framing import Row
from muster.protocol.ids import member_fault

EXTRA = "cover"
HEARD_MAX = 20_000
"""Members in one tick; a larger group gets several ticks."""
RAW_BYTES_MAX = 900_000
"""Bytes of the columns in one tick, before they are deflated."""
AGE_S_MAX = 255
_SMALL_BYTES = 512
"""Fewer bytes are stored as they are."""
_TIMES = Struct("<qq")
_COUNT = Struct("<I")
_ROW_BYTES = 1 + 4 + 8 + 1


class Heard(NamedTuple):
    """The newest heartbeat of a member.

    Attributes:
        member: its id.
        age_s: whole seconds from the heartbeat to the end of the cover, rounded down, at most 255.
        epoch, digest: of the heartbeat.
    """

    member: str
    age_s: int
    epoch: int
    digest: int


class Cover(NamedTuple):
    """What a clock has heard of a group in a span of broker time (epoch milliseconds).

    Attributes:
        from_ms, through_ms: the clock knows every heartbeat above the first time and up to the
            second. Equal = it vouches for no time.
        heard: the members that wrote one.
    """

    from_ms: int
    through_ms: int
    heard: tuple[Heard, ...] = ()


def cover_row(cover: Cover | None) -> Row:
    """The extra ``cover`` of a tick."""
    if cover is None:
        return {}
    return {"extras": {EXTRA: _TIMES.pack(cover.from_ms, cover.through_ms) + _packed(cover.heard)}}


def _packed(heard: Sequence[Heard]) -> bytes:
    members, ages, epochs, digests = zip(*heard, strict=True) if heard else ((), (), (), ())
    columns = (
        _COUNT.pack(len(heard)),
        bytes(ages),
        np.array(epochs, dtype="<i4").tobytes(),
        np.array(digests, dtype="<u8").tobytes(),
        "".join(f"{member}\n" for member in members).encode(),
    )
    raw = b"".join(columns)
    return zlib.compress(raw, 1 if len(raw) > _SMALL_BYTES else 0)


def cover_from(row: Row, heard_max: int = HEARD_MAX) -> Cover | None:
    """Read what `cover_row` wrote; None if there is no cover.

    More than `heard_max` members are refused before they are read, because a few hundred bytes can
    name thousands.

    Raises:
        DecodeError: the bytes are not a cover, or it names too many members.
    """
    data = row["extras"].get(EXTRA)
    if data is None:
        return None
    if len(data) < _TIMES.size:
        raise DecodeError(f"a cover of {len(data)} bytes; expected two times of 8 bytes at least")
    from_ms, through_ms = _TIMES.unpack_from(data)
    if not 0 <= from_ms <= through_ms:
        raise DecodeError(f"a cover from {from_ms} to {through_ms}")
    count = int.from_bytes(beginning(data, _TIMES.size, _COUNT.size), "little")
    if count > heard_max:
        raise DecodeError(f"a cover of {count} members; at most {heard_max} are read here")
    raw, end = inflate(data, _TIMES.size, RAW_BYTES_MAX + _COUNT.size)
    if end != len(data):
        raise DecodeError("bytes behind the cover", end)
    return Cover(from_ms, through_ms, tuple(_heard(raw)))


def _heard(raw: bytes) -> Iterator[Heard]:
    if len(raw) < _COUNT.size:
        raise DecodeError("a cover without a number of members")
    (count,) = _COUNT.unpack_from(raw)
    names = _COUNT.size + count * 13
    if len(raw) < names:
        raise DecodeError(f"a cover of {count} members in {len(raw)} bytes")
    at = _COUNT.size + count
    epochs = np.frombuffer(raw, "<i4", count, at).tolist()
    digests = np.frombuffer(raw, "<u8", count, at + 4 * count).tolist()
    try:
        members = raw[names:].decode().split("\n")
    except UnicodeDecodeError as error:
        raise DecodeError(f"member ids that are no UTF-8: {error}") from None
    if members.pop() or len(members) != count:
        raise DecodeError(f"a cover of {count} members with other than {count} ids")
    for member in dict.fromkeys(members):
        fault = member_fault(member)
        if fault is not None:
            raise DecodeError(fault)
    return map(Heard, members, raw[_COUNT.size : at], epochs, digests)


def in_parts(cover: Cover) -> Iterable[Cover]:
    """The cover in as many parts as ticks need; only the last one vouches for time."""
    start = size = 0
    for i, heard in enumerate(cover.heard):
        more = _ROW_BYTES + len(heard.member.encode())
        if i - start == HEARD_MAX or size + more > RAW_BYTES_MAX:
            yield Cover(0, 0, cover.heard[start:i])
            start, size = i, 0
        size += more
    yield cover._replace(heard=cover.heard[start:])
