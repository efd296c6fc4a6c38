"""`static`: KIP-987. Workers name jobs that they run; the other workers share the other jobs.

The eight steps: tell static from wildcard workers (1) and jobs (2); stop what runs on the wrong
worker (3-5); start static jobs on workers that name them (6); play a cooperative round with the
wildcard jobs and workers (7-8). A static job never waits for a delay. Without a wildcard worker,
jobs that no worker names are reported as unassigned.

The rounds are cooperative if not every worker speaks ``static`` (S0-09), if no worker names a job
(S0-22), or if `connect.protocol` is `sessioned` or `compatible`; with `eager` they are round robin.
"""

from __future__ import annotations

from muster.assignor.connect.protocols import by_protocol
from muster.assignor.model import GroupView, Placement


class Static:
    """Cooperative rounds with static assignments, unless `connect.protocol` is below `static`."""

    name = "static"

    def assign(self, view: GroupView) -> Placement:
        """One round.

        Raises:
            AssignorError: no protocol in common.
        """
        return by_protocol(view, view.settings.connect_protocol)
