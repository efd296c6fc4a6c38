"""A group is deleted: in order, and with a memory of its generations.

Its tasks are gone at once, so its members are asked to give up all they have, as by any record;
that one says that the group was deleted. Who has stopped everything is told once more, with a fault
and a tombstone, and is no member any more. Its process asks to join again, is told the same, and
asks on: it neither brings the group back without a config nor needs a restart when there is one.

What stays is the group's record in state `Dead`, with nothing in it but its last generation. A
config under the same name goes on from there: tokens of a task grow for as long as its name lives.
"""

from __future__ import annotations

from muster.protocol.events import GroupDeleted
from muster.protocol.ids import MemberId
from muster.protocol.records import Fault, MemberAssignment, group_deleted
from muster.protocol.settings import DEFAULT_ASSIGNOR, Settings
from muster.protocol.tasks import TaskTable
from muster.state import addressed, config, reconcile
from muster.state.causes import Causes
from muster.state.draft import Draft
from muster.state.group import Member
from muster.state.liveness import FENCED


def delete(draft: Draft, event: GroupDeleted) -> None:
    """The group is to be dead; deleted once more, it is as it was."""
    if draft.dead:
        return
    draft.dead = draft.changed = True
    draft.cause = group_deleted(event.group, event.origin)
    config.declare(draft, TaskTable(()))
    draft.causes, draft.chances = Causes(), Causes()
    draft.target_generation = draft.generation
    draft.moves, draft.drains, draft.drain_until_ms = (), (), {}
    draft.memory = draft.kept = draft.followup_ms = draft.delay_until_ms = None
    draft.again = False


def wind_up(draft: Draft) -> None:
    """Ask members to stop, and let those go that have; nothing is placed any more."""
    draft.causes, draft.chances = Causes(), Causes()
    slots = reconcile.settle(draft)
    owing = {orphan.slot for orphan in draft.orphans} | draft.recovering
    for slot in [slot for slot in draft.roster if slot not in owing]:
        if not draft.soft.flags[slot] & FENCED:
            _let_go(draft, draft.unseat(slot))
    draft.drop_gone()
    addressed.write(draft, slots)
    draft.acknowledged.clear()
    if not draft.roster:
        draft.assignor, draft.settings = DEFAULT_ASSIGNOR, Settings()
        # Slots are counted anew: those of ten thousand members would be kept for ever.
        draft.members, draft.gone, draft.soft = [], set(), draft.soft.emptied()


def _let_go(draft: Draft, member: Member) -> None:
    draft.changed = True
    if not member.away:
        record = MemberAssignment(
            group=draft.id,
            member=member.id,
            incarnation=member.incarnation,
            coordinator_epoch=draft.coordinator_epoch,
            generation=draft.generation,
            epoch=0,
            revision=member.revision + 1,
            fault=Fault.GROUP_ID_NOT_FOUND,
            session_timeout_ms=draft.settings.session_timeout_ms,
            heartbeat_interval_ms=draft.settings.heartbeat_interval_ms,
            message=draft.cause,
        )
        draft.replies.append((member.id, record))
    draft.tombstone(MemberId(member.id))
