"""`sticky`: balanced over capacity, with the fewest moves a balanced answer needs.

Every active stays with its owner unless the owner is gone, is draining, may not take it, or holds
more than its share. No learners: a moved task starts where it lands. Serves plain partitions too.
"""

from __future__ import annotations

import numpy as np

from muster.assignor.balance import held, settle
from muster.assignor.eligible import everyone_takes_everything
from muster.assignor.model import NOBODY, GroupView, Placement
from muster.assignor.partial import settle_by_topics
from muster.assignor.plan import staying_owner, usable_capacity
from muster.assignor.reasons import Moves, Reasons, changed
from muster.assignor.shares import shares
from muster.protocol.ids import Role
from muster.protocol.tasks import IntArray


class Sticky:
    """Balanced placement that moves as little as possible."""

    name = "sticky"

    def assign(self, view: GroupView) -> Placement:
        """Place every active of the view."""
        if not view.members:
            return unplaced(view)
        capacity = usable_capacity(view)
        staying = staying_owner(view, capacity)
        if everyone_takes_everything(view):
            share = shares(len(view.tasks), capacity, held(staying, len(capacity)))
            owner = settle(staying, share)
        else:
            owner = settle_by_topics(view, staying, capacity)
        return Placement(
            active=owner,
            destination=owner,
            reasons=Reasons([_why(view, owner)]),
            unassigned=np.flatnonzero(owner == NOBODY).astype(np.int32),
        )


def unplaced(view: GroupView) -> Placement:
    """The answer for a group without members."""
    nobody = np.full(len(view.tasks), NOBODY, dtype=np.int32)
    return Placement(
        active=nobody,
        destination=nobody,
        unassigned=np.arange(len(view.tasks), dtype=np.int32),
    )


def _why(view: GroupView, owner: IntArray) -> Moves:
    before = held(view.active, len(view.members))
    after = held(owner, len(view.members))

    def text(task: int, source: int, destination: int) -> str:
        if source == NOBODY:
            return "had no owner"
        if view.draining[source]:
            return f"{view.members[source]} is draining"
        return (
            f"balance {before[source]}/{before[destination]}"
            f" -> {after[source]}/{after[destination]}"
        )

    return Moves(Role.ACTIVE, *changed(view.active, owner), text)
