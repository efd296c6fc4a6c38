"""`static`: KIP-987. Workers name the jobs they run; the rest is spread over the other workers.

Eight steps: static and wildcard workers (1), static and wildcard jobs (2), stop what runs in the
wrong place (3-5), start static jobs on workers that name them (6), and play a cooperative round
with the wildcard jobs on the wildcard workers (7-8). A static job never waits for a delay: every
worker that names it may run it. Without a wildcard worker, jobs that no worker names are reported
as unassigned. A group in which not every worker speaks ``static`` is a cooperative group (S0-09);
so is one in which no worker names anything (S0-22), and one whose `connect.protocol` is set to
`sessioned` or `compatible`. `eager` makes it deal round robin.
"""

from __future__ import annotations

from muster.assignor.connect.protocols import by_protocol
from muster.assignor.model import GroupView, Placement


class Static:
    """Static assignments over cooperative rounds, unless `connect.protocol` is below `static`."""

    name = "static"

    def assign(self, view: GroupView) -> Placement:
        """One round.

        Raises:
            AssignorError: no protocol in common.
        """
        return by_protocol(view, view.settings.connect_protocol)
