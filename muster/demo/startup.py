"""The parts that `muster demo` starts, how long each takes, and how long it took last time.

A start takes ten seconds to a minute. The times of the last start let a person tell a slow machine
from one that hangs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from muster.broker.jars import cache_dir

KAFKA = "Kafka"
TOPICS = "muster's topics"
SPARK = "the JVM and Spark"
QUERY = "the streaming query"
GROUP = "the group and its 12 tasks"


@dataclass(slots=True)
class Part:
    """Something that is started.

    Attributes:
        last_s: how long it took last time on this machine; None = not known.
        since_s: when its start began; None = not yet.
        took_s: how long its start took; None = not up yet.
    """

    name: str
    last_s: float | None = None
    since_s: float | None = None
    took_s: float | None = None


class StartUp:
    """All parts, in the order in which they start; `file` has the times of the last start."""

    def __init__(
        self, file: Path | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = file or cache_dir() / "demo-start.json"
        self._now_s = now_s
        last = _read(self._file)
        names = (KAFKA, TOPICS, SPARK, QUERY, GROUP)
        self.parts = [Part(name, last.get(name)) for name in names]

    @contextmanager
    def part(self, name: str) -> Iterator[Part]:
        """Measure how long the block takes, which starts the part."""
        part = next(part for part in self.parts if part.name == name)
        part.since_s = self._now_s()
        yield part
        part.took_s = self._now_s() - part.since_s

    def elapsed_s(self, part: Part) -> float:
        """How long a part has been starting, or took, in seconds; 0 before it began."""
        if part.since_s is None:
            return 0.0
        return self._now_s() - part.since_s if part.took_s is None else part.took_s

    def keep(self) -> None:
        """Store the times for the next start; a failure to write is ignored."""
        times = {part.name: round(part.took_s, 1) for part in self.parts if part.took_s is not None}
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps(times))


def _read(file: Path) -> dict[str, float]:
    """The times of the last start; none when they cannot be read."""
    with suppress(OSError, ValueError):
        stored = json.loads(file.read_text())
        if isinstance(stored, dict):
            return {name: float(took) for name, took in stored.items() if _is_time(took)}
    return {}


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
