"""Records too large for one: split when written, joined when read, all or nothing.

A record that would exceed the limit is framed, then cut. The first slice is published last, under
the record's own key; the others before it, under that key with ``a1``, ``a2``, … behind (``b1``, …
on every other turn). A reader has the record when it has all slices of one id, which is a hash of
the whole. So a reader sees the old record or the new one; and as the slices of a turn do not
overwrite those of the turn before, what is left on a compacted topic after a crash in the middle
is the old record, whole.

Sizes are checked as the bytes that are handed to the producer: what its compression may save is
not relied upon.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from muster.protocol.codec import CONTENT_TYPE, Encoded, encode
from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.events import Event
from muster.protocol.framing import KNOWN, MARKER, PREFIX, VALUE_BYTES_MAX, Row, write
from muster.protocol.keys import joined_key, part_key
from muster.protocol.records import Record
from muster.protocol.topics import RECORD_BYTES_MAX

_RECORD_OVERHEAD_BYTES = 100
"""Lengths, timestamps and the batch header, generously."""
_PART_BYTES = 64
"""Frame and fields of a part beside its slice."""


def size_of(encoded: Encoded) -> int:
    """Bytes a record takes, uncompressed, overhead included."""
    headers = sum(len(name) + len(value) for name, value in encoded.headers)
    return len(encoded.key) + len(encoded.value or b"") + headers + _RECORD_OVERHEAD_BYTES


def parts(record: Event | Record, limit: int = RECORD_BYTES_MAX, *, turn: int = 0) -> list[Encoded]:
    """A record as what is to be published, in order; nearly always one.

    Args:
        record: anything `encode` takes.
        limit: most bytes one record may take.
        turn: a number that grows whenever the record is published again; only its lowest bit is
            used. Anything that does so will do, such as the number of the micro-batch.

    Raises:
        EncodeError: it cannot be written, or is larger than a reader accepts.
    """
    encoded = encode(record)
    if size_of(encoded) <= limit or encoded.value is None:
        return [encoded]
    value = encoded.value
    if len(value) > VALUE_BYTES_MAX:
        raise EncodeError(f"a value of {len(value)} bytes; {VALUE_BYTES_MAX} are accepted")
    headers = (CONTENT_TYPE, ("schema", b"muster.Part"), *encoded.headers[2:])
    room = limit - size_of(encoded._replace(value=None, headers=headers)) - _PART_BYTES
    if room < 1:
        raise EncodeError(f"a limit of {limit} bytes leaves no room for a part of {encoded.key!r}")
    slices = [value[at : at + room] for at in range(0, len(value), room)]
    row: Row = {"id": _id(value), "count": len(slices), "size": len(value)}
    cut = [
        Encoded(
            part_key(encoded.key, index, turn),
            write("Part", row | {"index": index, "slice": each}),
            headers,
        )
        for index, each in enumerate(slices)
    ]
    return cut[1:] + cut[:1]


def _id(value: bytes) -> bytes:
    return sha256(value).digest()[:8]


class Whole(NamedTuple):
    """A key and its value as they were before they were split; None is a tombstone."""

    key: bytes
    value: bytes | None


class _Pending:
    __slots__ = ("count", "id", "size", "slices")

    def __init__(self, row: Row) -> None:
        self.id, self.count, self.size = row["id"], row["count"], row["size"]
        self.slices: dict[int, bytes] = {}


class Joiner:
    """Puts the parts of records together again; one for each topic read.

    It keeps at most `VALUE_BYTES_MAX` bytes of parts whose whole has not come; the keys heard of
    the longest ago are given up first.
    """

    def __init__(self) -> None:
        self._pending: dict[bytes, _Pending] = {}
        self._held = 0

    def feed(self, key: bytes, value: bytes | None) -> Whole | None:
        """Take what was read; the record it completes, None while there is none.

        Raises:
            DecodeError: a part that contradicts itself or the others.
        """
        whole = joined_key(key)
        if value is None or not value.startswith(PREFIX["Part"]):
            if whole != key:
                # Tombstones of parts tidy up; anything else under their keys is not ours.
                return None if value is None else Whole(key, value)
            self._drop(key)
            return Whole(key, value)
        _, row = KNOWN.read(bytes(value))
        _check(row)
        pending = self._pending.pop(whole, None)
        if pending is None or pending.id != row["id"]:
            self._forget(pending)
            pending = _Pending(row)
        self._pending[whole] = pending
        if row["index"] not in pending.slices:
            pending.slices[row["index"]] = row["slice"]
            self._held += len(row["slice"])
        if len(pending.slices) == pending.count:
            self._drop(whole)
            return Whole(whole, _joined(pending))
        while self._held > VALUE_BYTES_MAX:
            self._drop(next(iter(self._pending)))
        return None

    def _drop(self, key: bytes) -> None:
        self._forget(self._pending.pop(key, None))

    def _forget(self, pending: _Pending | None) -> None:
        if pending is not None:
            self._held -= sum(map(len, pending.slices.values()))


def _check(row: Row) -> None:
    index, count, size = row["index"], row["count"], row["size"]
    if not (0 <= index < count and count <= size <= VALUE_BYTES_MAX and row["slice"]):
        raise DecodeError(f"part {index} of {count} of {size} bytes")


def _joined(pending: _Pending) -> bytes:
    value = b"".join(pending.slices[index] for index in sorted(pending.slices))
    if len(value) != pending.size or _id(value) != pending.id:
        raise DecodeError(f"parts that join to {len(value)} other bytes than were split")
    if not value.startswith(MARKER) or value.startswith(PREFIX["Part"]):
        raise DecodeError("parts of something that is no record")
    return value
