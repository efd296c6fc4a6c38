"""The replay guard: a group remembers signatures, so that each signed event counts once.

A client that may read and write a topic can write a record again, and its signature is valid for
the key's window (DESIGN.md says which harm that could do). So the group keeps the signatures of
events that change it (`ONCE`) until they are stale: 16 bytes each, none in a quiet group. The guard
is in the state store, so a replayed batch gives the same verdicts. A deleted group keeps its guard
until the signatures are stale. Another group that is forgotten (`group_batch`) loses its guard, and
a lost checkpoint loses all.

Heartbeats are not checked, because they come by the million. Any client may repeat ticks and lags.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from muster.protocol.events import (
    Drain,
    GroupConfig,
    GroupDeleted,
    Join,
    Leave,
    Report,
    TopicsFound,
)

ONCE: Final = Join | Report | Leave | Drain | GroupConfig | GroupDeleted | TopicsFound
"""Events whose signatures count once."""
KEPT_MAX: Final = 65_536
"""Most signatures that a group remembers (1 MiB); it drops the oldest first."""
SLACK_MS: Final = 60_000
"""How far apart the clocks of two brokers, which stamp records, may be."""
_TIME, _ENTRY = 8, 16


class ReplayGuard:
    """The signatures that have counted in one group.

    Args:
        kept: the last result of `to_bytes`; empty = none.
    """

    __slots__ = ("_kept", "_until")

    def __init__(self, kept: bytes = b"") -> None:
        self._kept = kept
        self._until: dict[bytes, bytes] | None = None  # parsed from `_kept` when it is needed

    def is_first(self, signature: bytes, until_ms: int) -> bool:
        """Whether a valid signature has not counted yet; this call counts it.

        Args:
            signature: value of the record's header.
            until_ms: broker time after which it is stale.
        """
        if self.has_counted(signature):
            return False
        self._parsed()[signature[-_TIME:]] = until_ms.to_bytes(_TIME, "big")
        return True

    def has_counted(self, signature: bytes) -> bool:
        """Whether a signature has counted before."""
        # The mark is the end of a keyed hash, which no client can choose.
        return signature[-_TIME:] in self._parsed()

    def to_bytes(self, now_ms: int) -> bytes:
        """Stale time and mark of each signature, ascending; without the stale ones.

        Args:
            now_ms: the newest broker time that is known.
        """
        if self._until is not None:
            entries = sorted(until + mark for mark, until in self._until.items())
            self._kept, self._until = b"".join(entries[-KEPT_MAX:]), None
        oldest = max(0, now_ms - SLACK_MS).to_bytes(_TIME, "big")
        stale = bisect_left(range(len(self._kept) // _ENTRY), oldest, key=self._time_of)
        self._kept = self._kept[stale * _ENTRY :]
        return self._kept

    def _parsed(self) -> dict[bytes, bytes]:
        if self._until is None:
            entries = (self._kept[at : at + _ENTRY] for at in range(0, len(self._kept), _ENTRY))
            self._until = {entry[_TIME:]: entry[:_TIME] for entry in entries}
        return self._until

    def _time_of(self, number: int) -> bytes:
        at = number * _ENTRY
        return self._kept[at : at + _TIME]
