"""The trace of a simulation: lines with their time, for people."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from muster.protocol.ids import Role, Task
from muster.protocol.records import MemberAssignment, MemberGone

LINES_MAX = 400


class Trace:
    """The newest lines.

    Attributes:
        is_kept: whether lines are kept; check it before building an expensive line.
        lines: the lines, newest last.
    """

    def __init__(self, *, is_kept: bool) -> None:
        self.is_kept = is_kept
        self.lines: deque[str] = deque(maxlen=LINES_MAX)

    def add(self, at_ms: float, text: str) -> None:
        """Add a line."""
        if self.is_kept:
            self.lines.append(f"{at_ms:>9,.0f} ms  {text}")


def tasks_text(tasks: Iterable[Task]) -> str:
    """Tasks as text."""
    return " ".join(map(str, tasks))


def record_text(record: MemberAssignment | MemberGone) -> str:
    """A record to a member, as text."""
    if isinstance(record, MemberGone):
        return "gone"
    head = f"coordinator {record.coordinator_epoch}, revision {record.revision}"
    if record.fault is not None:
        return f"{record.fault.value} ({head})"
    sets = zip(Role, (record.active, record.standby, record.learner), strict=True)
    held = ", ".join(f"{role} {tasks_text(tasks)}" for role, tasks in sets if tasks)
    asked = ", report" if record.report else ""
    return f"{held or 'nothing'} ({head}, epoch {record.epoch}{asked})"
