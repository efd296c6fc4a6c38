"""Splits a record that is too large for one Kafka record into parts, and joins them again.

The framed value is cut into slices. Slice 0 is published last, under the record's own key; the
others come first, under that key with ``a1``, ``a2``, … added (``b1``, … every other time, so that
after a crash the old slices are still complete on a compacted topic). A reader has the record when
it has all slices with one id, a hash of the whole; so it sees the old record or the new one.

The size limit applies to the bytes that the producer gets, before its compression.
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
"""Upper bound for lengths, timestamps and the batch header."""
_PART_BYTES = 64
"""Upper bound for the frame and the fields of a part without its slice."""


def size_of(encoded: Encoded) -> int:
    """Bytes a record takes, uncompressed, overhead included."""
    headers = sum([len(name) + len(value) for name, value in encoded.headers])
    return len(encoded.key) + len(encoded.value or b"") + headers + _RECORD_OVERHEAD_BYTES


def parts(record: Event | Record, limit: int = RECORD_BYTES_MAX, *, turn: int = 0) -> list[Encoded]:
    """The Kafka records to publish for a record, in order; nearly always one.

    Each may take `limit` bytes. `turn` grows whenever the record is published again, such as the
    number of the micro-batch; its lowest bit selects the part keys.

    Raises:
        EncodeError: it cannot be written, or is larger than a reader accepts.
    """
    encoded = encode(record)
    value = encoded.value
    if value is None or size_of(encoded) <= limit:
        return [encoded]
    if len(value) > VALUE_BYTES_MAX:
        raise EncodeError(f"a value of {len(value)} bytes; {VALUE_BYTES_MAX} are accepted")
    headers = (CONTENT_TYPE, ("schema", b"muster.Part"), *encoded.headers[2:])
    room = limit - size_of(encoded._replace(value=None, headers=headers)) - _PART_BYTES
    if room < 1:
        raise EncodeError(f"a limit of {limit} bytes leaves no room for a part of {encoded.key!r}")
    slices = [value[at : at + room] for at in range(0, len(value), room)]
    row: Row = {"id": _id(value), "count": len(slices), "size": len(value)}
    records = [
        Encoded(
            part_key(encoded.key, index, turn),
            write("Part", row | {"index": index, "slice": part}),
            headers,
        )
        for index, part in enumerate(slices)
    ]
    return records[1:] + records[:1]


def _id(value: bytes) -> bytes:
    return sha256(value).digest()[:8]


class Whole(NamedTuple):
    """The key and value of a record before it was split; None is a tombstone."""

    key: bytes
    value: bytes | None


class _Pending:
    __slots__ = ("count", "id", "size", "slices")

    def __init__(self, row: Row) -> None:
        self.id, self.count, self.size = row["id"], row["count"], row["size"]
        self.slices: dict[int, bytes] = {}


class Joiner:
    """Joins the parts of split records; one for each topic that is read.

    It holds at most `VALUE_BYTES_MAX` bytes of incomplete records; beyond that it drops those whose
    last part is the oldest.
    """

    def __init__(self) -> None:
        self._pending: dict[bytes, _Pending] = {}
        self._held = 0

    def feed(self, key: bytes, value: bytes | None) -> Whole | None:
        """Take a Kafka record; returns the record that it completes, or None.

        Raises:
            DecodeError: a part is not valid, or the parts do not fit together.
        """
        whole = joined_key(key)
        if value is None or not value.startswith(PREFIX["Part"]):
            if whole != key:
                # A tombstone of a part is ignored; other values under such a key are not parts.
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
