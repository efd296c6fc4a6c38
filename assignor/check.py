"""The rules every placement obeys, whichever assignor made it.

`valid` checks in a fixed order and names the lowest task of a kind, so the same bad placement
always gives the same error. Error names are KIP-924's where it has one (S1-F07). Whether a
placement is good is another question (`muster.assignor.score`).
"""

from __future__ import annotations

import numpy as np

from muster.assignor.errors import InvalidPlacement
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Placement
from muster.protocol.tasks import IntArray

UNKNOWN_TASK_ID = "UNKNOWN_TASK_ID"
UNKNOWN_PROCESS_ID = "UNKNOWN_PROCESS_ID"
ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES = "ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES"
INVALID_STANDBY_TASK = "INVALID_STANDBY_TASK"
MISSING_PROCESS_ID = "MISSING_PROCESS_ID"
TWO_ROLES = "ACTIVE_AND_STANDBY_TASK_ASSIGNED_TO_SAME_KAFKASTREAMS"
ILL_FORMED = "ILL_FORMED_PLACEMENT"
NOT_ELIGIBLE = "TASK_ASSIGNED_TO_INELIGIBLE_MEMBER"
DRAINING = "TASK_ASSIGNED_TO_DRAINING_MEMBER"
LEFT_OUT = "ACTIVE_TASK_NOT_ASSIGNED"


def valid(view: GroupView, placement: Placement) -> None:
    """Check a placement.

    1. Owner vectors have one entry per task and name members that exist; pairs name tasks and
       members that exist, are ascending and distinct.
    2. Standbys and learners belong to stateful tasks only.
    3. No member has two roles of one task.
    4. No member gets a task it may not take; a draining member gets nothing new
       (unless the whole group drains), and never a learner.
    5. An active without an owner is declared: no member can take it, it is being revoked, or it
       waits for a delay or another round.

    Raises:
        InvalidPlacement: naming the first violation.
    """
    _well_formed(view, placement)
    _roles(view, placement)
    _takers(view, placement)
    _no_active_is_lost(view, placement)


def _first(
    view: GroupView, error: str, bad: BoolArray, task: IntArray, member: IntArray | None = None
) -> None:
    """Raise `error` for the first bad entry, with its task and member; numbers if there are none.

    Raises:
        InvalidPlacement: an entry is bad.
    """
    if not bad.any():
        return
    place = int(np.argmax(bad))
    index = int(task[place])
    known = 0 <= index < len(view.tasks)
    name = str(view.tasks.task(index)) if known else f"#{index}"
    if member is None:
        raise InvalidPlacement(error, name)
    index = int(member[place])
    known = 0 <= index < len(view.members)
    raise InvalidPlacement(error, name, view.members[index] if known else f"#{index}")


def _well_formed(view: GroupView, placement: Placement) -> None:
    tasks, members = len(view.tasks), len(view.members)
    for vector in (placement.active, placement.destination):
        if vector.shape != (tasks,) or not np.issubdtype(vector.dtype, np.integer):
            raise InvalidPlacement(ILL_FORMED)
        stranger = (vector < NO_MEMBER) | (vector >= members)
        _first(view, UNKNOWN_PROCESS_ID, stranger, np.arange(tasks, dtype=np.int32), vector)
    for pairs in (placement.standby, placement.learner, placement.revoked):
        task, member = pairs.task, pairs.member
        if task.shape != member.shape or task.ndim != 1:
            raise InvalidPlacement(ILL_FORMED)
        if len(pairs) == 0:
            continue
        _first(view, UNKNOWN_TASK_ID, (task < 0) | (task >= tasks), task, member)
        _first(view, UNKNOWN_PROCESS_ID, (member < 0) | (member >= members), task, member)
        _first(view, ILL_FORMED, np.append(False, np.diff(pairs.code) <= 0), task, member)
    outside = (placement.unassigned < 0) | (placement.unassigned >= tasks)
    _first(view, UNKNOWN_TASK_ID, outside, placement.unassigned)


def _roles(view: GroupView, placement: Placement) -> None:
    standby, learner = placement.standby, placement.learner
    for pairs in (standby, learner):
        task, member = pairs.task, pairs.member
        if len(pairs):
            _first(view, INVALID_STANDBY_TASK, ~view.tasks.stateful[task], task, member)
            _first(view, TWO_ROLES, placement.active[task] == member, task, member)
    if len(standby) and len(learner):
        twice = np.isin(learner.code, standby.code)
        _first(view, TWO_ROLES, twice, learner.task, learner.member)


def _takers(view: GroupView, placement: Placement) -> None:
    everyone = view.unrestricted
    if everyone and not view.draining.any():
        return
    task = np.arange(len(view.tasks), dtype=np.int32)
    for vector in (placement.active, placement.destination):
        owned = vector != NO_MEMBER
        gained = owned & (vector != view.active)
        _draining(view, gained, task, vector)
        if not everyone:
            _eligible(view, task[owned], vector[owned])
    for pairs, held in ((placement.standby, view.standby), (placement.learner, view.learner)):
        if len(pairs) == 0:
            continue
        owner = view.active[pairs.task] == pairs.member
        new = ~owner & ~np.isin(pairs.code, held.code)
        _draining(view, new, pairs.task, pairs.member, never=pairs is placement.learner)
        if not everyone:
            _eligible(view, pairs.task, pairs.member)


def _draining(
    view: GroupView, gained: BoolArray, task: IntArray, member: IntArray, *, never: bool = False
) -> None:
    bad = gained & view.draining[member] & (never or not view.draining.all())
    _first(view, DRAINING, bad, task, member)


def _eligible(view: GroupView, task: IntArray, member: IntArray) -> None:
    _first(view, NOT_ELIGIBLE, ~view.may_take(task, member), task, member)


def _no_active_is_lost(view: GroupView, placement: Placement) -> None:
    if placement.again or placement.delay_ms:
        return
    lost = placement.active == NO_MEMBER
    if not lost.any():
        return
    lost[placement.unassigned] = False
    lost[placement.revoked.task] = False
    _first(view, LEFT_OUT, lost, np.arange(len(lost), dtype=np.int32))
