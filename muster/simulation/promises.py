"""What a group promises in every life, watched while a life is played and looked at in its end.

In the end, when nothing has happened for hours:

- *settled*: every active is where it belongs, nothing is on its way, nothing is asked for again;
- *balanced*: every member has its share by capacity, as the group's assignor promises it;
- *copies*: every stateful task has its standbys, as many as members can keep; no learner is left;
- *honest*: every member holds what the group believes it holds.

All the time, with an assignor that stages moves: no active starts on a member whose copy is behind
while another member that may run it has said that its own has caught up. What a member said counts
as long as it keeps the copy, in whatever role; what it told of state on its disk, which is no copy
yet, counts for `probing.rebalance.interval.ms`. This file keeps its own book of what was said, from
the events alone; it shares no code with the coordinator's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from muster.protocol.digest import Holding
from muster.protocol.events import Event, Heartbeat, Join, Lag, LagReport, Report, Tick
from muster.protocol.ids import Task
from muster.protocol.records import GroupState
from muster.simulation.member import SimulatedMember
from muster.state import invariants
from muster.state.group import NO_MEMBER, Group, slot_of, task_of
from muster.state.liveness import FENCED

STAGING = ("high-availability", "learner")
"""Assignors that warm up before they move."""
BALANCING = (*STAGING, "sticky")
"""Assignors that come to rest with every member at its share."""
COPYING = (*BALANCING, "fallback")
"""Assignors that keep as many standbys as the group asks for."""
Pair = tuple[Task, str]


class Said(NamedTuple):
    """What a member said of a copy last.

    Attributes:
        near: whether the copy has caught up.
        at_ms: when the member said so.
        kept: whether it is said of a copy in a role, with which it ends; else of an old state on
            the disk.
    """

    near: bool
    at_ms: int
    kept: bool = False


@dataclass(slots=True)
class Promises:
    """Watches one life.

    Attributes:
        broken: what was broken, in words, in the order of time.
    """

    broken: list[str] = field(default_factory=list)
    _book: dict[Pair, Said] = field(default_factory=dict)
    _ran: set[Task] = field(default_factory=set)

    # ------------------------------------------------------------------- while a life is played

    def saw(self, at_ms: int, before: Group, batch: Sequence[Event], after: Group) -> None:
        """The group took a batch."""
        held = np.flatnonzero(before.holder != NO_MEMBER).tolist()
        self._ran.update(before.table.task(index) for index in held)
        placed = after.target_generation != before.target_generation
        if not placed and all(isinstance(event, Heartbeat | Tick) for event in batch):
            return
        self._drop(at_ms, before)  # there may have been only heartbeats for a long time
        for event in batch:
            match event:
                case Join() if _is_in(after, event):
                    self._forget(event.member)
                    self._said(event.member, event.holding.ready, event.lags, after, at_ms)
                case Report() if _is_in(after, event):
                    self._gave_up(event, before)
                    self._said(event.member, event.holding.ready, event.lags, after, at_ms)
                case LagReport():
                    self._said(event.member, (), event.lags, after, at_ms)
                case _:
                    pass
        if placed and after.assignor in STAGING:
            self._look(at_ms, before, after)
        self._drop(at_ms, after)

    def _forget(self, member: str) -> None:
        self._book = {pair: said for pair, said in self._book.items() if pair[1] != member}

    def _gave_up(self, event: Report, before: Group) -> None:
        """A copy that a member has stopped is none any more, even if it begins anew at once.

        One that it has yet to begin was not stopped: what it said of the state on its disk stands.
        """
        slot = before.by_id.get(event.member)
        had = _held(Holding() if slot is None else invariants.holding_of(before, slot))
        stopped = had - _held(event.holding)
        for pair, said in list(self._book.items()):
            if said.kept and pair[1] == event.member and pair[0] in stopped:
                del self._book[pair]

    def _said(
        self,
        member: str,
        ready: Iterable[Task],
        lags: Iterable[Lag],
        group: Group,
        at_ms: int,
    ) -> None:
        limit = group.settings.acceptable_recovery_lag
        for task, offsets in lags:
            had = self._book.get((task, member))
            self._book[task, member] = Said(offsets <= limit, at_ms, had is not None and had.kept)
        self._book |= {(task, member): Said(True, at_ms, kept=True) for task in ready}

    def _drop(self, at_ms: int, group: Group) -> None:
        """Forget what was said of copies that are given up, and of old state on a disk."""
        since_ms = at_ms - group.settings.probing_rebalance_interval_ms
        for pair, said in list(self._book.items()):
            if _keeps(group, *pair):
                self._book[pair] = said._replace(kept=True)
            elif said.kept or said.at_ms < since_ms or pair[1] not in group.by_id:
                del self._book[pair]

    def _near(self, task: Task, member: str) -> bool | None:
        said = self._book.get((task, member))
        return None if said is None else said.near

    def _look(self, at_ms: int, before: Group, after: Group) -> None:
        """Every stateful active that is to run somewhere: was there a better place?"""
        for index in np.flatnonzero(after.table.stateful & (after.target != NO_MEMBER)).tolist():
            member = after.members[int(after.target[index])]
            if member is None or member.away:
                continue
            task, name = after.table.task(index), member.id
            if task not in self._ran:  # there is no state of it yet
                continue
            owner = _owner(before, task, after)
            said = self._near(task, name)
            if said or (said is None and name == owner):
                continue
            better = [other for other in self._warm(task, owner, after) if other != name]
            if better:
                stays = "stays" if name == owner else "starts"
                self.broken.append(
                    f"cold: at {at_ms:,} ms {task} {stays} on {name}, whose copy is behind,"
                    f" while {', '.join(better)} has caught up"
                    f" (generation {after.target_generation}: {after.cause})"
                )

    def _warm(self, task: Task, owner: str | None, group: Group) -> list[str]:
        """Members that have caught up with a task and may run it."""
        found: list[str] = []
        for member in group.live():
            said = self._near(task, member.id)
            may = member.topics is None or task.unit in member.topics
            fenced = bool(group.soft.flags[member.slot] & FENCED)
            if member.draining or member.away or fenced or not may:
                continue
            if said or (said is None and member.id == owner):
                found.append(member.id)
        return found


def _held(holding: Holding) -> set[Task]:
    return {*holding.active, *holding.standby, *holding.learner}


def _name(group: Group, slot: int) -> str:
    member = group.members[slot]
    return "" if member is None else member.id


def _owner(group: Group, task: Task, after: Group) -> str | None:
    """Who ran a task and is a member still; its successor of the same name starts anew."""
    index = group.table.find(task)
    if index is None or group.holder[index] == NO_MEMBER:
        return None
    member = group.members[int(group.holder[index])]
    slot = None if member is None else after.by_id.get(member.id)
    there = None if slot is None else after.members[slot]
    if member is None or there is None or there.joined_ms != member.joined_ms:
        return None
    return member.id


def _is_in(group: Group, event: Join | Report) -> bool:
    """Whether the group took an event's process for the member, or refused it."""
    slot = group.by_id.get(event.member)
    member = None if slot is None else group.members[slot]
    return member is not None and member.incarnation == event.incarnation


