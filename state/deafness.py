"""Deaf members: they go on joining, and show no sign that they read what they are answered.

A worker whose reader hangs stops its tasks when its lease ends, then repeats its join for ever. Its
joins renew its session, so it would keep its tasks, and no member would run them.

- `UNREAD`: a member that repeats its join must show that it reads, by a heartbeat or a report,
  which it cannot write without having read a record. It has the longer of the session and the
  rebalance timeout, from the proof that it could have read its answer. Further demands do not
  begin that time again.
- `DEAF`: after that time it is fenced. Its joins free nothing, since they may be older than an
  answer that it has read. A session later its tasks are free. It stays a member, which placements
  leave out until a heartbeat or a report comes.
"""

from __future__ import annotations

from muster.protocol.records import MemberState
from muster.state import causes
from muster.state.draft import Draft
from muster.state.liveness import DEAF, FENCED, MUTE, UNREAD


def note_repeated_join(draft: Draft, slot: int) -> None:
    """Note that a member has repeated its join: it must show in time that it reads the answer."""
    if not draft.sessions.flags[slot] & DEAF:
        draft.sessions.flags[slot] |= UNREAD
        draft.sessions.demand(slot)


def note_reading(draft: Draft, slot: int) -> None:
    """Note that a member has read a record: its heartbeat or report has come."""
    flags = int(draft.sessions.flags[slot])
    if not flags & (UNREAD | DEAF) or flags & FENCED:
        return
    draft.sessions.flags[slot] = flags & ~(UNREAD | DEAF)
    if flags & DEAF:
        draft.causes.member(causes.RETURNED, draft.member(slot).id)
    elif draft.member(slot).state is MemberState.UNREVOKED or slot in draft.recovery.asked:
        draft.sessions.restart_demand(slot)
    else:
        draft.sessions.cancel_demand(slot)


def free_tasks(draft: Draft, slot: int) -> None:
    """Free the tasks of a deaf member that was fenced a session ago; it stays a member."""
    draft.release([slot])
    draft.sessions.flags[slot] &= 0xFFFF & ~(FENCED | MUTE)
    draft.sessions.cancel_demand(slot)
    draft.sessions.hear(slot)
    draft.recovered(slot)
    draft.update(
        slot,
        state=MemberState.STABLE,
        epoch=0,
        previous_epoch=0,
        revoke_revision=0,
        deadline_ms=None,
        away=False,
    )
    draft.touched.add(slot)
    draft.addressed.add(slot)
