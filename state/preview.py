"""What-if plans: the view that an assignor would get if some events happened to a group.

The steps are those of `machine.advance` up to the call of the assignor, so a plan shows what the
coordinator would do. Nothing is placed or published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from muster.assignor import registry
from muster.assignor.model import GroupView, Reason
from muster.protocol.events import Drain, GroupConfig, Join, Leave
from muster.protocol.ids import MemberId
from muster.protocol.records import GroupSnapshot, Move
from muster.state import config_events, drains, membership, placement
from muster.state.draft import Draft
from muster.state.group import Group
from muster.state.liveness import FENCED, MUTE


class Preview(NamedTuple):
    """The view, and a function for the assignor's reasons.

    Attributes:
        view: the group as its assignor would see it.
        left_out: the members that the view does not have, and why.
        moves: an assignor's reasons → moves; a source may be a member that would be gone.
    """

    view: GroupView
    left_out: Mapping[MemberId, str]
    moves: Callable[[Iterable[Reason]], tuple[Move, ...]]


def preview(
    record: GroupSnapshot,
    events: Iterable[Join | Leave | Drain | GroupConfig],
    *,
    keeps_rounds: bool = False,
) -> Preview:
    """Absorb events into a published group.

    Args:
        record: the newest record of the group.
        events: absorbed in the order given, all at the group's present time. A join that would be
            refused (full group, id in use) does not change the view.
        keeps_rounds: the assignor remembers its rounds although every member leaves in `events`,
            because some of these leaves only replace what the record says of a member.
    """
    draft = Draft(_group_of(record), record.coordinator_epoch, registry.get)
    for event in events:
        match event:
            case Join():
                membership.join(draft, event)
            case Leave():
                membership.leave(draft, event)
            case Drain():
                drains.order(draft, event)
            case GroupConfig():
                config_events.configure(draft, event)
    draft.drop_gone()
    if draft.was_empty and not keeps_rounds:
        placement.forget_rounds(draft)
    view = placement.view_of(draft, placement.placeable_slots(draft))
    left_out = placement.left_out(draft)
    return Preview(view, left_out, lambda reasons: placement.moves_of(draft, view, reasons))


def _group_of(record: GroupSnapshot) -> Group:
    """The group of a record, with what its coordinator still knows of fences and drains."""
    group = Group.recover(record)
    group.sessions.flags[list(record.fenced)] |= FENCED | MUTE
    over = dict.fromkeys(record.drained, record.clock_ms)
    group.timers.drain_until_ms = {**group.timers.drain_until_ms, **over}
    return group
