"""Checks the promises of every group, during a random life and at its end.

At the end, after hours without an event:

- *settled*: every active is at its destination, no move is under way, no follow-up is due;
- *balanced*: every member has its share by capacity, as the group's assignor promises it;
- *copies*: every stateful task has its standbys, as far as members can keep them, and no learner;
- *honest*: every member holds what the group records for it.

At all times, if the assignor stages moves: no active is placed on a member whose copy is behind
while another member that may run it has reported a copy that has caught up. A report counts as long
as the member keeps the copy, in any role. A report about state on a disk that is not a copy yet
counts for `probing.rebalance.interval.ms`. This file reads the reports from the events; it shares
no code with the coordinator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from muster.protocol.digest import Holding
from muster.protocol.events import Event, GroupConfig, Heartbeat, Join, Lag, LagReport, Report, Tick
from muster.protocol.ids import Role, Task
from muster.protocol.records import GroupState, MemberEntry
from muster.protocol.tasks import IntArray, TaskTable
from muster.simulation.member import SimulatedMember
from muster.state import invariants
from muster.state.group import Group
from muster.state.liveness import DEAF, FENCED
from muster.state.ownership import NO_MEMBER, slot_of, task_of

STAGING = ("high-availability", "learner")
"""Assignors that warm up before they move."""
BALANCING = (*STAGING, "sticky")
"""Assignors that give every member its share in the end."""
COPYING = (*BALANCING, "fallback")
"""Assignors that keep the configured number of standbys."""
Pair = tuple[Task, str]


class Reported(NamedTuple):
    """A member's newest report about a copy.

    Attributes:
        near: whether the copy has caught up.
        at_ms: when the member reported it.
        kept: whether the copy has a role, and the report counts until it loses it; otherwise the
            report is about old state on the disk.
    """

    near: bool
    at_ms: int
    kept: bool = False


@dataclass(slots=True)
class Promises:
    """Checks one life.

    Attributes:
        broken: descriptions of broken promises, oldest first.
    """

    broken: list[str] = field(default_factory=list)
    _reports: dict[Pair, Reported] = field(default_factory=dict)
    _ran: set[Task] = field(default_factory=set)

    # ------------------------------------------------------------------------------ during a life

    def check_batch(self, at_ms: int, before: Group, batch: Sequence[Event], after: Group) -> None:
        """Check what the group did with a batch of events."""
        held = np.flatnonzero(before.owned.holder != NO_MEMBER).tolist()
        self._ran.update(before.table.task(index) for index in held)
        placed = after.target.generation != before.target.generation
        if not placed and all(isinstance(event, Heartbeat | Tick) for event in batch):
            return
        self._drop(at_ms, before)  # batches of heartbeats alone return above and drop nothing
        freed: set[Pair] = set()
        for event in batch:
            match event:
                case Join() if _is_in(after, event):
                    self._forget(event.member)
                    self._note(event.member, event.holding.ready, event.lags, after, at_ms)
                case Report() if _is_in(after, event):
                    self._forget_stopped(event, before)
                    self._note_released(event, at_ms, before, after)
                    ran = _tasks_at(before, before.owned.holder, event.member)
                    due = _tasks_at(before, before.target.active, event.member)
                    gone = ran - {*event.holding.active} - due
                    freed.update((task, event.member) for task in gone)
                    self._note(event.member, event.holding.ready, event.lags, after, at_ms)
                case LagReport():
                    self._note(event.member, (), event.lags, after, at_ms)
                case GroupConfig():
                    self._forget_removed(TaskTable(event.tasks))
                case _:
                    pass
        if placed and after.assignor in STAGING:
            self._check_placement(at_ms, before, after, freed)
        self._drop(at_ms, after)

    def _forget(self, member: str) -> None:
        self._reports = {pair: last for pair, last in self._reports.items() if pair[1] != member}

    def _forget_removed(self, table: TaskTable) -> None:
        """Forget tasks that a config leaves out; one that is declared again begins anew."""
        left = {table.task(index) for index in range(len(table))}
        self._ran &= left
        self._reports = {pair: last for pair, last in self._reports.items() if pair[0] in left}

    def _forget_stopped(self, event: Report, before: Group) -> None:
        """Forget copies that the member has stopped, even if it restores them again at once.

        A copy that it has not started yet was not stopped: a report about its disk still counts.
        """
        slot = before.roster.by_id.get(event.member)
        had = _held(Holding() if slot is None else invariants.holding_of(before, slot))
        stopped = had - _held(event.holding)
        for pair, last in list(self._reports.items()):
            if last.kept and pair[1] == event.member and pair[0] in stopped:
                del self._reports[pair]

    def _note_released(self, event: Report, at_ms: int, before: Group, after: Group) -> None:
        """A member that stops a task which it ran, and should keep a copy of it, has caught up."""
        slot = before.roster.by_id.get(event.member)
        if slot is None or before.table is not after.table:
            return
        stopped = np.flatnonzero((before.owned.holder == slot) & before.owned.revoking).tolist()
        for index in stopped:
            task, pair = before.table.task(index), index << 32 | slot
            is_kept = any(
                bool((copies.wanted == pair).any())
                for group in (before, after)
                for copies in group.owned.copies.values()
            )
            if is_kept and task not in event.holding.active:
                last = self._reports.get((task, event.member))
                if last is None or last.near:
                    self._reports[task, event.member] = Reported(True, at_ms, kept=True)

    def _note(
        self,
        member: str,
        ready: Iterable[Task],
        lags: Iterable[Lag],
        group: Group,
        at_ms: int,
    ) -> None:
        limit = group.settings.acceptable_recovery_lag
        for task, offsets in lags:
            last = self._reports.get((task, member))
            kept = last is not None and last.kept
            self._reports[task, member] = Reported(offsets <= limit, at_ms, kept)
        self._reports |= {(task, member): Reported(True, at_ms, kept=True) for task in ready}

    def _drop(self, at_ms: int, group: Group) -> None:
        """Forget reports about copies without a role, and old reports about state on a disk."""
        since_ms = at_ms - group.settings.probing_rebalance_interval_ms
        for pair, last in list(self._reports.items()):
            if _keeps(group, *pair):
                self._reports[pair] = last._replace(kept=True)
            elif last.kept or last.at_ms < since_ms or pair[1] not in group.roster.by_id:
                del self._reports[pair]

    def _near(self, task: Task, member: str) -> bool | None:
        last = self._reports.get((task, member))
        return None if last is None else last.near

    def _check_placement(self, at_ms: int, before: Group, after: Group, freed: set[Pair]) -> None:
        """Check each placed stateful active: no other member has a better copy.

        A member that stopped a task in this batch (`freed`), keeps no copy and was not to get the
        task back does not count.
        """
        for index in np.flatnonzero(
            after.table.stateful & (after.target.active != NO_MEMBER)
        ).tolist():
            member = after.roster.by_slot[int(after.target.active[index])]
            if member is None or member.away:
                continue
            task, name = after.table.task(index), member.id
            if task not in self._ran:  # it has no state yet
                continue
            owner = _owner(before, task, after)
            if owner is not None and (task, owner) in freed:
                owner = None
            near = self._near(task, name)
            if near or (near is None and name == owner):
                continue
            better = [
                other
                for other in self._warm(task, owner, after)
                if other != name and not _is_dropping(before, task, other)
            ]
            if better:
                stays = "stays" if name == owner else "starts"
                self.broken.append(
                    f"cold: at {at_ms:,} ms {task} {stays} on {name}, whose copy is behind,"
                    f" while {', '.join(better)} has caught up"
                    f" (generation {after.target.generation}: {after.cause})"
                )

    def _warm(self, task: Task, owner: str | None, group: Group) -> list[str]:
        """Members that have caught up with a task and may run it."""
        warm: list[str] = []
        for member in group.roster:
            near = self._near(task, member.id)
            may = member.topics is None or task.unit in member.topics
            fenced = bool(group.sessions.flags[member.slot] & (FENCED | DEAF))
            if member.draining or member.away or fenced or not may:
                continue
            if near or (near is None and member.id == owner):
                warm.append(member.id)
        return warm


def _tasks_at(group: Group, slots: IntArray, member: str) -> set[Task]:
    """The tasks at a member; `slots` (int32[T]) has each task's holder, or its destination."""
    slot = group.roster.by_id.get(member)
    if slot is None:
        return set()
    return {group.table.task(index) for index in np.flatnonzero(slots == slot).tolist()}


