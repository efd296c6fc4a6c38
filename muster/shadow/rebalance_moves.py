"""Finds out what each rebalance of a group that Kafka coordinates moved. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from muster.protocol.records import GroupSnapshot
from muster.shadow.placement_figures import present


@dataclass(slots=True)
class RebalanceTracker:
    """Compares each settled state of a group with the one before.

    Attributes:
        before: the newest settled state; None = none yet.
        owners: task → member, at that time.
    """

    before: GroupSnapshot | None = None
    owners: dict[str, str] = field(default_factory=dict)

    def take(self, group: GroupSnapshot) -> dict[str, Any] | None:
        """Take a settled state; return the event if owners or members have changed, else None.

        A move is a task that had an owner and has another one now. The event's `muster_moves` is
        None: the caller sets it.
        """
        owners = {task: member for member, tasks in present(group).items() for task in tasks}
        before = self.before
        old, self.before = self.owners, group
        self.owners = owners
        if before is None:
            return None
        was = {member.id for member in before.members}
        now = {member.id for member in group.members}
        if owners == old and was == now:
            return None
        moved = [
            {"task": task, "from": old[task], "to": owner}
            for task, owner in sorted(owners.items())
            if task in old and old[task] != owner
        ]
        total = sum(unit.size for unit in group.tasks)
        return {
            "group": group.group,
            "at_ms": group.clock_ms,
            "event": "rebalance",
            "joined": sorted(now - was),
            "left": sorted(was - now),
            "moved": moved,
            "unowned": total - len(owners),
            "muster_moves": None,
        }