def _keeps(group: Group, task: Task, member: str) -> bool:
    """Whether a member has a copy of a task in any role, or is to have one, or to give one up."""
    slot, index = group.by_id.get(member), group.table.find(task)
    if slot is None or index is None:
        return False
    if slot in (int(group.holder[index]), int(group.target[index])):
        return True
    pair = index << 32 | slot
    return any(
        bool((pairs == pair).any()) for copies in (group.standby, group.learner) for pairs in copies
    )


# ------------------------------------------------------------------------------------ in the end


def kept(group: Group, processes: Mapping[str, SimulatedMember], still_ms: int) -> list[str]:
    """What is not as it should be in the end; empty = everything is.

    Args:
        group: as it is in the end.
        processes: by member id.
        still_ms: how long ago a generation or a holding changed last.
    """
    if not list(group.live()):
        return []
    found = _unsettled(group, still_ms)
    return found or [*_uneven(group), *_copies(group), *_dishonest(group, processes)]


def _unsettled(group: Group, still_ms: int) -> list[str]:
    wrong = []
    if group.state is not GroupState.STABLE:
        wrong.append(f"settled: the group is {group.state.value}: {group.cause}")
    late = np.flatnonzero(group.destination != group.holder).tolist()
    for task in late[:3]:
        where = [
            _name(group, int(at[task])) or "no member" for at in (group.holder, group.destination)
        ]
        wrong.append(f"settled: {group.table.task(task)} is on {where[0]}, not on {where[1]}")
    if len(group.learner.kept) or len(group.learner.wanted):
        pairs = group.learner.kept if len(group.learner.kept) else group.learner.wanted
        task, slot = int(task_of(pairs)[0]), int(slot_of(pairs)[0])
        wrong.append(f"settled: {_name(group, slot)} still learns {group.table.task(task)}")
    if group.delay_until_ms is not None or group.again:
        wrong.append("settled: lost work waits")
    if group.followup_ms is not None and group.assignor in BALANCING:
        wrong.append(f"settled: a follow-up is asked for without end ({group.cause})")
    if still_ms < 3 * group.settings.probing_rebalance_interval_ms:
        wrong.append(f"settled: something changed {still_ms:,} ms before the end ({group.cause})")
    return wrong


def _uneven(group: Group) -> list[str]:
    """Members with more or less than their share."""
    members = [m for m in group.live() if not m.draining]  # if all drain, nothing moves
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
    for what, which in parts.items():
        count = Counter(group.holder[which].tolist())
        whole, capacity = int(which.sum()), sum(m.capacity for m in members)
        for member in members:
            least, rest = divmod(whole * member.capacity, capacity)
            if not least <= count[member.slot] <= least + bool(rest):
                shares = ", ".join(f"{m.id} {count[m.slot]} of {m.capacity}" for m in members)
                wrong.append(f"balanced: {member.id} has {count[member.slot]} {what} ({shares})")
                break
    return wrong


def _copies(group: Group) -> list[str]:
    """Stateful tasks with too few or too many standbys."""
    if group.assignor not in COPYING:
        return []
    members = [m for m in group.live() if not m.draining] or list(group.live())
    kept = Counter(task_of(group.standby.kept).tolist())
    wrong = []
    for task in np.flatnonzero(group.table.stateful).tolist():
        unit = group.table.task(task).unit
        able = [m for m in members if m.topics is None or unit in m.topics]
        others = sum(m.slot != group.holder[task] for m in able)
        wanted = min(group.settings.num_standby_replicas, others)
        if kept[task] != wanted:
            name = group.table.task(task)
            wrong.append(f"copies: {name} has {kept[task]} standbys, not {wanted}")
    return wrong[:3]


def _dishonest(group: Group, processes: Mapping[str, SimulatedMember]) -> list[str]:
    wrong = []
    for member in group.live():
        process = processes.get(member.id)
        held = None if process is None else process.holding()
        thought = invariants.holding_of(group, member.slot)
        if held is None or held.digest() != thought.digest():
            wrong.append(f"honest: {member.id} holds {held}, not {thought}")
    return wrong
