"""The broker's time, estimated from records that the broker has stamped.

This machine's wall clock is read once, because it may be set later; from then on a clock that never
steps counts on (`muster.boottime`). Each stamp shows how wrong the result can be at most, and
corrects it.
"""

from __future__ import annotations

import time

from muster.boottime import boottime_ms

CORRECTION_MS = 1_000
"""A correction of less is not worth a look at all that was planned by the estimate, nor is a second
one within this time: brokers whose clocks differ move the estimate to and fro."""


class BrokerTime:
    """The estimate. All times are epoch milliseconds."""

    def __init__(self) -> None:
        self._ahead_ms = 0  # by how much `steady_ms` is ahead of the broker
        self._noted_ahead_ms = self._noted_ms = 0

    def now_ms(self) -> int:
        """The broker's time now."""
        return steady_ms() - self._ahead_ms

    def not_before(self, stamped_ms: int) -> None:
        """Note a broker time that has passed: the estimate cannot be earlier."""
        self._ahead_ms = min(self._ahead_ms, steady_ms() - stamped_ms)

    def acknowledged(self, sent_ms: int, stamped_ms: int) -> None:
        """Note a stamp that the broker set between sending (by `steady_ms`) and this moment."""
        lowest, highest = sent_ms - stamped_ms, steady_ms() - stamped_ms
        self._ahead_ms = min(max(self._ahead_ms, lowest), highest)

    def take_correction_ms(self) -> int:
        """By how much earlier the estimate is than it was, if that is noticeable; else 0."""
        now_ms = steady_ms()
        self._noted_ahead_ms = min(self._noted_ahead_ms, self._ahead_ms)
        by_ms = self._ahead_ms - self._noted_ahead_ms
        if by_ms < CORRECTION_MS or abs(now_ms - self._noted_ms) < CORRECTION_MS:
            return 0
        self._noted_ahead_ms, self._noted_ms = self._ahead_ms, now_ms
        return by_ms


_BOOT_MS = time.time_ns() // 1_000_000 - boottime_ms()
"""When this machine booted, by its wall clock."""


def steady_ms() -> int:
    """Epoch milliseconds by a clock that never jumps; the wall clock's error at the start stays."""
    return _BOOT_MS + boottime_ms()
