"""`cooperative`: Kafka Connect's default; one round stops jobs, a later one starts them."""

from __future__ import annotations

from muster.assignor.connect.protocols import by_protocol
from muster.assignor.model import GroupView, Placement


class Cooperative:
    """IncrementalCooperativeAssignor; `connect.protocol` limits what the group may speak."""

    name = "cooperative"

    def assign(self, view: GroupView) -> Placement:
        """One round.

        Raises:
            AssignorError: no protocol in common.
        """
        return by_protocol(view, view.settings.connect_protocol)
