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

from muster.assignor.copies import Copies
from muster.assignor.model import NOBODY, GroupView, Placement
from muster.assignor.staging import Target, stage
from muster.assignor.sticky import unplaced
from muster.assignor.targets.plan import Planner
from muster.assignor.targets.racks import AVAILABILITY
from muster.assignor.why import explained


class HighAvailability:
    """Balanced placement that warms up before it moves."""

    name = "high-availability"

    def assign(self, view: GroupView) -> Placement:
        """Place every task of the view and stage the way there."""
        if not view.members:
            return unplaced(view)
        copies = Copies(view)
        planner = Planner(view, copies, AVAILABILITY)
        stateful = view.tasks.stateful
        planner.actives(np.flatnonzero(stateful).astype(np.int32))
        planner.standbys()
        planner.actives(np.flatnonzero(~stateful).astype(np.int32), before=planner.loads())
        planner.refine(at_once=False)
        plan = planner.plan
        target = Target(plan.active, plan.standby)
        staged = stage(view, copies, target, planner.capacity > 0)
        more = staged.unfinished or plan.provisional
        return Placement(
            active=staged.active,
            destination=target.active,
            standby=staged.standby,
            learner=staged.learner,
            reasons=explained(view, copies, target, staged),
            unassigned=np.flatnonzero(staged.active == NOBODY).astype(np.int32),
            followup_ms=view.settings.probing_rebalance_interval_ms if more else None,
            cost=plan.cost,
            cost_lower_bound=plan.bound,
            warnings=plan.warnings,
        )
