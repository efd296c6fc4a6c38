"""Heartbeats by the million: read without building an event, or an Avro row, for each.

A heartbeat's value is fixed: frame (10 bytes), length and bytes of the member id, epoch, digest (8
bytes). Whatever is not cleanly one of them is left to `codec.decode`, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.protocol.framing import FRAME_BYTES, PREFIX
from muster.protocol.keys import MEMBER_ID_CHARS_MAX, member_fault

_PREFIX = PREFIX["Heartbeat"]
_TEXT_AT = FRAME_BYTES + 1
_DIGEST_BYTES = 8
_EPOCH_BYTES_MAX = 5


@dataclass(frozen=True, slots=True, eq=False)
class Heartbeats:
    """The heartbeats among some values.

    Attributes:
        position: int64[H], where in the input each stood, ascending.
        members: H member ids.
        epoch: int64[H].
        digest: uint64[H].
        others: positions of all values that are no heartbeats, or not clean ones.
    """

    position: NDArray[np.int64]
    members: list[str]
    epoch: NDArray[np.int64]
    digest: NDArray[np.uint64]
    others: list[int]


def heartbeats(values: Sequence[bytes | bytearray | None]) -> Heartbeats:
    """Read what is a heartbeat; time in proportion to the number of values."""
    positions: list[int] = []
    members: list[str] = []
    epochs: list[int] = []
    digests: list[bytes | bytearray] = []
    others: list[int] = []
    names: dict[bytes, str | None] = {}
    for position, value in enumerate(values):
        if value is None or value[:FRAME_BYTES] != _PREFIX or len(value) < _TEXT_AT:
            others.append(position)
            continue
        # A length of one byte: ids of up to 63 bytes, which nearly all are.
        length = value[FRAME_BYTES]
        end = _TEXT_AT + (length >> 1)
        epoch = _epoch(value[end:-_DIGEST_BYTES])
        text = bytes(value[_TEXT_AT:end])
        name = names[text] if text in names else names.setdefault(text, _name(text))
        if length & 0x81 or epoch is None or name is None:
            others.append(position)
            continue
        positions.append(position)
        members.append(name)
        epochs.append(epoch)
        digests.append(value[-_DIGEST_BYTES:])
    return Heartbeats(
        np.array(positions, dtype=np.int64),
        members,
        np.array(epochs, dtype=np.int64),
        np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64),
        others,
    )


def _name(text: bytes) -> str | None:
    if len(text) > 4 * MEMBER_ID_CHARS_MAX:
        return None
    try:
        name = text.decode()
    except UnicodeDecodeError:
        return None
    return name if member_fault(name) is None else None


def _epoch(varint: bytes | bytearray) -> int | None:
    """An Avro int that fills its bytes exactly."""
    if len(varint) == 1 and varint[0] < 0x80:
        zigzag = varint[0]
    elif 1 <= len(varint) <= _EPOCH_BYTES_MAX and varint[-1] < 0x80:
        zigzag = 0
        for at, byte in enumerate(varint):
            if at < len(varint) - 1 and byte < 0x80:
                return None
            zigzag |= (byte & 0x7F) << 7 * at
    else:
        return None
    return (zigzag >> 1) ^ -(zigzag & 1)
