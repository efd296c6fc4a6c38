"""The checker of a run with faults: it knows true time and the state of every process.

Its laws:

- No active is used by two processes at one moment of true time.
- The fencing tokens of a task grow from owner to owner, even if the group is deleted and recreated.
- A drain holds until it is undone.
- A `static` group never places a job on a member that may not run it.
- When the faults have stopped, the group settles: it is Stable, every task is used that a member
  may run, and every process holds what the group records for it.

The laws of the group itself are in `muster.state.invariants`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from fault_injection.faults import PINNED
from fault_injection.faulty_jobs import FaultyJob
from fault_injection.process import Process

from muster.protocol.errors import MusterError
from muster.protocol.events import Drain, Event, GroupDeleted
from muster.protocol.ids import MemberId, Task
from muster.protocol.tasks import TaskSet
from muster.state import invariants
from muster.state.group import Group
from muster.state.liveness import DEAF, FENCED
from muster.state.machine import Step
from muster.state.ownership import NO_MEMBER
from muster.testing.settled import still_moving

Token: TypeAlias = tuple[int, int]
"""A fencing token: generation and epoch of the assignment in force."""


class LawBroken(MusterError):
    """A law was broken. Operator action: none, it is a bug in muster."""


class Checker:
    """Checks which process uses which task.

    Attributes:
        changes: how often a task was used by a different process than before.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._users: dict[Task, list[Process]] = {}
        self._owner: dict[Task, Process] = {}
        self._token: dict[Task, tuple[Token, Process]] = {}

    def uses(self, user: Process, tasks: TaskSet | None, now: float) -> None:
        """A process uses these tasks from now on; None = again those it used before.

        Raises:
            LawBroken: another process uses one of them.
        """
        for task in user.using if tasks is None else tasks:
            others = [
                process
                for process in self._users.get(task, ())
                if process is not user and process.alive and task in process.using
            ]
            for other in others:
                if now < other.guard_ends:
                    raise LawBroken(f"{task} is used by {other} and by {user}")
            if self._owner.get(task) is not user:
                self._owner[task] = user
                self.changes += 1
            self._users[task] = [*others, user]

    def granted(self, user: Process, tasks: TaskSet, token: Token) -> None:
        """A process is granted these tasks with a token.

        Raises:
            LawBroken: the token is older than one granted before, or another member had the same.
                A member that returns under its name or instance id, after a short leave or a lost
                lease, may get the token it had.
        """
        for task in tasks:
            newest, owner = self._token.get(task, ((-1, -1), user))
            if token < newest or (token == newest and owner.identity != user.identity):
                raise LawBroken(f"{user} has {task} with token {token}; {owner} had {newest}")
            self._token[task] = (token, user)


class CheckedJob(FaultyJob):
    """A coordinator whose every decision is checked."""

    def decide(self, events: Sequence[Event]) -> Step:
        """Compute the step for a batch of events.

        Raises:
            InvariantViolation: an invariant of the group does not hold.
            LawBroken: a drain was forgotten, or a job was placed where it may not run.
        """
        step = super().decide(events)
        broken = forgotten_drain(self.group, events, step.group)
        is_placed = step.group.target.generation > self.group.target.generation
        # With the answer from aside a new config may come, which the next generation places.
        if broken is None and is_placed and not step.group.target.is_overtaken:
            broken = misplaced(step.group)
        if broken is not None:
            raise LawBroken(broken)
        return step


def forgotten_drain(before: Group, events: Iterable[Event], after: Group) -> str | None:
    """Describe a drain that a batch has ended although no event undid it; None = there is none."""
    events = tuple(events)
    if before.dead or after.dead or any(isinstance(event, GroupDeleted) for event in events):
        return None  # a deleted group has no drains
    undone = {event.member for event in events if isinstance(event, Drain) and not event.on}
    ordered = [(m.id, m.instance_id) for m in before.roster if m.draining]
    ordered += [(kept.member, kept.instance_id) for kept in before.drains]
    kept = {each.member for each in after.drains}
    for name, instance in ordered:
        there = [
            m for m in after.roster if name == m.id or (instance and instance == m.instance_id)
        ]
        holds = all(m.draining for m in there) if there else name in kept
        if not holds and name not in undone:
            return f"the drain of {name} was forgotten"
    return None


def unsettled(group: Group, processes: Sequence[Process], now: float) -> str | None:
    """Describe why the group has not settled; None = it has."""
    if len(group.table) and (moving := still_moving(group)) is not None:
        return moving
    twins = len({process.name for process in processes}) < len(processes)
    is_full = len(group.roster) >= group.settings.group_max_size
    for process in processes:
        slot = group.roster.by_id.get(MemberId(process.name))
        held = process.session.holding
        if (twins or is_full or has_rival(process, processes)) and not len(held):
            continue  # the group refuses a process while the session of another one lives
        if slot is None:
            return f"{process} is no member ({process.session.state.value})"
        if invariants.holding_of(group, slot).digest() != held.digest():
            return f"{process} holds {held}, not {invariants.holding_of(group, slot)}"
    wrong = misplaced(group)
    if wrong is not None:
        return wrong
    used = {task for process in processes for task in process.using if now < process.guard_ends}
    tasks = map(group.table.task, range(len(group.table)))
    idle = [str(task) for task in tasks if task not in used and able(group, str(task))]
    return f"no member uses {' '.join(idle)}" if idle else None


def has_rival(process: Process, processes: Sequence[Process]) -> bool:
    """Whether another process has the member id or the instance id of this one."""
    return any(
        other is not process and (other.name == process.name or other.identity == process.identity)
        for other in processes
    )


def able(group: Group, task: str) -> list[MemberId]:
    """Members that may run a task.

    In a `static` group these are the members that name the task, or if none does, the members that
    name nothing. Fenced and deaf members, and those whose time for draining has ended, do
    not count. Draining members count only if all drain, and only then does what they name count.
    """
    now, late = group.sessions.clock_ms, group.timers.drain_until_ms
    there = [m for m in group.roster if not group.sessions.flags[m.slot] & (FENCED | DEAF)]
    there = [m for m in there if late.get(m.slot, now + 1) > now] or there
    takers = [m.id for m in there if not m.draining] or [m.id for m in there]
    if group.assignor != "static":
        return takers
    namers = [name for name in takers if task in PINNED.get(name, ())]
    return namers or [name for name in takers if name not in PINNED]


def misplaced(group: Group) -> str | None:
    """Describe a job of a `static` group placed where it may not run; None = there is none."""
    if group.assignor != "static":
        return None
    for index, slot in enumerate(group.target.active.tolist()):
        member = None if slot == NO_MEMBER else group.roster.by_slot[slot]
        task = str(group.table.task(index))
        if member is not None and member.id not in (may := able(group, task)):
            return f"{task} is to run on {member.id}, not on {' or '.join(may) or 'any member'}"
    return None
