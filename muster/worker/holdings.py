"""What a member holds: its tasks by role, those it is releasing, and copies that are ready.

Given a newer assignment, `Holdings` says what to release and what to take. A task has one role at a
time. A copy that becomes active, or changes between standby and learner, changes its role at once:
its state stays and nothing is released. An active that becomes a copy is released first.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.digest import Holding
from muster.protocol.ids import Role
from muster.protocol.records import MemberAssignment
from muster.protocol.tasks import EMPTY, TaskSet
from muster.worker.session_messages import Release, Take, Wanted

COPIES: Final = (Role.STANDBY, Role.LEARNER)


class Holdings:
    """The tasks of one session, which may run some actives already."""

    def __init__(self, active: TaskSet = EMPTY) -> None:
        self._held: dict[Role, TaskSet] = {**dict.fromkeys(Role, EMPTY), Role.ACTIVE: active}
        self._releasing: dict[Role, TaskSet] = dict.fromkeys(Role, EMPTY)
        self._ready = EMPTY
        self._fell_behind = EMPTY  # copies that were ready, and then were not
        self._wanted = EMPTY  # copies the user was asked to restore first

    @property
    def empty(self) -> bool:
        """Whether nothing is held."""
        return not any(self._held.values())

    @property
    def releasing(self) -> bool:
        """Whether a released task has not stopped yet."""
        return any(self._releasing.values())

    def as_of(self, record: MemberAssignment | None) -> Holding:
        """Everything held, as events carry it.

        A task that is stopping counts as being released, unless `record` assigns it again.
        """
        assigned = tasks_by_role(record)
        releasing = EMPTY
        for role in Role:
            releasing = releasing | (self._releasing[role] - assigned[role])
        return Holding(
            active=self._held[Role.ACTIVE],
            standby=self._held[Role.STANDBY],
            learner=self._held[Role.LEARNER],
            ready=self._ready,
            releasing=releasing,
        )

    def release(self, record: MemberAssignment, *, everything: bool = False) -> list[Release]:
        """Release what is held beyond `record`, or everything."""
        assigned = tasks_by_role(None if everything else record)
        releases = []
        for role in Role:
            surplus = self._held[role] - assigned[role] - self._releasing[role]
            if role is not Role.ACTIVE:  # a copy keeps its state in any other role
                for other in Role:
                    surplus = surplus - assigned[other]
            if surplus:
                self._releasing[role] |= surplus
                releases.append(Release(role, surplus, record))
        return releases

    def take(self, record: MemberAssignment) -> list[Take | Wanted]:
        """Take what `record` adds, except tasks that still have to stop in another role.

        A copy that becomes active is taken as active. One that changes between standby and learner
        only changes its role here.
        """
        assigned = tasks_by_role(record)
        takes: list[Take | Wanted] = []
        for role in Role:
            added = assigned[role] - self._held[Role.ACTIVE] - self._held[role]
            for releasing in self._releasing.values():
                added = added - releasing
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
        if newly_wanted := self._wanted - before:
            takes.append(Wanted(newly_wanted, record))
        return takes

    def drop(self, role: Role, tasks: TaskSet) -> None:
        """Tasks have stopped. Those that are not being released are ignored."""
        stopped = tasks & self._releasing[role]
        self._held[role] -= stopped
        self._releasing[role] -= stopped
        if role is not Role.ACTIVE:
            self._ready -= stopped
            self._fell_behind -= stopped

    def mark_ready(self, tasks: TaskSet) -> TaskSet:
        """Copies have caught up. Return those that were not known to be ready."""
        copies = self._held[Role.STANDBY] | self._held[Role.LEARNER]
        newly_ready = (tasks & copies) - self._ready
        self._ready |= newly_ready
        return newly_ready

    def mark_behind(self, tasks: TaskSet) -> None:
        """Copies are behind, whatever was said of them before."""
        self._fell_behind |= self._ready & tasks
        self._ready -= tasks

    def fell_behind(self, tasks: TaskSet) -> bool:
        """Whether each of these copies has been ready and then behind."""
        return not tasks - self._fell_behind


def tasks_by_role(record: MemberAssignment | None) -> dict[Role, TaskSet]:
    """The task sets of an assignment; all empty without one."""
    if record is None:
        return dict.fromkeys(Role, EMPTY)
    return dict(zip(Role, (record.active, record.standby, record.learner), strict=True))
