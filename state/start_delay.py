"""How long a starting fleet waits for more members before its first placement.

Members of a new fleet join one after the other. If the coordinator placed all tasks at the first
join, most of them would move at the next ones. No task runs yet, so a wait interrupts nothing. It
ends when joins have paused, and at the latest `initial.rebalance.delay.ms` after the first join.
"""

from __future__ import annotations

from muster.state.draft import Draft
from muster.state.group import Group

PAUSES = 12
"""Joins have paused when none came for `initial.rebalance.delay.ms` divided by this."""


def is_starting(group: Draft | Group) -> bool:
    """Whether there are members, and all of them joined after the newest placement."""
    joined_ms = _joined_ms(group)
    return bool(joined_ms) and joined_ms[0] > group.target.placed_ms


def over_ms(group: Draft | Group) -> int:
    """When the wait is over, on the group's clock; 0 = the group does not wait."""
    delay_ms = group.settings.initial_rebalance_delay_ms
    if not delay_ms or not is_starting(group):
        return 0
    joined_ms = _joined_ms(group)
    return min(joined_ms[-1] + delay_ms // PAUSES, joined_ms[0] + delay_ms)


def _joined_ms(group: Draft | Group) -> list[int]:
    """When the members joined, ascending."""
    return sorted(member.joined_ms for member in group.roster)
