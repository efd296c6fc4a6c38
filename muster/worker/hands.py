"""What a member has in its hands: tasks it holds, tasks it is stopping, learners that are ready.

Given a newer assignment it says what to release and what to take. One task never has two roles
here at once: what must first stop in one role is taken in the other when it has.
"""

from __future__ import annotations

from muster.protocol.digest import Holding
from muster.protocol.ids import Role
from muster.protocol.records import MemberAssignment
from muster.protocol.tasks import EMPTY, TaskSet
from muster.worker.exchange import Release, Take


class Hands:
    """Tasks by role. Everything starts empty."""

    def __init__(self) -> None:
        self._held: dict[Role, TaskSet] = dict.fromkeys(Role, EMPTY)
        self._stopping: dict[Role, TaskSet] = dict.fromkeys(Role, EMPTY)
        self._ready = EMPTY

    @property
    def empty(self) -> bool:
        """Whether nothing is held."""
        return not any(self._held.values())

    @property
    def stopping(self) -> bool:
        """Whether something asked to stop has not stopped yet."""
        return any(self._stopping.values())

    def holding(self, record: MemberAssignment | None) -> Holding:
        """Everything held; what is stopping and not wanted by `record` counts as given up."""
        wanted = wanted_by(record)
        releasing = EMPTY
        for role in Role:
            releasing = releasing | (self._stopping[role] - wanted[role])
        return Holding(
            active=self._held[Role.ACTIVE],
            standby=self._held[Role.STANDBY],
            learner=self._held[Role.LEARNER],
            ready=self._ready,
            releasing=releasing,
        )

    def give_up(self, record: MemberAssignment, *, everything: bool = False) -> list[Release]:
        """What must stop: all that is held beyond `record`, or everything."""
        wanted = wanted_by(None if everything else record)
        releases = []
        for role in Role:
            beyond = self._held[role] - wanted[role] - self._stopping[role]
            if beyond:
                self._stopping[role] |= beyond
                releases.append(Release(role, beyond, record))
        return releases

    def take(self, record: MemberAssignment) -> list[Take]:
        """What `record` adds and no other role here still has."""
        wanted = wanted_by(record)
        takes = []
        for role in Role:
            added = wanted[role]
            for other in Role:
                added = added - self._held[other]
            if added:
                self._held[role] |= added
                takes.append(Take(role, added, record))
        return takes

    def drop(self, role: Role, tasks: TaskSet) -> None:
        """Tasks have stopped. Those that were not asked to stop are left alone."""
        gone = tasks & self._stopping[role]
        self._held[role] -= gone
        self._stopping[role] -= gone
        if role is Role.LEARNER:
            self._ready -= gone

    def mark_ready(self, tasks: TaskSet) -> bool:
        """Learners have caught up; whether that is news."""
        fresh = (tasks & self._held[Role.LEARNER]) - self._ready
        self._ready |= fresh
        return len(fresh) > 0


def wanted_by(record: MemberAssignment | None) -> dict[Role, TaskSet]:
    """The sets of an assignment by role; all empty without one."""
    if record is None:
        return dict.fromkeys(Role, EMPTY)
    return {
        Role.ACTIVE: record.active,
        Role.STANDBY: record.standby,
        Role.LEARNER: record.learner,
    }
