"""Signed once, counted once: what a group remembers of signatures, so that none counts again.

A client that may write to a topic can write there again what it read, and for as long as the key's
window the signature is right. Most of that is idle: a leave names an incarnation that has gone, a
release is acknowledged at the revision that asked for it. But a join said again would free the
tasks of a member that was fenced and still runs them, an older report of the same revision would
fence one that broke no rule, and an order that was taken back would be given once more. So of the
events that change a group (`ONCE`) each signature is kept with it until it would be stale anyway:
16 bytes each, none in a quiet group. Of members with the same clock, name or host nothing is
assumed.

What is forgotten with the rest: a group that is deleted (who may write to the config topic could
delete it again within the window), and all groups when a checkpoint is lost.

Heartbeats come by the million and are let pass: one that is written again keeps a member for as
long as the window, and has it asked what it holds. So are ticks and lags, which anybody may repeat.

A value of the state store: what the same batch, worked off again, finds is what it found before.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from muster.protocol.events import Drain, GroupConfig, GroupDeleted, Join, Leave, Report

ONCE: Final = Join | Report | Leave | Drain | GroupConfig | GroupDeleted
"""Events of which each signature counts once."""
KEPT_MAX: Final = 65_536
"""A group remembers no more (1 MiB); the oldest go first."""
SLACK_MS: Final = 60_000
"""So far the clocks of two brokers, which stamp records, may be apart."""
_TIME, _ENTRY = 8, 16


class Counted:
    """The signatures that have counted in one group.

    Args:
        kept: what `to_bytes` said last; empty = none.
    """

    __slots__ = ("_kept", "_until")

    def __init__(self, kept: bytes = b"") -> None:
        self._kept = kept
        self._until: dict[bytes, bytes] | None = None  # not taken apart before it is needed

    def is_first(self, signature: bytes, until_ms: int) -> bool:
        """Whether a signature, which is right, has not counted yet; from now on it has.

        Args:
            signature: of the header.
            until_ms: broker time after which it is stale.
        """
        if self._until is None:
            entries = (self._kept[at : at + _ENTRY] for at in range(0, len(self._kept), _ENTRY))
            self._until = {entry[_TIME:]: entry[:_TIME] for entry in entries}
        mark = signature[-_TIME:]  # the end of a keyed hash: no client can choose it
        if mark in self._until:
            return False
        self._until[mark] = until_ms.to_bytes(_TIME, "big")
        return True

    def to_bytes(self, now_ms: int) -> bytes:
        """Time and mark of each, ascending; without those that are stale.

        Args:
            now_ms: the newest broker time there is.
        """
        if self._until is not None:
            entries = sorted(until + mark for mark, until in self._until.items())
            self._kept, self._until = b"".join(entries[-KEPT_MAX:]), None
        oldest = max(0, now_ms - SLACK_MS).to_bytes(_TIME, "big")
        stale = bisect_left(range(len(self._kept) // _ENTRY), oldest, key=self._time_of)
        self._kept = self._kept[stale * _ENTRY :]
        return self._kept

    def _time_of(self, number: int) -> bytes:
        at = number * _ENTRY
        return self._kept[at : at + _TIME]