def _held(holding: Holding) -> set[Task]:
    return {*holding.active, *holding.standby, *holding.learner}


def _may_run(group: Group, task: int) -> bool:
    """Whether some member that is not drained may run a task."""
    unit = group.table.task(task).unit
    if group.assignor == "static":
        name = str(group.table.task(task))
        takers = [m for m in group.roster if not m.draining] or list(group.roster)
        is_named = any(name in m.static for m in takers)
        return is_named or any(not m.static for m in takers)
    return any(not m.draining and (m.topics is None or unit in m.topics) for m in group.roster)


def _name(group: Group, slot: int) -> str:
    member = None if slot == NO_MEMBER else group.roster.by_slot[slot]
    return "" if member is None else member.id


def _owner(group: Group, task: Task, after: Group) -> str | None:
    """The owner of a task, if it is still a member: a new member of its name does not count."""
    index = group.table.find(task)
    if index is None or group.owned.holder[index] == NO_MEMBER:
        return None
    member = group.roster.by_slot[int(group.owned.holder[index])]
    slot = None if member is None else after.roster.by_id.get(member.id)
    member_after = None if slot is None else after.roster.by_slot[slot]
    if member is None or member_after is None or member_after.joined_ms != member.joined_ms:
        return None
    return member.id


def _is_in(group: Group, event: Join | Report) -> bool:
    """Whether the group accepted the event as one of the member's own session."""
    slot = group.roster.by_id.get(event.member)
    member = None if slot is None else group.roster.by_slot[slot]
    return member is not None and member.incarnation == event.incarnation


