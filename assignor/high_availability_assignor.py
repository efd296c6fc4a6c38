"""`high-availability`: fewest moves, balanced, and no cold active while a warm copy exists.

The steps are those of KIP-925's corrected HA (S2-F25). Each keeps the counts of the steps before:

1. stateful actives: shares by capacity from which step 3 can balance both kinds together, the
   fewest moves, existing copies used;
2. standbys: balanced, as sticky as actives;
3. stateless actives: balanced by themselves and together with the stateful ones;
4. staging: warm owners keep running while learners restore at the destinations;
5. meanwhile stateless actives balance the load that runs now, not the final load.

An owner that reports it is still restoring loses its task to another copy as soon as that is warm.

The target follows from present owners, so every generation computes the same one until the group
changes: learners are not abandoned, and a balanced group is left alone. The target of stateful
tasks depends on how many stateless ones there are, not on where they run, because those move back
and forth while learners restore.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.assignor.actives_until_warm import Target, stage, with_fallback_owners
from muster.assignor.copy_lags import Copies
from muster.assignor.model import NO_MEMBER, GroupView, Placement
from muster.assignor.sticky_assignor import placement_of, unplaced
from muster.assignor.targets.plan import Planner
from muster.assignor.targets.racks import AVAILABILITY


class HighAvailability:
    """Balanced placement that restores state before it moves a task."""

    name = "high-availability"

    def assign(self, view: GroupView) -> Placement:
        """Place every task of the view and stage the moves."""
        if not view.members:
            return unplaced(view)
        original, view = view, without_overtaken(view)
        copies = Copies(view)
        planner = Planner(copies, AVAILABILITY)
        stateful = view.tasks.stateful
        later = int(np.count_nonzero(~stateful))
        planner.actives(np.flatnonzero(stateful).astype(np.int32), later=later)
        planner.standbys()
        planner.refine()
        planner.actives(np.flatnonzero(~stateful).astype(np.int32), before=planner.loads())
        if int(view.active.max(initial=NO_MEMBER)) == NO_MEMBER:
            planner.refine()  # nothing runs yet: refine both kinds together
        plan = planner.plan
        target = Target(plan.active, plan.standby)
        staged = stage(copies, target, planner.capacity > 0)
        meanwhile = with_fallback_owners(planner.meanwhile(staged.active), copies)
        staged = replace(staged, active=meanwhile)
        destination = target.active
        if view.draining.any():  # a draining member must not learn what it then gives up
            drains = view.draining[destination] & (stateful | view.draining.all())
            destination = np.where(drains, staged.active, destination).astype(np.int32)
        unfinished = staged.unfinished or plan.provisional
        return replace(
            placement_of(original, plan, target, staged),
            destination=destination,
            followup_ms=view.settings.probing_rebalance_interval_ms if unfinished else None,
        )


def without_overtaken(view: GroupView) -> GroupView:
    """The view without owners that still restore a task of which another copy is warm."""
    tasks = Copies(view).overtaken()
    if len(tasks) == 0:
        return view
    active = view.active.copy()
    active[tasks] = NO_MEMBER
    return replace(view, active=active)
