"""Random lives of a group: correct members, a network that delays and repeats, crashes, freezes."""

from __future__ import annotations

import copy
import os
from collections import deque

import hypothesis.strategies as st
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.state.groups import same_group
from support.suite.examples import examples

from muster.protocol.events import (
    Drain,
    Event,
    GroupConfig,
    Join,
    Lag,
    LagReport,
    Mark,
    Origin,
    Tick,
)
from muster.protocol.ids import GroupId, MemberId, Role
from muster.protocol.records import (
    GroupSnapshot,
    GroupState,
    MemberAssignment,
    MemberGone,
    WakeUp,
)
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector, Subtopology
from muster.simulation.member import SimulatedMember
from muster.state import invariants
from muster.state.group import Group
from muster.state.machine import advance

GROUP = GroupId("g")
NAMES = ("W1", "W2", "W3", "W4")
STREAMS = (
    (Subtopology("0", 3, stateful=True), Subtopology("1", 2)),
    (Subtopology("0", 5, stateful=True),),
    (Subtopology("1", 3),),
    (Subtopology("0", 2, stateful=True), Connector("c", 2)),
)
ASSIGNORS = (
    *("sticky", "learner", "high-availability", "cooperative"),
    "support.plugin_assignors:FirstTakesAll",
)
CONFIGS = (
    {},
    {"num.standby.replicas": 1},
    {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
    {"rebalance.timeout.ms": 4000},
    {"scale.down.timeout.ms": 5000, "max.warmup.replicas": 1},
    {"scheduled.rebalance.max.delay.ms": 3000},
    {"initial.rebalance.delay.ms": 2000, "assignment.interval.ms": 1500},
    {"learner.partial.rebalance": False},
)
QUIET_S = 400
SELF_FENCE = 0.9
"""Part of the session timeout after which a member stops by itself."""


class Life(RuleBasedStateMachine):
    """Members, their inboxes, one log, one coordinator.

    Every event is in the log at once, may be repeated, and reaches the coordinator in batches. A
    record reaches its member when the rule `read` delivers it, or never (`lose`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.offsets = {"membership": 0, "config": 0, "lag": 0}
        self.log: list[Event] = []
        self.group = Group.new(GROUP)
        self.members: list[SimulatedMember] = []
        self.inbox: dict[int, deque[MemberAssignment | MemberGone]] = {}
        self.proved_ms: dict[int, int] = {}
        self.coordinator_epoch = 1
        self.published: GroupSnapshot | None = None
        self.wake_up: Mark | None = None
        self.incarnations = 100
        self.config = ("sticky", STREAMS[0], {})

    # ---- the log

    def write(self, event: Event, topic: str = "membership") -> None:
        """Put an event at the end of its topic."""
        origin = Origin(topic, 0, self.offsets[topic], self.now_ms)
        self.offsets[topic] += 1
        placed = copy.copy(event)
        object.__setattr__(placed, "origin", origin)
        self.log.append(placed)

    def send(self, member: SimulatedMember, events: list[Event]) -> None:
        """Write a member's event; Kafka acknowledges it at once."""
        for event in events:
            self.write(event)
            self.proved_ms[id(member)] = self.now_ms

    @initialize(assignor=st.sampled_from(ASSIGNORS), tasks=st.sampled_from(STREAMS))
    def start(self, assignor, tasks) -> None:
        """A configured group without members."""
        self.config = (assignor, tasks, {})
        self.configure(assignor, tasks, {})

    def configure(self, assignor, tasks, values) -> None:
        """Write a config."""
        self.config = (assignor, tasks, values)
        parsed = parse_settings(values, assignor)
        config = GroupConfig(group=GROUP, assignor=assignor, settings=parsed, tasks=tasks)
        self.write(config, "config")

    @rule(
        assignor=st.sampled_from(ASSIGNORS),
        tasks=st.sampled_from(STREAMS),
        values=st.sampled_from(CONFIGS),
    )
    def config_changes(self, assignor, tasks, values) -> None:
        """An operator changes the config."""
        self.configure(assignor, tasks, values)

    # ---- the members

    def running(self) -> list[SimulatedMember]:
        """Processes that run."""
        return [m for m in self.members if m.alive]

    @rule(name=st.sampled_from(NAMES), static=st.booleans(), ack_ms=st.sampled_from((0, 500, 9000)))
    def join(self, name, static, ack_ms) -> None:
        """A process starts, perhaps under an id in use."""
        if len(self.running()) >= 6:
            return
        self.incarnations += 100
        template = Join(
            group=GROUP,
            member=MemberId(name if not static else f"{name}-{self.incarnations}"),
            incarnation=self.incarnations,
            instance_id=f"i-{name}" if static else None,
        )
        member = SimulatedMember(template, ack_ms=ack_ms, restore_ms=1_000)
        self.members.append(member)
        self.inbox[id(member)] = deque()
        self.send(member, [member.joining()])

    @precondition(lambda self: self.running())
    @rule(data=st.data(), temporary=st.booleans())
    def leave(self, data, temporary) -> None:
        """A member leaves."""
        member = data.draw(st.sampled_from(self.running()))
        self.send(member, [member.leave(temporary=temporary)])

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def crash(self, data) -> None:
        """A process ends without a leave."""
        member = data.draw(st.sampled_from(self.running()))
        member.alive = False
        member.drop()

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def beat(self, data) -> None:
        """A heartbeat."""
        member = data.draw(st.sampled_from(self.running()))
        if member.member:
            self.send(member, [member.heartbeat()])

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def rejoin(self, data) -> None:
        """The same process joins again."""
        member = data.draw(st.sampled_from(self.running()))
        self.send(member, [member.joining()])

    @precondition(lambda self: self.running())
    @rule(data=st.data(), on=st.booleans())
    def drain(self, data, on) -> None:
        """An operator drains a member, or undoes it."""
        member = data.draw(st.sampled_from(self.running()))
        self.write(Drain(group=GROUP, member=MemberId(member.id), on=on))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), offsets=st.sampled_from((0, 5_000, 50_000)))
    def lag(self, data, offsets) -> None:
        """A member reports a lag."""
        member = data.draw(st.sampled_from(self.running()))
        tasks = sorted(member.held[Role.LEARNER] | member.held[Role.STANDBY])
        if tasks:
            lags = tuple(Lag(task, offsets) for task in tasks)
            self.write(LagReport(group=GROUP, member=MemberId(member.id), lags=lags), "lag")

    @rule(data=st.data(), count=st.integers(1, 5))
    def read(self, data, count) -> None:
        """A member reads some of its records."""
        waiting = [m for m in self.running() if self.inbox[id(m)]]
        if not waiting:
            return
        member = data.draw(st.sampled_from(waiting))
        for _ in range(min(count, len(self.inbox[id(member)]))):
            if member.alive:
                self.send(member, member.read(self.inbox[id(member)].popleft(), self.now_ms))

    @rule(data=st.data())
    def lose(self, data) -> None:
        """A record never arrives."""
        waiting = [m for m in self.running() if self.inbox[id(m)]]
        if waiting:
            self.inbox[id(data.draw(st.sampled_from(waiting)))].popleft()

    @rule(span_ms=st.sampled_from((100, 1_000, 3_000, 10_000, 60_000)))
    def time_passes(self, span_ms) -> None:
        """Members whose lease runs out stop by themselves, as workers do."""
        end_ms = self.now_ms + span_ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + 500)
            timeout_ms = self.group.settings.session_timeout_ms
            for member in self.running():
                known = self.group.roster.by_id.get(member.id)
                if known is not None and self.group.roster.by_slot[known] is not None:
                    timeout_ms = min(
                        timeout_ms, self.group.roster.by_slot[known].session_timeout_ms
                    )
                if self.now_ms - self.proved_ms[id(member)] >= SELF_FENCE * timeout_ms:
                    if member.member:
                        self.send(member, member.start_over())
                    else:
                        member.drop()
                self.send(member, member.act(self.now_ms))

    # ---- the coordinator

    @rule(repeated=st.booleans(), seed=st.randoms(use_true_random=False))
    def advance(self, repeated, seed) -> None:
        """A batch in any order, perhaps with repeated rows, gives the same step."""
        if not self.log:
            return
        batch = list(self.log)
        shuffled = list(batch) + (batch[:3] if repeated else [])
        seed.shuffle(shuffled)
        step = advance(self.group, batch, coordinator_epoch=self.coordinator_epoch)
        other = advance(self.group, shuffled, coordinator_epoch=self.coordinator_epoch)
        same_group(step.group, other.group)
        assert repr(step.records) == repr(other.records)
        late = advance(step.group, batch, coordinator_epoch=self.coordinator_epoch)
        assert late.records == ()
        self.log.clear()
        self.take(step)

    def take(self, step, restored=True) -> None:
        """Publish a step; the published record and the liveness are the whole group."""
        self.group = step.group
        for record in step.records:
            if isinstance(record, GroupSnapshot):
                self.published = record
            if isinstance(record, WakeUp):
                self.wake_up = record.published
            if isinstance(record, MemberAssignment | MemberGone):
                for member in self.running():
                    if member.id == record.member:
                        self.inbox[id(member)].append(record)
        if step.changed:
            assert isinstance(self.published, GroupSnapshot)
        if self.published is not None and restored:
            again = Group.restore(self.published, self.group.liveness())
            same_group(again, self.group)

    @rule()
    def tick(self) -> None:
        """The clock writes a tick."""
        self.write(Tick(group=GROUP, published=self.wake_up))
        self.advance_now()

    def advance_now(self, restored=True) -> None:
        """The coordinator reads the log."""
        batch = list(self.log)
        self.log.clear()
        self.take(advance(self.group, batch, coordinator_epoch=self.coordinator_epoch), restored)

    @precondition(lambda self: self.published is not None and not self.log)
    @rule()
    def checkpoint_is_lost(self) -> None:
        """Another coordinator starts from the published record."""
        self.coordinator_epoch += 1
        self.group = Group.recover(self.published)
        self.tick()

    # ---- the laws

    @invariant()
    def laws_hold(self) -> None:
        """The invariants of one group."""
        invariants.check(self.group)

    @invariant()
    def no_task_has_two_owners(self) -> None:
        """No two processes run the same active."""
        owners: dict[object, str] = {}
        for member in self.running():
            for task in member.held[Role.ACTIVE]:
                assert task not in owners, f"{task} on {owners[task]} and {member.id}"
                owners[task] = f"{member.id} ({member.join.incarnation})"

    def story(self) -> str:
        """The present state of the group and its members."""
        group = self.group
        lines = [f"{group.state} ({group.cause}), recovering {set(group.recovery.asked)}"]
        owned = group.owned
        lines += [f"target {group.target.active}, holder {owned.holder}, {owned.revoking}"]
        lines += [f"{member}, flags {group.sessions.flags[member.slot]}" for member in group.roster]
        return "\n".join([*lines, *map(str, self.running())])

    def teardown(self) -> None:
        """When faults stop, the group becomes Stable, and members hold what it expects."""
        for _ in range(QUIET_S):
            self.now_ms += 1_000
            for member in self.running():
                while self.inbox[id(member)] and member.alive:
                    self.send(member, member.read(self.inbox[id(member)].popleft(), self.now_ms))
                self.send(member, member.act(self.now_ms))
                if member.member:
                    self.send(member, [member.heartbeat()])
            self.write(Tick(group=GROUP, published=self.wake_up))
            self.advance_now(restored=False)
            self.no_task_has_two_owners()
            if self.is_quiet():
                return
        raise AssertionError(self.story())

    def is_quiet(self) -> bool:
        """Whether the group is Stable and every member holds what it should."""
        if self.group.state not in (GroupState.STABLE, GroupState.EMPTY):
            return False
        for member in self.running():
            slot = self.group.roster.by_id.get(member.id)
            if not member.member:
                continue
            if slot is None:
                return False
            if invariants.holding_of(self.group, slot).digest() != member.holding().digest():
                return False
        return True


TestLife = Life.TestCase
_FAST = {"phases": [Phase.generate]} if "LIVES" in os.environ else {}
TestLife.settings = settings(
    max_examples=int(os.environ.get("LIVES", examples(40))),
    stateful_step_count=30,
    deadline=None,
    **_FAST,
)
