"""A simulated clock that reads heartbeats: what its ticks say of members that heartbeat apart.

The clock reads up to `LATE_MS` late, as a real clock's consumer does. Rarely it starts again and
knows only the heartbeats that are written afterwards, or its tick has no cover.
"""

from __future__ import annotations

from collections import deque
from random import Random

from muster.protocol.events import Heartbeat
from muster.protocol.expected_heartbeats import Agreement, Beat, needless_until_ms
from muster.protocol.tick_covers import AGE_S_MAX, Cover, Heard

LATE_MS = 300
STARTS_AGAIN = 0.02
SAYS_NOTHING = 0.02


class Clock:
    """The heartbeats of one group, as far as a clock has read them.

    Attributes:
        heartbeats: those that it has not read, with their times.
    """

    def __init__(self, seed: int) -> None:
        self._rng = Random(f"clock/{seed}")
        self.heartbeats: deque[tuple[int, Heartbeat]] = deque()
        self._through_ms = 0
        self._heard: dict[str, Beat] = {}

    def needless_until_ms(self, agreement: Agreement, now_ms: int) -> int:
        """The time up to which the group needs no tick; 0 = it needs one now."""
        if not self._through_ms:
            return 0
        self._read_up_to(now_ms - self._rng.randrange(LATE_MS))
        return needless_until_ms(agreement, self._heard, now_ms)

    def cover(self, now_ms: int) -> Cover | None:
        """The cover of a tick; None = the tick has none."""
        draw = self._rng.random()
        if draw < SAYS_NOTHING:
            return None
        through_ms = max(now_ms - self._rng.randrange(LATE_MS), self._through_ms)
        self._read_up_to(through_ms)
        if draw < SAYS_NOTHING + STARTS_AGAIN or not self._through_ms:
            self._through_ms, self._heard = through_ms, {}
        from_ms, self._through_ms = self._through_ms, through_ms
        heard = (
            Heard(member, min(max(through_ms - at_ms, 0) // 1_000, AGE_S_MAX), epoch, digest)
            for member, (at_ms, epoch, digest) in self._heard.items()
        )
        cover = Cover(from_ms, through_ms, tuple(heard))
        self._heard = {}
        return cover

    def _read_up_to(self, through_ms: int) -> None:
        while self.heartbeats and self.heartbeats[0][0] <= through_ms:
            at_ms, beat = self.heartbeats.popleft()
            self._heard[beat.member] = Beat(at_ms, beat.epoch, beat.digest)
