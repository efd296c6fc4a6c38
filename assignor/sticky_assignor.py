"""`sticky`: keeps tasks where they are, as far as balance allows.

`sticky` balances by capacity with the fewest moves a balanced answer needs: a task stays with its
owner unless the owner is gone, is draining, may not take the task, or holds more than its share. A
task that moves goes to a member with a copy if one has room, and starts there at once: there are no
learners. `sticky` serves plain partitions too.
"""

from __future__ import annotations

import numpy as np

from muster.assignor.actives_until_warm import Staged, Target, with_fallback_owners
from muster.assignor.copy_lags import Copies
from muster.assignor.model import NO_MEMBER, GroupView, Placement, no_pairs
from muster.assignor.reason_texts import explained
from muster.assignor.targets.plan import Planner
from muster.assignor.targets.plan_data import Plan
from muster.assignor.targets.racks import STICKINESS


class Sticky:
    """Balanced placement that moves as little as possible."""

    name = "sticky"

    def assign(self, view: GroupView) -> Placement:
        """Place every active and standby of the view."""
        if not view.members:
            return unplaced(view)
        planner = Planner(Copies(view), STICKINESS, at_once=True)
        planner.everything()
        planner.standbys()
        return placed_at_once(planner)


def placed_at_once(planner: Planner) -> Placement:
    """Turn a plan into a placement without learners."""
    planner.refine()
    plan = planner.plan
    owner = with_fallback_owners(plan.active, planner.copies)
    staged = Staged(owner, plan.standby, no_pairs())
    target = Target(plan.active, plan.standby)
    return placement_of(planner.view, plan, target, staged, at_once=True)


def placement_of(
    view: GroupView,
    plan: Plan,
    target: Target,
    staged: Staged,
    *,
    by_number: bool = False,
    at_once: bool = False,
) -> Placement:
    """What this generation asks for on the way to a target, with reasons (see `explained`)."""
    return Placement(
        active=staged.active,
        destination=target.active,
        standby=staged.standby,
        learner=staged.learner,
        reasons=explained(view, target, staged, by_number=by_number, at_once=at_once),
        unassigned=np.flatnonzero(staged.active == NO_MEMBER).astype(np.int32),
        cost=plan.cost,
        cost_lower_bound=plan.bound,
        warnings=plan.warnings,
    )


def unplaced(view: GroupView) -> Placement:
    """The answer for a group without members."""
    no_member = np.full(len(view.tasks), NO_MEMBER, dtype=np.int32)
    return Placement(
        active=no_member,
        destination=no_member,
        unassigned=np.arange(len(view.tasks), dtype=np.int32),
    )
