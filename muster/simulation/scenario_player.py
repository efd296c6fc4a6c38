"""Plays a scenario: the real `advance`, simulated members, a simulated clock.

At each instant, members write events to the log, the group handles them as one batch, records reach
their members, and members that react at once write more events, until no member reacts. Then the
next instant begins. Nothing depends on a real clock or on randomness, so a scenario always has the
same outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from muster.assignor import registry
from muster.assignor.model import Assignor, GroupView, Placement
from muster.protocol.digest import Holding
from muster.protocol.errors import MusterError
from muster.protocol.events import (
    Drain,
    Event,
    GroupConfig,
    Lag,
    LagReport,
    Mark,
    Origin,
    Tick,
)
from muster.protocol.ids import GroupId, MemberId, Role, Task
from muster.protocol.records import GroupSnapshot, MemberAssignment, MemberGone, Record, WakeUp
from muster.protocol.settings import CONNECT_ASSIGNORS
from muster.protocol.topics import TopicKind, topic_name
from muster.simulation import scenario as scenario_events
from muster.simulation.member import SimulatedMember
from muster.simulation.promises import Promises
from muster.simulation.scenario import Configured, Joins, Scenario, ScenarioEvent
from muster.simulation.skipped_heartbeats import calm_ms, quiet_until, skipped_ms
from muster.simulation.timeline import Timeline
from muster.state.group import Group
from muster.state.machine import Step, advance

GROUP = GroupId("simulated")
BEGINNING_MS = 1_000_000_000_000
"""Broker time of a scenario's millisecond 0; the core's clock does not start at 0."""
ROUNDS_MAX = 1_000
"""Most batches of one instant; a group that needs more never settles."""
_TOPICS = {GroupConfig: TopicKind.CONFIG, LagReport: TopicKind.LAG}
Lookup = Callable[[str], Assignor]


class NeverSettles(MusterError):
    """The group acts without end at one instant.

    Operator action: look for an assignor that asks for a follow-up at once, every time.
    """


@dataclass(slots=True)
class _RecordingAssignor:
    """An assignor that records its inputs and placements."""

    assignor: Assignor
    name: str
    seen: list[tuple[GroupView, Placement]]

    def assign(self, view: GroupView) -> Placement:
        placement = self.assignor.assign(view)
        self.seen.append((view, placement))
        return placement


@dataclass(slots=True)
class SimulatedGroup:
    """A group, its members and the simulated time.

    Attributes:
        lookup: name → assignor.
        group: the group now.
        members: newest process of each member id, also after it has ended.
        records: everything the coordinator published, in order.
        log: the batches of events, in order.
        promises: checks each batch; None = no checks.
    """

    lookup: Lookup = registry.get
    group: Group = field(default_factory=lambda: Group.new(GROUP))
    members: dict[str, SimulatedMember] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    log: list[list[Event]] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    promises: Promises | None = None
    now_ms: int = 0
    _wake_ms: int | None = None
    _published: Mark | None = None
    _offsets: dict[str, int] = field(default_factory=dict)
    _beat_ms: dict[str, int] = field(default_factory=dict)
    _undelivered: frozenset[str] = frozenset()
    _seen: list[tuple[GroupView, Placement]] = field(default_factory=list)
    _answer: tuple[GroupView, Placement] | None = None
    _incarnations: int = 1
    _changed_ms: int = 0
    _started: set[Task] = field(default_factory=set)

    def play(self, scenario: Scenario) -> None:
        """Play from millisecond 0 to the end of the scenario.

        Raises:
            NeverSettles: the group acts without end at one instant.
        """
        self._instant(0, [scenario.group])
        waiting = list(scenario.events)
        while True:
            at_ms = min([w[0] for w in waiting[:1]] + self._due(), default=None)
            if at_ms is None or at_ms > scenario.until_ms:
                break
            if self._skip_heartbeats(at_ms, min([w[0] for w in waiting[:1]] + [scenario.until_ms])):
                continue
            now = []
            while waiting and waiting[0][0] <= at_ms:
                now.append(waiting.pop(0)[1])
            self._instant(at_ms, now)
        self.now_ms = scenario.until_ms
        self.timeline.end(self.now_ms, self.group)

    def _due(self) -> list[int]:
        times = [] if self._wake_ms is None else [max(self._wake_ms, self.now_ms + 1)]
        for member in self.members.values():
            if member.next_ms is not None:
                times.append(member.next_ms)
            if member.is_heard:
                times.append(self._beat_ms[member.id])
        return times

    def _skip_heartbeats(self, at_ms: int, until_ms: int) -> bool:
        """Skip heartbeats that change nothing. Return whether any were skipped."""
        if at_ms - self._changed_ms < calm_ms(self.group):
            return False
        processes = self.members.values()
        quiet_ms = quiet_until(self.group, processes)
        if quiet_ms is None:
            return False
        span_ms = min(until_ms, quiet_ms - BEGINNING_MS) - at_ms
        skipped = skipped_ms(span_ms, self.group, processes)
        for name in self._beat_ms:
            self._beat_ms[name] += skipped
        if self._wake_ms is not None:
            self._wake_ms += skipped
        return skipped > 0

    def _instant(self, at_ms: int, now: list[ScenarioEvent]) -> None:
        self.now_ms = at_ms
        batch = self._acts()
        if now:
            self._changed_ms = at_ms
        self._look()
        for member in self.members.values():
            if member.is_heard and self._beat_ms[member.id] <= at_ms:
                self._beat_ms[member.id] = at_ms + member.heartbeat_ms
                batch.append(member.heartbeat())
        for event in now:
            batch += self._apply(event)
        if self._wake_ms is not None and self._wake_ms <= at_ms:
            batch.append(Tick(group=GROUP, published=self._published))
        for _ in range(ROUNDS_MAX):
            if not batch:
                return
            step = self._advance(batch)
            batch = self._deliver(step) + self._acts()
            if batch or step.changed or any(not isinstance(r, WakeUp) for r in step.records):
                self._changed_ms = at_ms
            self._look()
            again = step.wake_at_ms is not None and step.wake_at_ms <= BEGINNING_MS + at_ms
            if again and not batch and step.records:
                batch = [Tick(group=GROUP, published=self._published)]
        raise NeverSettles(f"the group does not settle at {at_ms} ms: {self.group.cause}")

    def _look(self) -> None:
        # While a plug-in's answer waits for the next batch, its generation is not shown yet.
        if self._changed_ms == self.now_ms and self.group.target.deferred is None:
            self.timeline.observe(self.now_ms, self.group, self.members)

    def _acts(self) -> list[Event]:
        due = [m for m in self.members.values() if m.is_due(self.now_ms)]
        if due:
            self._changed_ms = self.now_ms
        return [e for member in sorted(due, key=lambda m: m.id) for e in member.act(self.now_ms)]

    def _advance(self, batch: list[Event]) -> Step:
        batch = [self._written(event) for event in batch]
        self.log.append(batch)
        group, before = self.group, self.group.target.generation
        self._seen.clear()
        step = advance(group, batch, coordinator_epoch=1, assignors=self._recorded)
        self.group = step.group
        if self.promises is not None:
            self.promises.check_batch(self.now_ms, group, batch, self.group)
        self.records += step.records
        if self._seen:
            self._answer = self._seen[-1]
        if self._answer is not None and self.group.target.generation != before:
            view, placement = self._answer  # a plug-in's answer is from the batch before
            # A config does not move the group's clock, so the view may be behind.
            behind_ms = BEGINNING_MS + self.now_ms - view.now_ms
            self.timeline.open(self.now_ms, _placed(step), view, placement, behind_ms)
            self._answer = None
        return step

    def _recorded(self, name: str) -> Assignor:
        return _RecordingAssignor(self.lookup(name), name, self._seen)

    def _written(self, event: Event) -> Event:
        topic = topic_name(_TOPICS.get(type(event), TopicKind.MEMBERSHIP))
        offset = self._offsets.get(topic, -1) + 1
        self._offsets[topic] = offset
        return replace(event, origin=Origin(topic, 0, offset, BEGINNING_MS + self.now_ms))

    def _deliver(self, step: Step) -> list[Event]:
        written: list[Event] = []
        lost = self._undelivered if self._seen else frozenset[str]()
        for record in step.records:
            if isinstance(record, WakeUp):
                self._published = record.published
                self._wake_ms = None if record.at_ms is None else record.at_ms - BEGINNING_MS
            if not isinstance(record, MemberAssignment | MemberGone):
                continue
            member = self.members.get(record.member)
            if member is None or not member.alive or record.member in lost:
                continue
            before = set(member.releasing)
            written += member.read(record, self.now_ms)
            self.timeline.revoked(member.id, set(member.releasing) - before)
            self._started |= member.held[Role.ACTIVE]
        if self._seen:
            self._undelivered = frozenset()
        return written

    # ----------------------------------------------------------------------- what happens

    def _apply(self, event: ScenarioEvent) -> list[Event]:
        match event:
            case Configured(assignor=name, settings=settings, tasks=tasks):
                return [GroupConfig(group=GROUP, assignor=name, settings=settings, tasks=tasks)]
            case Joins():
                return self._join(event)
            case scenario_events.Returns():
                return self._return(event)
            case scenario_events.Forgets():
                target = replace(self.group.target, memory=None)
                self.group = replace(self.group, target=target)
                return []
            case scenario_events.Undelivered():
                self._undelivered = event.members
                return []
            case scenario_events.Drains(name, on):
                return [Drain(group=GROUP, member=MemberId(name), on=on)]
            case scenario_events.Lagging(name, offsets):
                lags = tuple(Lag(task, count) for task, count in offsets)
                return [LagReport(group=GROUP, member=MemberId(name), lags=lags)]
            case _:
                member = self.members.get(event.member)
                if member is None or not member.alive:
                    return []
                return self._apply_to(member, event)

    def _apply_to(self, member: SimulatedMember, event: ScenarioEvent) -> list[Event]:
        member.now_ms = self.now_ms
        match event:
            case scenario_events.Leaves():
                return [member.leave(temporary=event.temporary)]
            case scenario_events.Crashes():
                last = [member.heartbeat()] if member.member else []
                member.drop()
                member.alive = member.member = False
                member.crashed = True
                return [*last]
            case scenario_events.Ready():
                return [member.report()] if member.mark_ready({event.task}) else []
            case _:  # in Connect's protocol all members join in every round
                connect = self.group.assignor in CONNECT_ASSIGNORS
                alive = [m for _, m in sorted(self.members.items()) if m.alive]
                return [m.joining() for m in alive if connect or m is member]

    def _join(self, row: Joins) -> list[Event]:
        member = SimulatedMember(
            row.join,
            ack_ms=row.ack_ms,
            ack_step_ms=row.ack_step_ms,
            restore_ms=row.restore_ms,
            heartbeat_ms=row.heartbeat_ms,
            tells=row.tells,
            has_state=self._has_state,
            now_ms=self.now_ms,
        )
        member.claim(row.join.holding)
        self._started |= member.held[Role.ACTIVE]
        events: list[Event] = [self._start(member)]
        if row.draining:
            events.append(Drain(group=GROUP, member=row.join.member))
        return events

    def _return(self, row: scenario_events.Returns) -> list[Event]:
        """A process that ended starts again with the same settings and its disk."""
        before = self.members[row.member]
        if before.alive:
            return []
        member = replace(
            before,
            join=replace(before.join, holding=Holding(), lags=()),
            held={role: set() for role in Role},
            alive=True,
            crashed=False,
            epoch=0,
            seen=(-1, -1),
            now_ms=self.now_ms,
        )
        return [self._start(member)]

    def _start(self, member: SimulatedMember) -> Event:
        self._incarnations += 1_000
        member.join = replace(member.join, incarnation=self._incarnations)
        self.members[member.id] = member
        self._beat_ms[member.id] = self.now_ms + member.heartbeat_ms
        return member.joining()

    def _has_state(self, task: Task) -> bool:
        """Whether a task has a changelog: it is stateful, and a member has run it."""
        table = self.group.table
        index = table.find(task)
        return task in self._started and index is not None and bool(table.stateful[index])


def _placed(step: Step) -> GroupSnapshot:
    """The record of the generation that was placed; a later generation may have begun since."""
    snapshots = (r for r in step.records if isinstance(r, GroupSnapshot))
    placed = (r for r in snapshots if r.generation == r.target_generation)
    return next(placed, step.group.snapshot())
