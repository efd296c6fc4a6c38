"""Drops repeated log lines of Kafka's client: each line passes once a minute.

librdkafka does so itself, but not while no broker answers: then it starts again with its bootstrap
servers 20 times a second, and logs a failure for each of them.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

PAUSE_S = 60.0
_KAFKAS_OWN = re.compile(r"[A-Z_]+ \[")
_VARYING = re.compile(r"\[[^\]]*\]|\(.*")
"""What differs between repeated lines: names of clients and threads, times, and counts."""


class RecentlyLogged:
    """Remembers for `PAUSE_S` which lines were logged, by a key that identifies a line."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._logged_s: dict[str, float] = {}

    def is_news(self, key: str) -> bool:
        """Whether the key was not logged within the pause. If so, it counts as logged now."""
        now_s = self._clock_s()
        recent = {known: at_s for known, at_s in self._logged_s.items() if now_s < at_s + PAUSE_S}
        self._logged_s = {key: now_s, **recent}
        return key not in recent


class RepeatFilter(logging.Filter):
    """Drops a line that any of Kafka's clients has logged within `PAUSE_S`; other lines pass."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._logged = RecentlyLogged(clock_s)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes."""
        text = record.getMessage()
        return not _KAFKAS_OWN.match(text) or self._logged.is_news(_VARYING.sub("", text))


def drop_noise(log: logging.Logger) -> None:
    """Drop repeated lines, and warnings about settings that only the other client uses.

    One set of settings serves producers and consumers, and each warns about those that it ignores.
    """
    log.addFilter(lambda record: "property and will be ignored" not in record.getMessage())
    log.addFilter(RepeatFilter())
