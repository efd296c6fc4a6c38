"""Answers to processes that are not members of the group: why, and to how many.

Such a process joins and is refused, or writes as if it were a member. It gets a record with a
fault, and the record gets a tombstone. One writer can name any number of processes, so a batch
answers at most `ANSWERS_MAX` of them, each once for each fault. The others ask again and are
answered in a later batch.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.protocol.events import Join, Report
from muster.protocol.ids import MemberId
from muster.protocol.records import Fault, MemberAssignment
from muster.state.draft import Draft
from muster.state.printable import cut

ANSWERS_MAX = 200
"""At most this many faults for processes that are not members are written per group and batch."""
ANY_INCARNATION = 0
"""Incarnation of a fault that addresses every process of the member id."""


def answer(draft: Draft, event: Join | Report, fault: Fault, message: str) -> None:
    """Answer the process that wrote a join or a report."""
    _answer(draft, event.member, event.incarnation, fault, message)


def _answer(draft: Draft, member: str, incarnation: int, fault: Fault, message: str) -> None:
    """Write a fault to a process; repeats within the batch are dropped."""
    if (member, incarnation, fault) in draft.answered_refusals or _is_enough(draft):
        return
    draft.answered_refusals.add((member, incarnation, fault))
    draft.replies.append((member, fault_record(draft, member, incarnation, fault, message)))


def answer_unknown(draft: Draft, member: str, incarnation: int) -> None:
    """Answer an event of a process that is not a member."""
    message = "not a member of the group (any more); drop everything and join"
    _answer(draft, member, incarnation, Fault.UNKNOWN_MEMBER_ID, message)


def answer_unknowns(draft: Draft, members: Iterable[str]) -> None:
    """Answer heartbeats of processes that are not members, as far as a batch answers them.

    One tick can name twenty thousand of them, also one of them again and again.
    """
    for member in dict.fromkeys(members):
        if _is_enough(draft):
            return
        answer_unknown(draft, member, ANY_INCARNATION)


def _is_enough(draft: Draft) -> bool:
    """Whether the batch answers no more processes that are not members."""
    return len(draft.answered_refusals) >= ANSWERS_MAX


def fault_record(
    draft: Draft, member: str, incarnation: int, fault: Fault, message: str, revision: int = 0
) -> MemberAssignment:
    """A record with a fault, for a member or another process."""
    return MemberAssignment(
        group=draft.id,
        member=MemberId(member),
        incarnation=incarnation,
        coordinator_epoch=draft.coordinator_epoch,
        generation=draft.generation,
        epoch=0,
        revision=revision,
        fault=fault,
        session_timeout_ms=draft.settings.session_timeout_ms,
        heartbeat_interval_ms=draft.settings.heartbeat_interval_ms,
        message=cut(message),
    )


def add_tombstones(draft: Draft) -> None:
    """Write a tombstone behind each fault for a process that is not a member.

    Otherwise the fault would stay on the compacted topic. Readers have acted on it by then.
    """
    non_members = {
        member for member, _, _ in draft.answered_refusals if member not in draft.roster.by_id
    }
    for member in sorted(non_members):
        draft.tombstone(MemberId(member))
