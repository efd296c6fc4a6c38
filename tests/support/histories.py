"""A group's life round by round: what a placement asks for is done, then the next is asked for.

Between two rounds learners and standbys may finish restoring, as Kafka's convergence test lets
them. The assignor's `Placement.active` becomes the owners, its pairs the copies.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from support.placing import Member, group, holdings

from muster.assignor import check
from muster.assignor.model import Assignor, GroupView, Placement
from muster.protocol.tasks import Subtopology


@dataclass
class Life:
    """A simulated group. `members` is who is there and what each holds."""

    assignor: Assignor
    units: list[Subtopology]
    members: dict[str, Member]
    config: dict[str, object] = field(default_factory=dict)

    def view(self) -> GroupView:
        """The group as the assignor sees it now."""
        return group(self.units, self.members, **self.config)

    def round(self) -> tuple[GroupView, Placement]:
        """One placement, checked and carried out; every copy is restored afterwards."""
        view = self.view()
        placement = self.assignor.assign(view)
        check.valid(view, placement)
        for name, (active, standby, learner) in holdings(view, placement).items():
            warm = dict.fromkeys([*standby, *learner], 0)
            self.members[name] = replace(
                self.members[name],
                active=active,
                standby=standby,
                learner=learner,
                ready=learner,
                lag=warm,
            )
        return view, placement

    def converge(self, limit: int) -> int:
        """Rounds until no follow-up is asked for.

        Raises:
            AssertionError: more than `limit` rounds.
        """
        for rounds in range(1, limit + 1):
            _, placement = self.round()
            if placement.followup_ms is None:
                return rounds
        raise AssertionError(f"not converged after {limit} rounds")
