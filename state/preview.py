"""What-if plans: the view that an assignor would get if some events happened to a group.

The steps are those of `machine.advance` up to the call of the assignor, so a plan shows what the
coordinator would do. Nothing is placed or published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from muster.assignor import registry
from muster.assignor.model import GroupView, Reason
from muster.protocol.events import Drain, GroupConfig, Join, Leave
from muster.protocol.records import GroupSnapshot, Move
from muster.state import config_events, drains, membership, placement
from muster.state.draft import Draft
from muster.state.group import Group


class Preview(NamedTuple):
    """The view, and a function for the assignor's reasons.

    Attributes:
        view: the group as its assignor would see it.
        moves: an assignor's reasons → moves; a source may be a member that would be gone.
    """

    view: GroupView
    moves: Callable[[Iterable[Reason]], tuple[Move, ...]]


def preview(record: GroupSnapshot, events: Iterable[Join | Leave | Drain | GroupConfig]) -> Preview:
    """Absorb events into a published group.

    Args:
        record: the newest record of the group.
        events: absorbed in the order given, all at the group's present time. A join that would be
            refused (full group, id in use) does not change the view.
    """
    draft = Draft(Group.recover(record), record.coordinator_epoch, registry.get)
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
    view = placement.view_of(draft, placement.placeable_slots(draft))
    return Preview(view, lambda reasons: placement.moves_of(draft, view, reasons))
