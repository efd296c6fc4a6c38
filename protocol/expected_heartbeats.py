"""The heartbeats with which a group needs no tick: the extra ``agreement`` of a wake-up.

A clock that goes on reading exactly these heartbeats writes no tick before `until_ms`. As soon as a
member is missing, is new, or writes another digest, it writes the tick. A clock that does not know
the extra writes each tick at the time of the wake-up. DESIGN.md says why no agreement, however
wrong, gives a task two owners; GRAMMAR.md has the layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muster.protocol.digest import fnv1a64_of, mixed
from muster.protocol.errors import DecodeError
from muster.protocol.framing import Row

EXTRA = "agreement"
_LAYOUT = Struct("<qIIQ")


class Agreement(NamedTuple):
    """The heartbeats that a coordinator expects of a group in which nothing happens.

    Attributes:
        until_ms: the group needs a tick at this time in any case, epoch milliseconds.
        silence_ms: a member that has written nothing for this long is missing.
        members: number of members.
        checksum: of the members' ids and digests, see `checksum`.
    """

    until_ms: int
    silence_ms: int
    members: int
    checksum: int


class Beat(NamedTuple):
    """The newest heartbeat of a member that a clock has read; `at_ms` is its broker time."""

    at_ms: int
    epoch: int
    digest: int


def checksum(members: Sequence[str], digests: NDArray[np.uint64]) -> int:
    """A 64-bit sum over members' ids and digests (uint64[N]), in any order."""
    if not members:
        return 0
    names = fnv1a64_of([member.encode() for member in members])
    return int(np.add.reduce(mixed(names ^ mixed(digests, 0), 0)))


def needless_until_ms(agreement: Agreement, heard: Mapping[str, Beat], now_ms: int) -> int:
    """The (broker) time up to which a group needs no tick; 0 = it needs one now.

    `heard` has each member's newest heartbeat, since the newest tick of this clock.
    """
    if now_ms >= agreement.until_ms or len(heard) != agreement.members:
        return 0
    missing_ms = min(beat.at_ms for beat in heard.values()) + agreement.silence_ms
    digests = np.fromiter((b.digest for b in heard.values()), dtype=np.uint64, count=len(heard))
    if missing_ms <= now_ms or checksum([*heard], digests) != agreement.checksum:
        return 0
    return min(missing_ms, agreement.until_ms)


def agreement_row(agreement: Agreement | None) -> Row:
    """The extra ``agreement`` of a wake-up."""
    return {} if agreement is None else {"extras": {EXTRA: _LAYOUT.pack(*agreement)}}


def agreement_from(row: Row) -> Agreement | None:
    """Read what `agreement_row` wrote; None if there is no agreement.

    Raises:
        DecodeError: the bytes are not an agreement.
    """
    data = row["extras"].get(EXTRA)
    if data is None:
        return None
    if len(data) != _LAYOUT.size:
        raise DecodeError(f"an agreement of {len(data)} bytes; expected {_LAYOUT.size}")
    agreement = Agreement(*_LAYOUT.unpack(data))
    if agreement.until_ms < 0 or not agreement.members:
        raise DecodeError(f"an agreement of {agreement.members} members until {agreement.until_ms}")
    return agreement
