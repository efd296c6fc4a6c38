"""The log of an ordeal, for people: lines with their time, kept only when asked for."""

from __future__ import annotations

from collections import deque

from muster.protocol.ids import Role
from muster.protocol.records import MemberAssignment, MemberGone
from muster.protocol.tasks import TaskSet

LINES_MAX = 400


class Story:
    """The newest lines of the log.

    Attributes:
        told: whether lines are kept; check it before building an expensive line.
        lines: the lines, newest last.
    """

    def __init__(self, *, told: bool) -> None:
        self.told = told
        self.lines: deque[str] = deque(maxlen=LINES_MAX)

    def tell(self, at_ms: float, text: str) -> None:
        """Add a line."""
        if self.told:
            self.lines.append(f"{at_ms:>9,.0f} ms  {text}")


def named(tasks: TaskSet) -> str:
    """Tasks as text."""
    return " ".join(map(str, tasks))


def said(record: MemberAssignment | MemberGone) -> str:
    """A record to a member, as text."""
    if isinstance(record, MemberGone):
        return "gone"
    head = f"coordinator {record.coordinator_epoch}, revision {record.revision}"
    if record.fault is not None:
        return f"{record.fault.value} ({head})"
    sets = zip(Role, (record.active, record.standby, record.learner), strict=True)
    held = ", ".join(f"{role} {named(tasks)}" for role, tasks in sets if tasks)
    asked = ", report" if record.report else ""
    return f"{held or 'nothing'} ({head}, epoch {record.epoch}{asked})"
