"""Texts for the trace of a simulation, which people read."""

from __future__ import annotations

from collections.abc import Iterable

from muster.protocol.ids import Role, Task
from muster.protocol.records import MemberAssignment, MemberGone


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
