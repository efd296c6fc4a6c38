"""The result of a simulated scenario: its generations, moves and downtime.

Each generation is shown as it was just before the next one, after members had acted on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.assignor.model import GroupView, Placement
from muster.assignor.score import Score, score
from muster.protocol.ids import Role, Task
from muster.protocol.records import GroupSnapshot, GroupState, MemberState, Move
from muster.simulation.member import SimulatedMember
from muster.state.group import Group

HeldTasks = dict[str, dict[Role, tuple[str, ...]]]
"""Member → role → printed ids."""


@dataclass(slots=True)
class Entry:
    """One generation.

    Attributes:
        generation: its number.
        at_ms: when it was placed.
        cause: its cause.
        state: of the group when members had acted.
        members: what each member held then.
        revoked: actives that each member had to release.
        moves: the moves and their reasons.
        delay_ms: how long lost tasks wait for their owners to return.
        followup_ms: when the assignor wants to run again.
        score: the placement's score.
        unassigned: actives that no member gets.
    """

    generation: int
    at_ms: int
    cause: str
    state: GroupState
    moves: tuple[Move, ...]
    delay_ms: int
    followup_ms: int | None
    score: Score
    unassigned: tuple[str, ...]
    members: HeldTasks = field(default_factory=dict)
    revoked: dict[str, set[str]] = field(default_factory=dict)


@dataclass(slots=True)
class Timeline:
    """Collects entries while a scenario is simulated.

    Attributes:
        entries: the generations.
        moved: how often an active went from one member to another.
        downtime_ms: time without a running owner, summed over tasks that had run before.
        changed_ms: when a holding or a generation last changed.
        settled: whether the group had settled at the end.
    """

    entries: list[Entry] = field(default_factory=list)
    moved: int = 0
    downtime_ms: int = 0
    changed_ms: int = 0
    settled: bool = False
    _shown: HeldTasks = field(default_factory=dict)
    _state: GroupState = GroupState.EMPTY
    _owner: dict[Task, str] = field(default_factory=dict)
    _down_since: dict[Task, int] = field(default_factory=dict)

    def open(
        self,
        at_ms: int,
        record: GroupSnapshot,
        view: GroupView,
        placement: Placement,
        behind_ms: int,
    ) -> None:
        """Add a generation, with the input and the output of the assignor.

        `behind_ms` is how far the group's clock was behind `at_ms`, when it was placed.
        """
        self._close()
        followup_ms = placement.followup_ms
        self.changed_ms = at_ms
        waiting = [str(view.tasks.task(t)) for t in (placement.active < 0).nonzero()[0].tolist()]
        self.entries.append(
            Entry(
                generation=record.generation,
                at_ms=at_ms,
                cause=record.cause,
                state=record.state,
                moves=record.moves,
                delay_ms=max(placement.delay_ms - behind_ms, 0),
                followup_ms=None if followup_ms is None else max(followup_ms - behind_ms, 0),
                score=score(view, placement),
                unassigned=tuple(waiting),
            )
        )

    def revoked(self, member: str, releasing: set[tuple[Role, Task]]) -> None:
        """A member read a record that revokes tasks."""
        actives = {str(task) for role, task in releasing if role is Role.ACTIVE}
        if self.entries and actives:
            self.entries[-1].revoked.setdefault(member, set()).update(actives)

    def observe(self, at_ms: int, group: Group, members: Mapping[str, SimulatedMember]) -> None:
        """Record what each member holds now."""
        held_now: HeldTasks = {}
        table = group.table

        def place(task: Task) -> tuple[int, Task]:  # tasks that the table does not have are last
            index = table.find(task)
            return (len(table) if index is None else index, task)

        for member in group.roster:
            process = members.get(member.id)
            if process is not None and process.crashed and member.id in self._shown:
                # The coordinator does not know yet that it crashed.
                held_now[member.id] = self._shown[member.id]
                continue
            held = process.held if process is not None else {role: set() for role in Role}
            held_now[member.id] = {
                role: tuple(map(str, sorted(held[role], key=place))) for role in Role
            }
        if held_now != self._shown:
            self.changed_ms = at_ms
        self._shown, self._state = held_now, group.state
        running = {t: m.id for m in members.values() if m.alive for t in m.held[Role.ACTIVE]}
        for task, owner in running.items():
            if self._owner.get(task, owner) != owner:
                self.moved += 1
            self._owner[task] = owner
            self.downtime_ms += at_ms - self._down_since.pop(task, at_ms)
        for task in self._owner.keys() - running.keys():
            if table.find(task) is None:
                self._down_since.pop(task, None)
            else:
                self._down_since.setdefault(task, at_ms)

    def end(self, at_ms: int, group: Group) -> None:
        """The simulation has ended."""
        self._close()
        for since_ms in self._down_since.values():
            self.downtime_ms += at_ms - since_ms
        is_moving = any(member.state is not MemberState.STABLE for member in group.roster)
        # A group without tasks has a generation that waits, and is at rest all the same.
        is_moving |= group.state is GroupState.ASSIGNING or group.target.again
        is_moving |= group.timers.delay_until_ms is not None
        self.settled = not is_moving

    def _close(self) -> None:
        if self.entries:
            self.entries[-1].members = self._shown
            self.entries[-1].state = self._state
