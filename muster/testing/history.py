"""The history of an environment: a log for people, which worker ran which task, and violations.

A worker runs a task from the call of `on_assigned` until `on_revoked` or `on_lost` has returned,
`Worker.released` has named the task, or the process was killed. Two workers must not run a task at
one time. A frozen process runs nothing; when it goes on, it has the time that a lease leaves for
stopping (`muster.worker.lease.stop_ms`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from muster.protocol.ids import Task
from muster.protocol.tasks import TaskSet
from muster.testing.errors import EnvironmentFailed

LINES_SHOWN = 60
Span = tuple[float, float]


@dataclass(slots=True)
class Process:
    """One process of a worker.

    Attributes:
        name: for people; member id, and a number from its second process on.
        frozen: spans of true time in which it was frozen; the last may be open (infinite).
        doing: the callback that runs → when it was called; empty = none.
        raised: the callback that raised, and has not returned since → its tasks and the error.
        stopping: tasks of the `on_revoked` that runs.
    """

    name: str
    frozen: list[Span] = field(default_factory=list)
    doing: dict[str, float] = field(default_factory=dict)
    raised: dict[str, tuple[TaskSet, str]] = field(default_factory=dict)
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
        self._lines: list[str] = []
        self._tenures: dict[Task, list[Tenure]] = {}
        self._misuses: list[str] = []

    # ---------------------------------------------------------------------------- the story

    def add_line(self, at_ms: float, text: str) -> None:
        """Add a line to the story."""
        self._lines.append(f"{(at_ms - self._beginning) / 1000:>9.3f} s  {text}")

    def story(self, lines: int = LINES_SHOWN) -> str:
        """The newest lines of the story."""
        left_out = len(self._lines) - lines
        head = [f"          … {left_out:,} lines before"] if left_out > 0 else []
        return "\n".join([*head, *self._lines[-lines:]])

    def failed(self, why: str) -> EnvironmentFailed:
        """An error with the story."""
        return EnvironmentFailed(f"{why}\n\nWhat happened:\n{self.story()}")

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

    def misuse(self, text: str) -> None:
        """A worker used a task that it did not hold."""
        self._misuses.append(text)

    # ---------------------------------------------------------------------------- the check

    def violations(self, now: float, stop_ms: float) -> list[str]:
        """Every span in which a task had two owners, and every use by a worker without the task."""
        misuses = list(self._misuses)
        for task, tenures in sorted(self._tenures.items()):
            for number, first in enumerate(tenures):
                for second in tenures[number + 1 :]:
                    both = _both(first, second, now, stop_ms)
                    if both is not None:
                        misuses.append(self._two_owners(task, first, second, both))
        return misuses

    def _two_owners(self, task: Task, first: Tenure, second: Tenure, both: Span) -> str:
        seconds = (both[1] - both[0]) / 1000
        where = (both[0] - self._beginning) / 1000
        end = f"until {first.ending}" if first.ending else "and it still does"
        return (
            f"{task} had two owners for {seconds:.3f} s, from {where:.3f} s on:"
            f" {first.process.name} ran it {end}, while {second.process.name} ran it too"
        )


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
