"""The history of an environment: a log for people, which worker ran which task, and violations.

A worker runs a task from the call of `on_assigned` until `on_revoked` or `on_lost` has returned,
`Worker.released` has named the task, or the process was killed. Two workers must not run a task at
one time. A frozen process runs nothing; when it goes on, it has the time that a lease leaves for
stopping (`muster.worker.lease.stop_ms`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from muster.protocol.ids import Task
from muster.testing.errors import EnvironmentFailed

LINES_SHOWN = 60
LINES_AFTER = 20
"""How many of these come after what an error is about, if there are more before it."""
REPEATS_WIDTH = 3
"""Up to so many lines that repeat again and again are shown once."""
Span = tuple[float, float]


class Line(NamedTuple):
    """A line of the story, and its true time in ms."""

    at_ms: float
    text: str


class Violation(NamedTuple):
    """Something that must not happen, and since when it did, in true time in ms."""

    at_ms: float
    text: str


@dataclass(slots=True)
class Process:
    """One process of a worker.

    Attributes:
        name: for people; member id, and a number from its second process on.
        frozen: spans of true time in which it was frozen; the last may be open (infinite).
        doing: the callback that runs → when it was called; empty = none.
        raised: the callback that begins tasks → task for which it raised last → the error.
        stopping: tasks of the `on_revoked` that runs.
    """

    name: str
    frozen: list[Span] = field(default_factory=list)
    doing: dict[str, float] = field(default_factory=dict)
    raised: dict[str, dict[Task, str]] = field(
        default_factory=lambda: {"on_assigned": {}, "on_learn": {}}
    )
    stopping: set[Task] = field(default_factory=set)


@dataclass(slots=True)
class Tenure:
    """A span in which a process runs a task.

    Attributes:
        process: which one.
        since, until: true time in ms; `until` is infinite while it runs on.
        ending: how it ended, for people.
    """

    process: Process
    since: float
    until: float = float("inf")
    ending: str = ""


class History:
    """The story, tenures and violations of one environment. Times are true time in ms."""

    def __init__(self, beginning_ms: float) -> None:
        self._beginning = beginning_ms
        self._lines: list[Line] = []
        self._tenures: dict[Task, list[Tenure]] = {}
        self._misuses: list[Violation] = []
        self._told: set[tuple[str, Task]] = set()  # who used what since the newest other line

    # ---------------------------------------------------------------------------- the story

    def add_line(self, at_ms: float, text: str) -> None:
        """Add a line to the story."""
        self._told.clear()
        self._lines.append(Line(at_ms, text))

    def story(self) -> str:
        """Every line of the story."""
        return "\n".join(map(self._shown, self._lines))

    def failed(self, why: str, at_ms: float | None = None) -> EnvironmentFailed:
        """An error with the part of the story around `at_ms`; None = its end."""
        lines = _shortened(self._lines)
        end = len(lines)
        if at_ms is not None:
            until = sum(line.at_ms <= at_ms for line in lines)
            end = min(end, max(until + LINES_AFTER, LINES_SHOWN))
        begin = max(0, end - LINES_SHOWN)
        shown = [*map(self._shown, lines[begin:end])]
        if begin > 0:
            shown.insert(0, f"          … {begin:,} lines before")
        if end < len(lines):
            shown.append(f"          … {len(lines) - end:,} lines after")
        return EnvironmentFailed("\n".join([why, "", "What happened:", *shown]))

    def _shown(self, line: Line) -> str:
        return f"{self._seconds(line.at_ms):>9.3f} s  {line.text}"

    def _seconds(self, at_ms: float) -> float:
        return (at_ms - self._beginning) / 1000

    # -------------------------------------------------------------------------- who runs what

    def begin(self, process: Process, tasks: Iterable[Task], now: float) -> None:
        """A process runs tasks from now on."""
        for task in tasks:
            tenures = self._tenures.setdefault(task, [])
            if not any(t.process is process and t.until > now for t in tenures):
                tenures.append(Tenure(process, now))

    def end(self, process: Process, tasks: Iterable[Task] | None, now: float, how: str) -> None:
        """A process does not run tasks any more; None = all of its tasks."""
        for task in list(self._tenures) if tasks is None else tasks:
            for tenure in self._tenures.get(task, ()):
                if tenure.process is process and tenure.until > now:
                    tenure.until, tenure.ending = now, how

    def runners(self, task: Task, now: float) -> list[Process]:
        """The processes that run a task now."""
        return [t.process for t in self._tenures.get(task, ()) if t.until > now]

    def use(self, process: Process, task: Task, now: float, wrong: str | None) -> None:
        """A process uses a task; `wrong` says why it must not.

        The story has a use once, however often it is repeated while nothing else happens.
        """
        if wrong is not None:
            at = f"{self._seconds(now):.3f} s"
            text = f"{process.name} used {task} at {at}, {wrong}"
            self._misuses.append(Violation(now, text))
        elif (process.name, task) in self._told:
            return
        self._lines.append(Line(now, f"{process.name} uses {task}"))
        self._told.add((process.name, task))

    # ---------------------------------------------------------------------------- the check

    def violations(self, now: float, stop_ms: float) -> list[Violation]:
        """Every span in which a task had two owners, and every use by a worker without the task."""
        misuses = list(self._misuses)
        for task, tenures in sorted(self._tenures.items()):
            for number, first in enumerate(tenures):
                for second in tenures[number + 1 :]:
                    both = _both(first, second, now, stop_ms)
                    if both is not None:
                        text = self._two_owners(task, first, second, both)
                        misuses.append(Violation(both[0], text))
        return misuses

    def _two_owners(self, task: Task, first: Tenure, second: Tenure, both: Span) -> str:
        seconds = (both[1] - both[0]) / 1000
        end = f"until {first.ending}" if first.ending else "and it still does"
        return (
            f"{task} had two owners for {seconds:.3f} s, from {self._seconds(both[0]):.3f} s on:"
            f" {first.process.name} ran it {end}, while {second.process.name} ran it too"
        )


def _shortened(lines: list[Line]) -> list[Line]:
    """The lines; what repeats again and again is there once, with the number of times."""
    short: list[Line] = []
    position = 0
    while position < len(lines):
        width, times = next(
            ((w, n) for w in range(1, REPEATS_WIDTH + 1) if (n := _times(lines, position, w)) > 2),
            (1, 1),
        )
        short += lines[position : position + width]
        position += width * times
        if times > 1:
            again = f"… the same {times - 1:,} more times, up to here"
            short.append(Line(lines[position - 1].at_ms, again))
    return short


def _times(lines: list[Line], position: int, width: int) -> int:
    """How often the `width` lines at a position stand there, one after the other."""
    texts = [line.text for line in lines[position : position + width]]
    times = 1
    while True:
        begin = position + times * width
        if [line.text for line in lines[begin : begin + width]] != texts:
            return times
        times += 1


def _both(first: Tenure, second: Tenure, now: float, stop_ms: float) -> Span | None:
    """The longest span in which both run and neither is frozen or has just been."""
    spans = [(max(first.since, second.since), min(first.until, second.until, now))]
    for tenure in (first, second):
        for since, until in tenure.process.frozen:
            spans = [part for span in spans for part in _without(span, (since, until + stop_ms))]
    spans = [span for span in spans if span[1] > span[0]]
    return max(spans, key=lambda span: span[1] - span[0], default=None)


def _without(span: Span, gap: Span) -> list[Span]:
    low, high = span
    parts = [(low, min(high, gap[0])), (max(low, gap[1]), high)]
    return [part for part in parts if part[1] > part[0]]
