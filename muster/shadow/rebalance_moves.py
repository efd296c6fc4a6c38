"""Finds out what each rebalance of a group that Kafka coordinates moved. Pure."""

from __future__ import annotations

from typing import Any

from muster.protocol.records import GroupSnapshot
from muster.shadow.placement_figures import owners_of


def rebalance(before: GroupSnapshot, group: GroupSnapshot) -> dict[str, Any] | None:
    """What lies between two settled states of a group; None = owners and members are the same.

    A move is a task that had an owner and has another one now. The event's `muster_moves` is None:
    the caller sets it.
    """
    old, owners = owners_of(before), owners_of(group)
    was, now = ({member.id for member in each.members} for each in (before, group))
    if owners == old and was == now:
        return None
    return {
        "group": group.group,
        "at_ms": group.clock_ms,
        "event": "rebalance",
        "joined": sorted(now - was),
        "left": sorted(was - now),
        "moved": [
            {"task": task, "from": old[task], "to": owner}
            for task, owner in sorted(owners.items())
            if task in old and old[task] != owner
        ],
        "unowned": sum(unit.size for unit in group.tasks) - len(owners),
        "muster_moves": None,
    }
