"""A coordinator gives up a group when it reads a tick of a later coordinator.

A coordinator that was frozen may go on when another one has taken over. The later one writes a tick
for every group that it has read back. The earlier one reads that tick before any later record, so
it makes no decision based on records that follow from the later one's decisions, however long it
was frozen.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.protocol.events import Taken, Tick
from muster.state.group import Group


def later_epoch(group: Group, events: Iterable[Taken], coordinator_epoch: int) -> int | None:
    """Epoch of a later coordinator that a tick of the group names; None = no tick names one."""
    latest = newest_named(events)
    if group.recovery.successor is not None:
        latest = max(latest, group.recovery.successor)
    return latest if latest > coordinator_epoch else None


def newest_named(events: Iterable[Taken]) -> int:
    """The greatest epoch of a coordinator that a tick names; -1 = no tick names one."""
    epochs_named = [
        event.published.coordinator_epoch
        for event in events
        if isinstance(event, Tick) and event.published
    ]
    return max(epochs_named, default=-1)
