"""Follows a group of Kafka's: what each of its rebalances moved.

Pure: it is given the group each time it was read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from muster.protocol.records import GroupSnapshot
from muster.shadow.standing import present


@dataclass(slots=True)
class Watched:
    """The newest settled state of a group.

    Attributes:
        before: the group as it was last settled; None = not yet.
        owners: task → member, at that time.
    """

    before: GroupSnapshot | None = None
    owners: dict[str, str] = field(default_factory=dict)

    def take(self, group: GroupSnapshot) -> dict[str, Any] | None:
        """Take in a settled state; the event, if owners or members have changed.

        A move is a task that had an owner and has another one now. The event's `muster_moves` is
        None; the caller knows how to plan.
        """
        owners = {task: member for member, tasks in present(group).items() for task in tasks}
        first, before = self.before is None, self.before
        old, self.before = self.owners, group
        self.owners = owners
        if first or before is None:
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
