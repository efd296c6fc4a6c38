"""The covers in a simulated clock's ticks: which members that heartbeat apart it has heard.

The clock reads up to `LATE_MS` late, as a real clock's consumer does. Rarely it starts again and
knows only the heartbeats that are written afterwards, or its tick has no cover.
"""

from __future__ import annotations

from random import Random

from muster.protocol.covers import AGE_S_MAX, Cover, Heard
from muster.protocol.events import Heartbeat
from muster.simulation.log import Log

LATE_MS = 300
STARTS_AGAIN = 0.02
SAYS_NOTHING = 0.02


class Clock:
    """The heartbeats of one group, as far as a clock has read them."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"clock/{seed}")  # noqa: S311 — no secret
        self._read = 0
        self._through_ms = 0

    def cover(self, log: Log, now_ms: int) -> Cover | None:
        """The cover of a tick; None = the tick has none."""
        draw = self.rng.random()
        if draw < SAYS_NOTHING:
            return None
        through_ms = max(now_ms - self.rng.randrange(LATE_MS), self._through_ms)
        newest: dict[str, tuple[int, Heartbeat]] = {}
        while self._read < len(log.heartbeats) and log.heartbeats[self._read][0] <= through_ms:
            at_ms, beat = log.heartbeats[self._read]
            newest[beat.member] = at_ms, beat
            self._read += 1
        if draw < SAYS_NOTHING + STARTS_AGAIN or not self._through_ms:
            self._through_ms, newest = through_ms, {}
        from_ms, self._through_ms = self._through_ms, through_ms
        heard = (
            Heard(member, min((through_ms - at_ms) // 1_000, AGE_S_MAX), beat.epoch, beat.digest)
            for member, (at_ms, beat) in newest.items()
        )
        return Cover(from_ms, through_ms, tuple(heard))