def _keeps(group: Group, task: Task, member: str) -> bool:
    """Whether a member runs a task, has a copy of it, will get one, or is releasing one.

    A member that is to run the task, and does not yet, has only what is on its disk.
    """
    slot, index = group.roster.by_id.get(member), group.table.find(task)
    if slot is None or index is None:
        return False
    if slot == int(group.owned.holder[index]):
        return True
    pair = index << 32 | slot
    return any(
        bool((pairs == pair).any()) for copies in group.owned.copies.values() for pairs in copies
    )


def _is_dropping(group: Group, task: Task, member: str) -> bool:
    """Whether a member was asked to drop its copy of a task; it may have done so by now."""
    slot, index = group.roster.by_id.get(member), group.table.find(task)
    if slot is None or index is None:
        return False
    pair = index << 32 | slot
    return any(bool((each.releasing == pair).any()) for each in group.owned.copies.values())


# ------------------------------------------------------------------------------------ at the end


def broken_at_end(
    group: Group, processes: Mapping[str, SimulatedMember], still_ms: int
) -> list[str]:
    """Promises broken at the end of a life; empty = all are kept.

    `still_ms` is how long ago a generation or a holding last changed.
    """
    if not group.roster:
        return []
    unsettled = _unsettled(group, still_ms)
    return unsettled or [*_uneven(group), *_copies(group), *_dishonest(group, processes)]


