"""What if: the view an assignor would get, had some events happened to a published group.

Made of the same steps as `machine.advance`, up to the point where the assignor is asked; so a plan
is what the coordinator would do, not a guess at it. Nothing is decided and no member is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from muster.assignor import registry
from muster.assignor.model import GroupView, Reason
from muster.protocol.events import Drain, GroupConfig, Join, Leave
from muster.protocol.records import GroupSnapshot, Move
from muster.state import config, drains, membership, target
from muster.state.draft import Draft
from muster.state.group import Group


class Preview(NamedTuple):
    """What would be asked, and how the answer is told.

    Attributes:
        view: the group as its assignor would see it.
        moves: an assignor's reasons → moves, from members that would be gone as well.
    """

    view: GroupView
    moves: Callable[[Iterable[Reason]], tuple[Move, ...]]


def preview(record: GroupSnapshot, events: Iterable[Join | Leave | Drain | GroupConfig]) -> Preview:
    """The group after some events.

    Args:
        record: the newest record of the group.
        events: absorbed in the order given, all at the group's present time. A join that would be
            turned away (a full group, an id in use) leaves no trace in the view.
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
                config.configure(draft, event)
    draft.drop_gone()
    view = target.view_of(draft, target.seats(draft))
    return Preview(view, lambda reasons: target.moves_of(draft, view, reasons))
