"""A group round by round: each placement is carried out, then the assignor is called again.

Between two rounds learners and standbys may finish restoring, as Kafka's convergence test lets
them. The assignor's `Placement.active` becomes the owners, its pairs the copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from support.assignor.placing import Member, group, holdings

from muster.assignor import check
from muster.assignor.model import Assignor, GroupView, Placement
from muster.protocol.tasks import Subtopology

BEHIND = 1_000_000
"""Lag of a copy that still restores."""


def everything(name: str, task: str) -> bool:
    """Let every copy be restored between two rounds."""
    return True


@dataclass
class Life:
    """A simulated group.

    Attributes:
        assignor: who places.
        units: its tasks.
        members: who is there and what each holds.
        config: its settings.
        restored: whether a member finishes restoring a task before the next round.
    """

    assignor: Assignor
    units: list[Subtopology]
    members: dict[str, Member]
    config: dict[str, object] = field(default_factory=dict)
    restored: Callable[[str, str], bool] = everything

    def view(self) -> GroupView:
        """The group as the assignor sees it now."""
        return group(self.units, self.members, **self.config)

    def round(self) -> tuple[GroupView, Placement]:
        """Compute one placement, check it, and carry it out; then copies restore."""
        view = self.view()
        placement = self.assignor.assign(view)
        check.valid(view, placement)
        for name, (active, standby, learner) in holdings(view, placement).items():
            before = self.members[name]
            warm = {t for t in before.lag if before.lag[t] == 0} | set(before.active)
            done = {t for t in [*standby, *learner] if t in warm or self.restored(name, t)}
            self.members[name] = replace(
                before,
                active=active,
                standby=standby,
                learner=learner,
                ready=[t for t in learner if t in done],
                lag={t: 0 if t in done else BEHIND for t in [*standby, *learner]},
            )
        return view, placement

    def converge(self, limit: int) -> int:
        """Play rounds until no follow-up is due.

        Raises:
            AssertionError: more than `limit` rounds.
        """
        for rounds in range(1, limit + 1):
            _, placement = self.round()
            if placement.followup_ms is None:
                return rounds
        raise AssertionError(f"not converged after {limit} rounds")
