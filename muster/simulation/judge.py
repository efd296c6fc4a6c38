"""The judge of an ordeal, who knows true time and sees into every process.

Its laws: no active is ever used by two processes at one moment of true time; of one task, the
tokens that processes are given with it only grow from owner to owner, whatever becomes of the
group; a drain holds until it is undone; a `static` group never places a job on a member that may
not run it; and once the faults have stopped the group settles: Stable, every task used that a
member may run, every process holding what the group thinks. The laws of the group itself are
`muster.state.invariants`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from muster.protocol.errors import MusterError
from muster.protocol.events import Drain, Event, GroupDeleted
from muster.protocol.ids import MemberId, Task
from muster.protocol.records import GroupState
from muster.protocol.tasks import TaskSet
from muster.simulation.faults import PINNED
from muster.simulation.process import Process
from muster.state import invariants
from muster.state.group import NO_MEMBER, Group
from muster.state.liveness import FENCED

Token: TypeAlias = tuple[int, int]
"""A fencing token: generation and epoch of the assignment in force."""


class LawBroken(MusterError):
    """Something happened that must never happen. Operator action: none, it is our bug."""


class Judge:
    """Watches who uses what.

    Attributes:
        changes: how often a task was used by another process than before.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._users: dict[Task, list[Process]] = {}
        self._owner: dict[Task, Process] = {}
        self._token: dict[Task, tuple[Token, Process]] = {}

    def uses(self, user: Process, tasks: TaskSet | None, now: float) -> None:
        """A process uses these from now on; None = what it used before, again.

        Raises:
            LawBroken: another one does.
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
        """A process is given these with a token.

        Raises:
            LawBroken: another member had one that is not older; a member that is back under its
                name, after a short leave or a lost lease, may have the one it had.
        """
        for task in tasks:
            newest, owner = self._token.get(task, ((-1, -1), user))
            if token < newest or (token == newest and owner.name != user.name):
                raise LawBroken(f"{user} has {task} with token {token}; {owner} had {newest}")
            self._token[task] = (token, user)


def forgotten_drain(before: Group, events: Iterable[Event], after: Group) -> str | None:
    """A drain that a batch has ended although nobody has undone it; None = there is none."""
    events = tuple(events)
    if before.dead or after.dead or any(isinstance(event, GroupDeleted) for event in events):
        return None  # a group that is deleted keeps none
    undone = {event.member for event in events if isinstance(event, Drain) and not event.on}
    ordered = [(m.id, m.instance_id) for m in before.live() if m.draining]
    ordered += [(kept.member, kept.instance_id) for kept in before.drains]
    kept = {each.member for each in after.drains}
    for name, instance in ordered:
        there = [
            m for m in after.live() if name == m.id or (instance and instance == m.instance_id)
        ]
        holds = all(m.draining for m in there) if there else name in kept
        if not holds and name not in undone:
            return f"the drain of {name} was forgotten"
    return None


def unsettled(group: Group, processes: Sequence[Process], now: float) -> str | None:
    """What is not as it should be in the end; None = the group has settled."""
    if group.state is not GroupState.STABLE or group.recovering:
        return f"{group.state.value}: {group.cause}"
    if (group.target != group.destination).any() or len(group.learner.kept) or group.again:
        return f"learners at work: {group.cause}"
    if group.delay_until_ms is not None:
        return "lost work waits"
    twins = len({process.name for process in processes}) < len(processes)
    for process in processes:
        slot = group.by_id.get(MemberId(process.name))
        held = process.session.holding
        if twins and not len(held):
            continue  # a twin asks in vain
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
    return f"nobody uses {' '.join(idle)}" if idle else None


def able(group: Group, task: str) -> list[MemberId]:
    """Members that may run a task: in a `static` group those that name it, or that name nothing.

    A member that is fenced takes no part, nor does one that has drained for its whole time; one
    that drains gets nothing unless all do, and what it names does not count.
    """
    now, late = group.soft.clock_ms, group.drain_until_ms
    there = [m for m in group.live() if not group.soft.flags[m.slot] & FENCED]
    there = [m for m in there if late.get(m.slot, now + 1) > now] or there
    takers = [m.id for m in there if not m.draining] or [m.id for m in there]
    if group.assignor != "static":
        return takers
    namers = [name for name in takers if task in PINNED.get(name, ())]
    return namers or [name for name in takers if name not in PINNED]


def misplaced(group: Group) -> str | None:
    """A job of a `static` group that is to run where it may not; None = there is none."""
    if group.assignor != "static":
        return None
    for index, slot in enumerate(group.target.tolist()):
        member = None if slot == NO_MEMBER else group.members[slot]
        task = str(group.table.task(index))
        if member is not None and member.id not in (may := able(group, task)):
            return f"{task} is to run on {member.id}, not on {' or '.join(may) or 'nobody'}"
    return None
