"""Copies that become active next, on the member that has them; the member restores these first.

Every learner becomes active, but not every standby; `MemberAssignment.next` names those that do.
"""

from __future__ import annotations

import numpy as np

from muster.assignor.model import BoolArray
from muster.protocol.ids import Role
from muster.state.draft import Draft
from muster.state.group import Group
from muster.state.ownership import NO_MEMBER, Codes, codes, slot_of, task_of


def awaited(group: Group | Draft) -> Codes:
    """The destinations of actives that wait for the copy there to catch up."""
    return _at_destination(group, group.target.destination != group.target.active)


def standbys(group: Group | Draft) -> Codes:
    """Standbys that become active on their member, caught up or not."""
    kept = group.owned.copies[Role.STANDBY].kept
    if len(kept) == 0:
        return kept
    coming = _at_destination(group, group.target.destination != group.owned.holder)
    return np.intersect1d(coming, kept, assume_unique=True)


def _at_destination(group: Group | Draft, selected: BoolArray) -> Codes:
    tasks = np.flatnonzero(selected & (group.target.destination != NO_MEMBER)).astype(np.int32)
    return codes(tasks, group.target.destination[tasks])


def changed(draft: Draft) -> set[int]:
    """Slots of members whose standbys that become active differ from before this batch."""
    standbys_now = standbys(draft)
    if draft.table is not draft.group.table:
        return set(slot_of(standbys_now).tolist())
    standbys_before = standbys(draft.group)
    # A standby that was granted as active in this batch needs no other record.
    holders = draft.owned.holder[task_of(standbys_before)]
    standbys_before = standbys_before[holders != slot_of(standbys_before)]
    return set(slot_of(np.setxor1d(standbys_now, standbys_before, assume_unique=True)).tolist())
