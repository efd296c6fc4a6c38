"""Copies that are to become active where they are: those restore first.

An active may wait for the copy at its destination as a learner, whose purpose is clear, or as a
standby among others. A member is told which of its standbys those are (`MemberAssignment.next`).
"""

from __future__ import annotations

import numpy as np

from muster.assignor.model import BoolArray
from muster.protocol.ids import Role
from muster.state.draft import Draft
from muster.state.group import NO_MEMBER, Codes, Group, codes, slot_of, task_of


def awaited(group: Group | Draft) -> Codes:
    """Where actives are to go once the copy there has caught up."""
    return _at_destination(group, group.destination != group.target)


def standbys(group: Group | Draft) -> Codes:
    """Standbys that are to become active where they are, waited for or ready."""
    kept = (group.copies[Role.STANDBY] if isinstance(group, Draft) else group.standby).kept
    aims = _at_destination(group, group.destination != group.holder)
    return np.intersect1d(aims, kept, assume_unique=True)


def _at_destination(group: Group | Draft, which: BoolArray) -> Codes:
    moving = np.flatnonzero(which & (group.destination != NO_MEMBER)).astype(np.int32)
    return codes(moving, group.destination[moving])


def changed(draft: Draft) -> set[int]:
    """Slots of members of which other standbys come next than before this batch."""
    now = standbys(draft)
    if draft.table is not draft.group.table:
        return set(slot_of(now).tolist())
    before = standbys(draft.group)
    granted = before[draft.holder[task_of(before)] == slot_of(before)]  # told by that record
    before = np.setdiff1d(before, granted, assume_unique=True)
    return set(slot_of(np.setxor1d(now, before, assume_unique=True)).tolist())
