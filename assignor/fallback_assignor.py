"""`fallback`: keeps every owner, balanced or not, and asks to be run again.

It is for groups whose lags cannot be known (Kafka's FallbackPriorTaskAssignor).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.assignor.copy_lags import Copies
from muster.assignor.model import NO_MEMBER, GroupView, Placement
from muster.assignor.solvers.fewest_moves import held
from muster.assignor.solvers.small_exact import least_uneven_shares
from muster.assignor.sticky_assignor import placed_at_once, unplaced
from muster.assignor.targets.actives import settled_to
from muster.assignor.targets.plan import Planner
from muster.assignor.targets.plan_data import Actives
from muster.assignor.targets.racks import STICKINESS
from muster.protocol.tasks import IntArray


class Fallback:
    """Keeps every owner, and spreads tasks without an owner as evenly as that allows."""

    name = "fallback"

    def assign(self, view: GroupView) -> Placement:
        """Place tasks without an owner, and the standbys."""
        if not view.members:
            return unplaced(view)
        planner = Planner(Copies(view), STICKINESS, at_once=True, bounded=False)
        planner.plan.active = self._kept(planner)
        planner.standbys()
        placement = placed_at_once(planner)
        return replace(placement, followup_ms=view.settings.probing_rebalance_interval_ms)

    def _kept(self, planner: Planner) -> IntArray:
        home, view = planner.home, planner.view
        if not view.unrestricted:
            unowned = np.flatnonzero(home == NO_MEMBER).astype(np.int32)
            planner.plan.active = home.copy()
            planner.actives(unowned, before=held(home, len(view.members)))
            return planner.plan.active
        filled = planner.filled()
        if filled is not None:
            return filled
        actives = Actives(np.arange(len(home), dtype=np.int32), home)
        share = least_uneven_shares(len(home), planner.capacity, held(home, len(view.members)))
        return settled_to(planner.copies, actives, share)
