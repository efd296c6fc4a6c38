"""Kafka's client says the same many times a second while a broker is away: once a minute will do.

librdkafka holds its repetitions back, but not while no broker answers at all: it begins again with
its bootstrap servers then, twenty times a second, and each of them says that it failed.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

PAUSE_S = 60.0
_KAFKAS_OWN = re.compile(r"[A-Z_]+ \[")
_VARYING = re.compile(r"\[[^\]]*\]|\(.*")
"""Names of clients and threads; times, and how often it was not said."""


class Told:
    """What was said lately, by anything that tells it apart.

    Args:
        pause_s: how long it is not news again.
        clock_s: seconds on a monotonic clock.
    """

    def __init__(
        self, pause_s: float = PAUSE_S, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._pause_s = pause_s
        self._clock_s = clock_s
        self._said_s: dict[str, float] = {}

    def is_news(self, key: str) -> bool:
        """Whether it was not said within the pause; if so, it is said now."""
        now_s = self._clock_s()
        recent = {said: at_s for said, at_s in self._said_s.items() if now_s < at_s + self._pause_s}
        self._said_s = {key: now_s, **recent}
        return key not in recent


class Repeats(logging.Filter):
    """Lets a line of Kafka's client pass again after a pause; all other lines always.

    Args:
        pause_s: how long it is not repeated, whichever client of the process says it.
        clock_s: seconds on a monotonic clock.
    """

    def __init__(
        self, pause_s: float = PAUSE_S, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._told = Told(pause_s, clock_s)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is news."""
        text = record.getMessage()
        return not _KAFKAS_OWN.match(text) or self._told.is_news(_VARYING.sub("", text))
