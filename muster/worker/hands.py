"""What a member has in its hands: tasks it holds, tasks it is stopping, copies that are ready.

Given a newer assignment it says what to release and what to take. One task never has two roles
here at once. A copy that becomes active, or changes between standby and learner, changes its role
at once: its state stays, and nothing is released. An active that becomes a copy stops first.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.digest import Holding
from muster.protocol.ids import Role
from muster.protocol.records import MemberAssignment
from muster.protocol.tasks import EMPTY, TaskSet
from muster.worker.exchange import Release, Take, Wanted

COPIES: Final = (Role.STANDBY, Role.LEARNER)


class Hands:
    """Tasks by role. Everything starts empty."""

    def __init__(self) -> None:
        self._held: dict[Role, TaskSet] = dict.fromkeys(Role, EMPTY)
        self._stopping: dict[Role, TaskSet] = dict.fromkeys(Role, EMPTY)
        self._ready = EMPTY
        self._wanted = EMPTY  # copies the user was told to restore first

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
            if role is not Role.ACTIVE:  # a copy keeps its state in any other role
                for other in Role:
                    beyond = beyond - wanted[other]
            if beyond:
                self._stopping[role] |= beyond
                releases.append(Release(role, beyond, record))
        return releases

    def take(self, record: MemberAssignment) -> list[Take | Wanted]:
        """What `record` adds and wants, but for tasks that must stop in another role first.

        A copy that becomes active is taken as active; one that changes between standby and learner
        only counts in the other role from now on.
        """
        wanted = wanted_by(record)
        takes: list[Take | Wanted] = []
        for role in Role:
            added = wanted[role] - self._held[Role.ACTIVE] - self._held[role]
            for stopping in self._stopping.values():
                added = added - stopping
            copies = EMPTY
            for other in COPIES:
                copies = copies | (self._held[other] & added)
                self._held[other] -= added
            self._held[role] |= added
            if role is Role.ACTIVE:
                self._ready -= added
            else:
                added = added - copies
            if added:
                takes.append(Take(role, added, record))
        held = self._held[Role.STANDBY] | self._held[Role.LEARNER]
        before, self._wanted = self._wanted, (record.learner | record.next) & held
        if news := self._wanted - before:
            takes.append(Wanted(news, record))
        return takes

    def drop(self, role: Role, tasks: TaskSet) -> None:
        """Tasks have stopped. Those that were not asked to stop are left alone."""
        gone = tasks & self._stopping[role]
        self._held[role] -= gone
        self._stopping[role] -= gone
        if role is not Role.ACTIVE:
            self._ready -= gone

    def mark_ready(self, tasks: TaskSet) -> bool:
        """Copies have caught up; whether that is news."""
        copies = self._held[Role.STANDBY] | self._held[Role.LEARNER]
        fresh = (tasks & copies) - self._ready
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
