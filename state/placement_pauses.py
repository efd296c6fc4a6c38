"""How long a generation waits for its placement: in a starting fleet, and between two placements.

A group opens a generation at once. Until it is placed it is *pending*, and these two make it wait,
both on the group's clock:

- The assignment interval (`assignment.interval.ms`) is the shortest pause between two placements.
- Members of a new fleet join one after the other. If the coordinator placed all tasks at the first
  join, most of them would move at the next ones. No task runs yet, so a wait interrupts nothing. It
  ends when joins have paused, and at the latest `initial.rebalance.delay.ms` after the first join.
"""

from __future__ import annotations

from muster.state.draft import Draft
from muster.state.group import Group
from muster.state.liveness import later

JOIN_PAUSES = 12
"""Joins have paused when none came for `initial.rebalance.delay.ms` divided by this."""


def is_pending(group: Draft | Group) -> bool:
    """Whether the newest generation has no target yet."""
    return group.generation > group.target.generation


def gate_ms(group: Draft | Group) -> int:
    """The group clock's time before which no placement is made."""
    earliest_ms = _start_delay_over_ms(group)
    if group.settings.assignment_interval_ms and group.target.generation:
        interval_ms = group.settings.assignment_interval_ms
        earliest_ms = max(earliest_ms, later(group.target.placed_ms, interval_ms))
    return earliest_ms


def is_shut(group: Draft | Group) -> bool:
    """Whether the pending generation may not be placed before a later time."""
    return is_pending(group) and gate_ms(group) > group.sessions.clock_ms


def has_ended(draft: Draft) -> bool:
    """Whether this batch ended the time for which a generation had to wait."""
    return is_shut(draft.group) and not is_shut(draft)


def is_starting(group: Draft | Group) -> bool:
    """Whether there are members, and all of them joined after the newest placement."""
    joined_ms = _joined_ms(group)
    return bool(joined_ms) and joined_ms[0] > group.target.placed_ms


def _start_delay_over_ms(group: Draft | Group) -> int:
    """When a starting fleet has waited long enough for more members; 0 = it does not wait."""
    delay_ms = group.settings.initial_rebalance_delay_ms
    if not delay_ms or not is_starting(group):
        return 0
    joined_ms = _joined_ms(group)
    return min(joined_ms[-1] + delay_ms // JOIN_PAUSES, joined_ms[0] + delay_ms)


def _joined_ms(group: Draft | Group) -> list[int]:
    """When the members joined, ascending."""
    return sorted(member.joined_ms for member in group.roster)
