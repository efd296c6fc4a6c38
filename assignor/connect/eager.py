"""`eager`: Connect's EagerAssignor (protocol V0), round robin from scratch in every round (S0-02).

Workers and jobs are sorted. All connectors are dealt, then the same cycle continues with all tasks,
connector by connector. The answer depends on the jobs and the workers' ids alone. Kafka stops every
job before such a round; in muster a job whose worker stays the same keeps running.
"""

from __future__ import annotations

import numpy as np

from muster.assignor.connect.jobs import by_id, kinds, require_connect, takers
from muster.assignor.model import NO_MEMBER, GroupView, Placement
from muster.assignor.reason_arrays import Moves, Reasons, changed
from muster.protocol.ids import Role


class Eager:
    """Round robin over sorted workers."""

    name = "eager"

    def assign(self, view: GroupView) -> Placement:
        """Deal every job."""
        require_connect(view)
        return dealt_round_robin(view)


def dealt_round_robin(view: GroupView) -> Placement:
    """The k-th job goes to worker ``k mod n``."""
    owner = np.full(len(view.tasks), NO_MEMBER, dtype=np.int32)
    workers = by_id(view, takers(view))
    if len(workers):
        jobs = np.concatenate(kinds(view.tasks))
        owner[jobs] = workers[np.arange(len(jobs)) % len(workers)]

    def moves() -> list[Moves]:
        return [Moves(Role.ACTIVE, *changed(view.active, owner), lambda *_: "round robin")]

    return Placement(
        active=owner,
        destination=owner,
        reasons=Reasons(moves),
        unassigned=np.flatnonzero(owner == NO_MEMBER).astype(np.int32),
    )
