"""`high-availability`: fewest moves, balanced, and never a cold active while a warm copy exists.

In the order of KIP-925's corrected HA (S2-F25), each step within the counts of the steps before:

1. stateful actives: shares by capacity, the fewest moves, copies put to use;
2. standbys: balanced, as sticky as actives;
3. stateless actives: fair by themselves and together with the stateful ones;
4. staging: warm owners keep running while learners restore at the destinations;
5. while learners restore, stateless actives fill the load that runs now, not the load of the end.

An owner that says it is still restoring has a copy like others as soon as a copy elsewhere is
warm: that one runs the task at once.

The target is decided from present owners, so every generation decides the same target until the
group changes: learners stay on their way, and a balanced group is left alone. That of the stateful
tasks does not look at stateless ones, which move to and fro meanwhile.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.assignor.copies import Copies
from muster.assignor.model import NO_MEMBER, GroupView, Placement
from muster.assignor.staging import Target, kept_for_want, stage
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
        given, view = view, without_overtaken(view)
        copies = Copies(view)
        planner = Planner(view, copies, AVAILABILITY)
        stateful = view.tasks.stateful
        planner.actives(np.flatnonzero(stateful).astype(np.int32))
        planner.standbys()
        planner.refine(at_once=False)
        planner.actives(np.flatnonzero(~stateful).astype(np.int32), before=planner.loads())
        if int(view.active.max(initial=NO_MEMBER)) == NO_MEMBER:
            planner.refine(at_once=False)  # nothing waits: both kinds may be looked at together
        plan = planner.plan
        target = Target(plan.active, plan.standby)
        staged = stage(view, copies, target, planner.capacity > 0)
        meanwhile = kept_for_want(planner.meanwhile(staged.active), copies)
        staged = replace(staged, active=meanwhile)
        destination = target.active
        if view.draining.any():  # all of them: no member is to learn what it then gives up
            idle = view.draining[destination] & (stateful | view.draining.all())
            destination = np.where(idle, staged.active, destination).astype(np.int32)
        more = staged.unfinished or plan.provisional
        return Placement(
            active=staged.active,
            destination=destination,
            standby=staged.standby,
            learner=staged.learner,
            reasons=explained(given, Copies(given), target, staged),
            unassigned=np.flatnonzero(staged.active == NO_MEMBER).astype(np.int32),
            followup_ms=view.settings.probing_rebalance_interval_ms if more else None,
            cost=plan.cost,
            cost_lower_bound=plan.bound,
            warnings=plan.warnings,
        )


def without_overtaken(view: GroupView) -> GroupView:
    """The view in which no member runs what its owner restores and another copy is warm of."""
    tasks = Copies(view).overtaken()
    if len(tasks) == 0:
        return view
    active = view.active.copy()
    active[tasks] = NO_MEMBER
    return replace(view, active=active)
