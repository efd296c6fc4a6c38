"""Rows as the query packs them (`muster.streams.source`), for tests that feed the operator."""

from __future__ import annotations

from collections.abc import Sequence

from muster.protocol.events import Origin
from muster.streams.source import HEADER, NO_KEY, QUOTED_KEY_BYTES, QUOTED_VALUE_BYTES


def pack(
    origin: Origin, value: bytes | None, topics: Sequence[str], signature: bytes | None = None
) -> bytes:
    """A row as the query packs it.

    `topics` are the input topics, ascending. An empty signature: the record has none; None: there
    are no signing keys.
    """
    header = HEADER.pack(
        origin.at_ms,
        topics.index(origin.topic),
        origin.partition,
        origin.offset,
        int(value is not None),
    )
    signed = b"" if signature is None else bytes((len(signature),)) + signature
    return header + signed + (value or b"")


def pack_refused(
    origin: Origin, key: bytes | None, value: bytes | None, topics: Sequence[str]
) -> bytes:
    """A row that cannot be an event, as the query packs it."""
    packed = pack(origin, None if value is None else value[:QUOTED_VALUE_BYTES], topics)
    length = (NO_KEY if key is None else min(len(key), QUOTED_KEY_BYTES)).to_bytes(2, "big")
    quoted = b"" if key is None else key[:QUOTED_KEY_BYTES]
    return packed[: HEADER.size] + length + quoted + packed[HEADER.size :]
