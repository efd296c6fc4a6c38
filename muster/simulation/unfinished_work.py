"""Checks whether a group's own state shows that it still has something to do."""

from __future__ import annotations

from muster.protocol.ids import Role
from muster.protocol.records import GroupState
from muster.state.group import Group


def still_moving(group: Group) -> str | None:
    """Describe what the group still does; None = it has settled."""
    if group.state is not GroupState.STABLE or group.recovery.asked:
        return f"the group is {group.state.value} ({group.cause})"
    if (group.target.active != group.target.destination).any():
        return "a task is not where it belongs"
    if len(group.owned.copies[Role.LEARNER].kept) or group.target.again:
        return f"a learner is still needed ({group.cause})"
    if group.timers.delay_until_ms is not None:
        return "tasks of a lost member wait for its return"
    return None