def _unsettled(group: Group, still_ms: int) -> list[str]:
    wrong = []
    if group.state is not GroupState.STABLE:
        wrong.append(f"settled: the group is {group.state.value}: {group.cause}")
    destination = group.target.destination
    nowhere = destination == NO_MEMBER  # its owner drains, and no other member may run it
    late = np.flatnonzero((destination != group.owned.holder) & ~nowhere).tolist()
    late += [task for task in np.flatnonzero(nowhere).tolist() if _may_run(group, task)]
    for task in late[:3]:
        where = [
            _name(group, int(at[task])) or "no member" for at in (group.owned.holder, destination)
        ]
        wrong.append(f"settled: {group.table.task(task)} is on {where[0]}, not on {where[1]}")
    learner = group.owned.copies[Role.LEARNER]
    pairs = learner.kept if len(learner.kept) else learner.wanted
    if len(pairs):
        task, slot = int(task_of(pairs)[0]), int(slot_of(pairs)[0])
        wrong.append(f"settled: {_name(group, slot)} still learns {group.table.task(task)}")
    if group.timers.delay_until_ms is not None or group.target.again:
        wrong.append("settled: lost work waits")
    if group.timers.followup_ms is not None and group.assignor in BALANCING:
        wrong.append(f"settled: a follow-up is asked for without end ({group.cause})")
    if still_ms < 3 * group.settings.probing_rebalance_interval_ms:
        wrong.append(f"settled: something changed {still_ms:,} ms before the end ({group.cause})")
    return wrong


def _uneven(group: Group) -> list[str]:
    """Members with more or less than their share."""
    members = [m for m in group.roster if not m.draining]  # if all drain, nothing moves
    if group.assignor == "eager":
        return _not_dealt(group, members)
    restricted = any(m.topics is not None for m in members)
    if group.assignor not in BALANCING or restricted or not group.table.weigh_alike:
        return []
    stateful = group.table.stateful
    parts = {"tasks": np.ones(len(stateful), dtype=np.bool_)}
    if group.assignor == "high-availability":
        parts["stateful tasks"] = stateful
    if group.assignor == "learner":
        parts = {"stateful tasks": stateful, "stateless tasks": ~stateful}
    wrong = []
    for name, mask in parts.items():
        count = Counter(group.owned.holder[mask].tolist())
        tasks, capacity = int(mask.sum()), sum(m.capacity for m in members)
        for member in members:
            least, rest = divmod(tasks * member.capacity, capacity)
            if not least <= count[member.slot] <= least + bool(rest):
                shares = ", ".join(f"{m.id} {count[m.slot]} of {m.capacity}" for m in members)
                wrong.append(f"balanced: {member.id} has {count[member.slot]} {name} ({shares})")
                break
    return wrong


def _not_dealt(group: Group, members: Sequence[MemberEntry]) -> list[str]:
    """Members of an `eager` group with a job more, or less, than it deals."""
    count = Counter(group.owned.holder.tolist())
    jobs = [count[member.slot] for member in members]
    if not jobs or max(jobs) - min(jobs) <= 1:
        return []
    shares = ", ".join(f"{m.id} {count[m.slot]}" for m in members)
    return [f"balanced: the jobs are not dealt evenly ({shares})"]


def _copies(group: Group) -> list[str]:
    """Stateful tasks with too few or too many standbys."""
    if group.assignor not in COPYING:
        return []
    members = [m for m in group.roster if not m.draining] or list(group.roster)
    standbys_of_task = Counter(task_of(group.owned.copies[Role.STANDBY].kept).tolist())
    wrong = []
    for task in np.flatnonzero(group.table.stateful).tolist():
        unit = group.table.task(task).unit
        able = [m for m in members if m.topics is None or unit in m.topics]
        others = sum(m.slot != group.owned.holder[task] for m in able)
        wanted = min(group.settings.num_standby_replicas, others)
        if standbys_of_task[task] != wanted:
            name = group.table.task(task)
            wrong.append(f"copies: {name} has {standbys_of_task[task]} standbys, not {wanted}")
    return wrong[:3]


def _dishonest(group: Group, processes: Mapping[str, SimulatedMember]) -> list[str]:
    wrong = []
    for member in group.roster:
        process = processes.get(member.id)
        held = None if process is None else process.holding()
        expected = invariants.holding_of(group, member.slot)
        if held is None or held.digest() != expected.digest():
            wrong.append(f"honest: {member.id} holds {held}, not {expected}")
    return wrong
