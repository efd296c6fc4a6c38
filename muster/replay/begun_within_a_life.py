"""The group with which a repetition begins where older events have been deleted.

It is that of the oldest snapshot. A snapshot has no liveness: when members were last heard, and
since when they owe what was demanded of them. So sessions begin fresh, and so does the time of each
demand that the snapshot shows. What members hold is known, so their heartbeats agree as before.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.assignor.registry import BUILT_IN
from muster.protocol.records import GroupSnapshot, MemberState
from muster.protocol.settings import CONNECT_ASSIGNORS
from muster.state import expected_digests
from muster.state.group import Group, Recovery
from muster.state.liveness import FENCED, MUTE


def begun_with(record: GroupSnapshot) -> Group:
    """The group of a snapshot, as its own coordinator had it as far as the snapshot shows."""
    # Only the members that the record names owe a report.
    group = replace(
        Group.recover(record),
        recovery=Recovery(asked=frozenset(record.recovering), floor=record.floor),
        coordinator_epoch=record.coordinator_epoch,
    )
    sessions = group.sessions
    sessions.flags[list(record.fenced)] |= FENCED | MUTE
    for member in record.members:
        sessions.epoch[member.slot] = member.epoch
        if member.slot in record.fenced or member.state is MemberState.UNREVOKED:
            sessions.demand(member.slot)
    every_slot = np.arange(len(sessions.digest) + 1) < len(sessions.digest)
    sessions.digest = expected_digests.of_members(group.owned, group.hashes, every_slot)
    _begin_drains(group, record)
    if record.assignor in BUILT_IN and record.assignor not in CONNECT_ASSIGNORS:
        group.target.again = False  # only Connect's and plug-ins ask to be asked again
    return group


def _begin_drains(group: Group, record: GroupSnapshot) -> None:
    """Set when placements leave out each member that is drained."""
    known = (record.delay_until_ms, record.followup_ms)
    next_ms = record.next_ms
    if next_ms is not None and next_ms > record.clock_ms and next_ms not in known:
        group.timers.drain_until_ms = dict.fromkeys(group.timers.drain_until_ms, next_ms)
    group.timers.drain_until_ms |= dict.fromkeys(record.drained, record.clock_ms)


def clock_shifts(published: GroupSnapshot, made: GroupSnapshot) -> set[int]:
    """By how many ms the session clock of a repetition seems to be behind; negative = ahead.

    A session clock may be behind the group clock, and only the deadlines of demands show it.
    """
    theirs = {member.id: member.deadline_ms for member in published.members}
    shifts = set()
    for member in made.members:
        their_ms = theirs.get(member.id)
        if their_ms is not None and member.deadline_ms is not None:
            shifts.add(their_ms - member.deadline_ms)
    return shifts - {0}


def with_session_clock(group: Group, shift_ms: int) -> Group:
    """The same group, with a session clock that is `shift_ms` later; sessions end as before."""
    sessions = group.sessions.copy()
    sessions.session_ms += shift_ms
    sessions.last_ms += shift_ms
    sessions.response_due[sessions.response_due > 0] += shift_ms
    sessions.reset_earliest()
    return replace(group, sessions=sessions)
