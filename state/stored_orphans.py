"""The orphans of a group as its liveness stores them: deflated, and made once, if they are many.

A config that renames thousands of tasks makes thousands of orphans, which stay until their members
release them. The liveness is stored in nearly every batch, and they do not change in between.
"""

from __future__ import annotations

import json
import zlib
from functools import lru_cache

from muster.protocol.bits import inflate
from muster.state.ownership import Orphan

MANY = 64
"""Fewer are stored in the liveness' JSON."""
BYTES_MAX = 8 << 20
"""More bytes than this are not deflated either, so that the limit of a group's stored bytes
(`muster.group.bytes.max`) also limits what a process has in memory."""
KEPT = 4
"""So many groups with many orphans have them made once."""
_ZLIB = 0x78
"""First byte of a zlib stream; JSON has another."""


def to_bytes(orphans: tuple[Orphan, ...]) -> bytes:
    """Many orphans, deflated; empty = they belong into the JSON."""
    return b"" if len(orphans) < MANY else _deflated(orphans)


@lru_cache(KEPT)
def _deflated(orphans: tuple[Orphan, ...]) -> bytes:
    text = json.dumps(orphans, separators=(",", ":")).encode()
    return b"" if len(text) > BYTES_MAX else zlib.compress(text, 1)


def from_bytes(data: bytes, at: int) -> tuple[tuple[Orphan, ...], int]:
    """The orphans at this offset of a liveness, and the offset behind them.

    Raises:
        ValueError: the bytes are damaged.
    """
    if data[at : at + 1] != bytes((_ZLIB,)):
        return (), at
    text, end = inflate(data, at, BYTES_MAX)
    return of_json(json.loads(text)), end


def of_json(listed: list[list[object]]) -> tuple[Orphan, ...]:
    """The orphans of a JSON list."""
    return tuple(Orphan(*fields) for fields in listed)  # type: ignore[arg-type]  # our own
