"""A simulated clock's ears: what its ticks say of members that heartbeat apart.

It is late by up to `LATE_MS`, like the consumer of a real one. Now and then it starts again, and
knows only what is written from then on; or it has nothing to say.
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
    """What a clock has read of the heartbeats of one group."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(f"clock/{seed}")  # noqa: S311 — no secret
        self._read = 0
        self._through_ms = 0

    def cover(self, log: Log, now_ms: int) -> Cover | None:
        """The cover of a tick; None = it says nothing."""
        chance = self._chance.random()
        if chance < SAYS_NOTHING:
            return None
        through_ms = max(now_ms - self._chance.randrange(LATE_MS), self._through_ms)
        newest: dict[str, tuple[int, Heartbeat]] = {}
        while self._read < len(log.heartbeats) and log.heartbeats[self._read][0] <= through_ms:
            at_ms, beat = log.heartbeats[self._read]
            newest[beat.member] = at_ms, beat
            self._read += 1
        if chance < SAYS_NOTHING + STARTS_AGAIN or not self._through_ms:
            self._through_ms, newest = through_ms, {}
        from_ms, self._through_ms = self._through_ms, through_ms
        heard = (
            Heard(member, min((through_ms - at_ms) // 1_000, AGE_S_MAX), beat.epoch, beat.digest)
            for member, (at_ms, beat) in newest.items()
        )
        return Cover(from_ms, through_ms, tuple(heard))
