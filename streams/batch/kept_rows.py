"""What the state store keeps of a group whose rows are not processed yet.

`quarantine` keeps rows until an operator releases the group, `waiting_rows` until a later batch.
Both store the group as it was before these rows. The job may have been started
again with other topic prefixes or signing keys since, so what is kept says how the rows are packed
(`Packing`). Rows that an earlier version kept do not say it, and count as packed by the present
run.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import NamedTuple

from muster.streams.source import TOPIC_AT, Packing, repacked

ROWS_BYTES_MAX = 8 << 20
"""Rows that take more bytes than this are not kept."""
MARK = b"\xff"
"""First byte of what is kept; no version of the core's array begins with it."""
_SIZES = Struct(">qII")
"""Coordinator epoch of the previous snapshot (-1 = none), bytes of the array, number of rows."""
_SIZE = Struct(">I")
_BETWEEN_TOPICS = "\0"
_EPOCH = Struct(">q")
_LATER = " later coordinator "
"""Begins what stands like one more topic behind those of the packing, where earlier versions look
at no more than the topics of the rows. No topic has such a name."""
_LATER_AT_END = re.compile(re.escape((_BETWEEN_TOPICS + _LATER).encode()) + rb"(\d{1,19})\Z")
_LATER_BYTES_MAX = 64


class Kept(NamedTuple):
    """A group before some rows, and these rows.

    Attributes:
        epoch: coordinator epoch of the snapshot before the rows; None = the group had none.
        core: what was stored in place of this before the rows.
        rows: the rows; None = they took too many bytes to be kept.
        packing: of the rows; None = there are none, or an earlier version kept them.
        successor: greatest epoch of a later coordinator that a tick has named in a quarantine;
            -1 = none has.
    """

    epoch: int | None
    core: bytes
    rows: list[bytes] | None
    packing: Packing | None
    successor: int = -1

    def to_bytes(self) -> bytes:
        """What is stored; it begins with `MARK`."""
        is_left = self.successor >= 0
        if self.rows is None:
            return MARK + (_EPOCH.pack(self.successor) if is_left else b"")
        assert self.packing is not None  # this version always says it
        epoch = -1 if self.epoch is None else self.epoch
        head = _SIZES.pack(epoch, len(self.core), len(self.rows))
        rows = (part for row in self.rows for part in (_SIZE.pack(len(row)), row))
        # The packing comes last, where earlier versions do not look.
        later = (f"{_LATER}{self.successor}",) if is_left else ()
        topics = _BETWEEN_TOPICS.join((*self.packing.topics, *later)).encode()
        return b"".join((MARK, head, self.core, *rows, bytes((self.packing.signed,)), topics))

    @classmethod
    def from_bytes(cls, data: bytes) -> Kept:
        """What `to_bytes` gave, here or in an earlier version."""
        if len(data) < len(MARK) + _SIZES.size:
            return cls(None, b"", None, None, successor_in(data))
        at = len(MARK)
        epoch, size, count = _SIZES.unpack_from(data, at)
        at += _SIZES.size
        core = data[at : at + size]
        at += size
        rows: list[bytes] = []
        for _ in range(count):
            (size,) = _SIZE.unpack_from(data, at)
            at += _SIZE.size
            rows.append(data[at : at + size])
            at += size
        packing: Packing | None = None
        if at < len(data):
            topics = data[at + 1 :].decode().split(_BETWEEN_TOPICS)
            topics = topics[:-1] if topics[-1].startswith(_LATER) else topics
            packing = Packing(tuple(topics), bool(data[at]))
        return cls(None if epoch < 0 else epoch, core, rows, packing, successor_in(data))

    def rows_as(self, now: Packing, prefix: str) -> list[bytes] | None:
        """The rows, packed as `now` says; None = there are none, or topics are not of `prefix`."""
        if self.rows is None:
            return None
        try:
            rows = repacked(self.rows, self.packing or now, now)
        except LookupError:
            return None
        topics = {now.topics[row[TOPIC_AT]] for row in rows}
        return rows if all(topic.rpartition(".")[0] == prefix for topic in topics) else None


def successor_in(data: bytes) -> int:
    """`Kept.successor` of its bytes; the rows, which may be many, are not read."""
    if len(data) == len(MARK) + _EPOCH.size:
        return int(_EPOCH.unpack_from(data, len(MARK))[0])
    found = _LATER_AT_END.search(data[-_LATER_BYTES_MAX:])
    return -1 if found is None else int(found[1])
