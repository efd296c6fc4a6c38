"""`high-availability`: fewest moves, balanced, and never a cold active while a warm copy exists.

In the order of KIP-925's corrected HA (S2-F25), each step within the counts of the steps before:

1. stateful actives: shares by capacity, the fewest moves, copies put to use;
2. standbys: balanced, as sticky as actives;
3. stateless actives: fair by themselves and together with the stateful ones;
4. staging: warm owners keep running while learners restore at the destinations.

The target is decided from present owners, so every generation decides the same target until the
group changes: learners stay on their way, and a balanced group is left alone.
"""

from __future__ import annotations

import numpy as np

from muster.assignor.actives import Actives, settled_by_copies
from muster.assignor.balance import held
from muster.assignor.copies import Copies
from muster.assignor.model import NOBODY, GroupView, Pairs, Placement, no_pairs
from muster.assignor.shares import Counts
from muster.assignor.staging import Target, stage
from muster.assignor.standby import Wanted, standbys
from muster.assignor.sticky import staying_owner, unplaced, usable_capacity
from muster.assignor.why import explained
from muster.protocol.tasks import IntArray


class HighAvailability:
    """Balanced placement that warms up before it moves."""

    name = "high-availability"

    def assign(self, view: GroupView) -> Placement:
        """Place every task of the view and stage the way there."""
        if not view.members:
            return unplaced(view)
        capacity = usable_capacity(view)
        copies = Copies(view)
        home = staying_owner(view, capacity)
        target, missing = _target(view, copies, home, capacity)
        staged = stage(view, copies, target, capacity > 0)
        return Placement(
            active=staged.active,
            destination=target.active,
            standby=staged.standby,
            learner=staged.learner,
            reasons=explained(view, copies, target, staged),
            unassigned=np.flatnonzero(target.active == NOBODY).astype(np.int32),
            followup_ms=view.settings.probing_rebalance_interval_ms if staged.unfinished else None,
            warnings=_warnings(view, missing),
        )


def _target(
    view: GroupView, copies: Copies, home: IntArray, capacity: Counts
) -> tuple[Target, int]:
    stateful = np.flatnonzero(view.tasks.stateful).astype(np.int32)
    stateless = np.flatnonzero(~view.tasks.stateful).astype(np.int32)
    active = np.full(len(home), NOBODY, dtype=np.int32)
    before: Counts | None = None
    standby: Pairs = no_pairs()
    missing = 0
    if len(stateful):
        mine = Actives(stateful, home[stateful])
        active[stateful] = settled_by_copies(view, copies, mine, capacity)
        before = held(active, len(capacity))
        wanted = Wanted(
            tasks=stateful,
            target=active,
            copies=view.settings.num_standby_replicas,
            capacity=capacity,
        )
        standby, missing = standbys(view, copies, wanted)
    if len(stateless):
        rest = Actives(stateless, home[stateless], before)
        active[stateless] = settled_by_copies(view, copies, rest, capacity)
    return Target(active, standby), missing


def _warnings(view: GroupView, missing: int) -> tuple[str, ...]:
    if not missing:
        return ()
    wanted = view.settings.num_standby_replicas
    return (f"{missing} standbys are missing: too few members for num.standby.replicas={wanted}",)
