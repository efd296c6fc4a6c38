"""The laws that every state keeps, and what it is to have settled."""

from __future__ import annotations

from typing import Any

from exploration import plugin
from exploration.clocks import Clocks
from exploration.coordinator import Coordinators
from exploration.member import Members, Process
from exploration.model import Scenario, SystemState
from exploration.values import AS_OLD_MS, Values

from muster.protocol.ids import MemberId, Role, Task
from muster.protocol.records import GroupState
from muster.simulation.promises import BALANCING
from muster.state import invariants
from muster.state.group import Group
from muster.worker.session_steps import State

APART_AS_OLD_MS = 20_000
"""As `AS_OLD_MS`, where members heartbeat apart."""


class Laws:
    """The laws over the states of one scenario."""

    def __init__(self, scenario: Scenario, values: Values | None = None) -> None:
        self.scenario = scenario
        # Without covers the session clock stands still and gets further behind the group's clock.
        as_old_ms = APART_AS_OLD_MS if scenario.clocks else AS_OLD_MS
        self.values = Values(as_old_ms) if values is None else values
        self.members = Members(self.values)
        self.coordinators = Coordinators(self.values, plugin.lookup, scenario.rebuild_ms)
        self.clocks = Clocks(self.values)
        self._unsettled: dict[Any, str | None] = {}

    def group(self, state: SystemState) -> Group:
        """The group of the newest coordinator; not to be changed."""
        return self.values[state.running[0].group]

    def _judged(
        self, before: SystemState, what: str, then: SystemState | str
    ) -> tuple[str, SystemState | str]:
        if isinstance(then, str):
            return what, then
        users: dict[Task, str] = {}
        for process in then.processes:
            if not process.using or process.clock_ms(then.now) >= process.guard_ms:
                continue
            for task in process.using:
                if task in users:
                    return what, f"{task} is used by {users[task]} and by {process.name}"
                users[task] = process.name
        law = None
        if then.running != before.running or then.processes != before.processes:
            law = self._ended_lease(then)
        if law is None and then.running != before.running:
            law = self._expired_alive(before, then)
        return what, law or then

    def _expired_alive(self, before: SystemState, state: SystemState) -> str | None:
        """No member is removed for its silence whose heartbeats Kafka has acknowledged in time."""
        was, group = self.group(before), self.group(state)
        if group is was or len(state.running) > 1 or group.recovery.asked:
            return None
        for process in state.processes:
            session = self.members.session(process)
            now = process.clock_ms(state.now)
            if process.ended or session.lease_ms is None or session.lease_ms <= now:
                continue
            place = (process.name, session.incarnation)
            if session.state is State.MEMBER and place in _sessions(was) - _sessions(group):
                return f"{process.name} has a lease and is removed"
        return None

    def _ended_lease(self, state: SystemState) -> str | None:
        """No member has a lease on a task that the group has given to another."""
        group = self.group(state)
        is_behind = state.running[0].begun  # a part of the batch that it takes again is published
        if group.recovery.asked or len(state.running) > 1 or is_behind:
            return None
        for process in state.processes:
            session = self.members.session(process)
            now = process.clock_ms(state.now)
            if process.ended or session.lease_ms is None or session.lease_ms <= now:
                continue
            slot = group.roster.by_id.get(MemberId(process.name))
            for task in process.using:
                index = group.table.find(task)
                holder = -1 if index is None else int(group.owned.holder[index])
                if holder >= 0 and holder != slot:
                    return f"{process.name} has a lease on {task}, which the group gave away"
        return None

    def unsettled(self, state: SystemState) -> str | None:
        """Why the group has not settled; None = it has."""
        place = (state.running, tuple([(p.session, p.using) for p in state.processes]))
        if place not in self._unsettled:
            self._unsettled[place] = self._why_unsettled(state)
        return self._unsettled[place]

    def _why_unsettled(self, state: SystemState) -> str | None:
        group = self.group(state)
        coordinator = state.running[0]
        others = [each for each in state.running[1:] if not each.obeys]  # others may be frozen
        if others or coordinator.begun:
            return "a coordinator is at work"
        live = [p for p in state.processes if not p.ended]
        if not live:
            return None if group.state is GroupState.EMPTY else f"still {group.state.value}"
        if (
            group.state is not GroupState.STABLE
            or group.recovery.asked
            or len(group.roster) != len(live)
        ):
            return f"{group.state.value}"
        if (
            (group.target.active != group.target.destination).any()
            or len(group.owned.copies[Role.LEARNER].kept)
            or group.target.again
        ):
            return "learners at work"
        if group.timers.followup_ms is not None and group.assignor in BALANCING:
            return "a follow-up is asked for"
        for process in live:
            session = self.members.session(process)
            slot = group.roster.by_id.get(MemberId(process.name))
            if slot is None or session.state is not State.MEMBER:
                return f"{process.name} is no member"
            if invariants.holding_of(group, slot).digest() != session.holding.digest():
                return f"{process.name} holds something else"
        return _unbalanced(group, live)


def _sessions(group: Group) -> set[tuple[str, int]]:
    """The members, with their incarnations."""
    return {(str(member.id), member.incarnation) for member in group.roster}


def _unbalanced(group: Group, live: list[Process]) -> str | None:
    used = [task for process in live for task in process.using]
    if len(used) != len(group.table):
        return f"{len(used)} of {len(group.table)} tasks are used"
    drained = {m.id for m in group.roster if m.draining}
    loads = [len(p.using) for p in live if p.name not in drained or len(drained) == len(live)]
    if any(p.using for p in live if p.name in drained) and len(drained) < len(live):
        return "a drained member has tasks"
    return "it is not balanced" if max(loads) - min(loads) > 1 else None
