"""Reads many heartbeats into columns, without an event object for each.

It skips values that are not valid heartbeats; `codec.decode` reads those and names their faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from fastavro import (
    schemaless_reader,  # pyright: ignore[reportUnknownVariableType]  # fastavro's stubs
)
from numpy.typing import NDArray

from muster.protocol.framing import FRAME_BYTES, INT_MAX, OWN, PREFIX, Row
from muster.protocol.ids import member_fault

_PREFIX = PREFIX["Heartbeat"]
_SCHEMA: Any = OWN["Heartbeat"]


@dataclass(frozen=True, slots=True, eq=False)
class Heartbeats:
    """The heartbeats among some values.

    Attributes:
        position: int64[H], index of each in the input, ascending.
        members: H member ids.
        epoch: int64[H].
        digest: uint64[H].
    """

    position: NDArray[np.int64]
    members: list[str]
    epoch: NDArray[np.int64]
    digest: NDArray[np.uint64]


def heartbeats(values: Sequence[bytes | bytearray | None]) -> Heartbeats:
    """Read the heartbeats among the values, in time proportional to their number."""
    positions: list[int] = []
    members: list[str] = []
    epochs: list[int] = []
    digests: list[bytes] = []
    good: set[str] = set()
    for position, value in enumerate(values):
        row = _row(value) if value is not None and value[:FRAME_BYTES] == _PREFIX else None
        if row is None or not (row["member"] in good or member_fault(row["member"]) is None):
            continue
        good.add(row["member"])
        positions.append(position)
        members.append(row["member"])
        epochs.append(row["epoch"])
        digests.append(row["digest"])
    return Heartbeats(
        np.array(positions, dtype=np.int64),
        members,
        np.array(epochs, dtype=np.int64),
        np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64),
    )


def _row(value: bytes | bytearray) -> Row | None:
    body = BytesIO(value)
    body.seek(FRAME_BYTES)
    try:
        row: Any = schemaless_reader(body, _SCHEMA, None)
    except Exception:  # hostile bytes may raise anything; `codec.decode` names the fault
        return None
    whole = body.tell() == len(value) and -INT_MAX - 1 <= row["epoch"] <= INT_MAX
    return row if whole else None
