"""A lost Connect worker's jobs while muster's coordinator is away: they wait, but not for ever."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from support.state.story import Story, config, join, leave, since, tick

from muster.adopt.governor import Governor
from muster.adopt.join_metadata import Kind
from muster.adopt.model import AssignableUnits, Configured, GovernorInput, Options, State
from muster.adopt.target_choice import LocalDecisions
from muster.kafka.groups import SEAT_PREFIX
from muster.kafka.messages import ConnectWorkerAssignment, ConnectWorkerMetadata
from muster.kafka.writer import Place
from muster.protocol.events import Event, GroupConfig
from muster.protocol.tasks import EMPTY, Connector, TaskSet, TaskTable
from muster.state import invariants
from muster.worker.session_messages import Acknowledged

DELAY_MS, REBALANCING = 60_000, 27
UNITS = (Connector("c", 3),)
CONFIG = config(
    *UNITS,
    assignor="cooperative",
    scheduled_rebalance_max_delay_ms=DELAY_MS,
    session_timeout_ms=10_000,
)


def a_story() -> tuple[Story, dict[str, TaskSet]]:
    """Workers A and B, and what they run."""
    story = Story()
    story.take(CONFIG, join("A"), join("B"))
    group = story.group
    return story, {m.id: invariants.holding_of(group, m.slot).active for m in group.roster}


def jobs_of_a(decisions: LocalDecisions, *times_ms: int) -> list[int]:
    """How many jobs A has after each of these decisions, which the governor makes without B."""
    story, runs = a_story()
    held, counts = {"A": runs["A"]}, list[int]()
    for now_ms in times_ms:
        held = decisions.decide(story.group.snapshot(), CONFIG, [join("A")], held, now_ms)
        counts.append(len(held["A"]))
    return counts


def test_lost_jobs_wait_no_longer_than_the_delay() -> None:
    """B is lost: A has its own three jobs for a minute, then all four, and the end is known."""
    decisions = LocalDecisions()
    assert jobs_of_a(decisions, 5_000, 40_000) == [3, 3]
    assert not decisions.is_due(5_000 + DELAY_MS - 1)
    assert decisions.is_due(5_000 + DELAY_MS)
    assert jobs_of_a(decisions, 5_000 + DELAY_MS) == [4]
    assert not decisions.is_due(10 * DELAY_MS)


def test_a_new_snapshot_begins_a_new_wait() -> None:
    """The coordinator has decided in between, so it knows of the lost worker itself."""
    decisions = LocalDecisions()
    assert jobs_of_a(decisions, 0) == [3]
    decisions.read(a_story()[0].group.snapshot(), 0)
    assert not decisions.is_due(DELAY_MS)
    assert jobs_of_a(decisions, DELAY_MS) == [3]


def test_no_job_waits_when_all_workers_were_replaced() -> None:
    """X and Y come for A and B: all jobs start at once, as at the coordinator (S3-F10)."""
    story, _ = a_story()
    joins, decisions = [join("X"), join("Y")], LocalDecisions()
    target = decisions.decide(story.group.snapshot(), CONFIG, joins, {"X": EMPTY, "Y": EMPTY}, 0)
    assert sorted(len(tasks) for tasks in target.values()) == [1, 3]
    assert not decisions.is_due(DELAY_MS)


class Kafka:
    """Kafka's and muster's side of a governor: all that it calls. `members` are Kafka's workers."""

    def __init__(self, members: Mapping[str, TaskSet]) -> None:
        self.members = dict(members)
        self.now_ms, self.generation, self.rebalances = 0, 0, False
        self.units, self.offset = UNITS, 1
        self.inputs: list[GovernorInput] = []
        self.written: list[tuple[int, Event]] = []  # time and event, in muster's log

    def ask(self, request: Any, done: Any, timeout_ms: int) -> None:
        """Answer a request at once."""
        name = type(request).__name__.partition("_")[0]
        if name == "JoinGroupRequest":
            self.generation, self.rebalances = self.generation + 1, False
            rows = [self._row(each) for each in self.members]
            place = {"member_id": "g", "leader": "g", "generation_id": self.generation}
            answer = {**place, "protocol_name": "sessioned", "skip_assignment": False}
            done(SimpleNamespace(error_code=0, members=rows, **answer))
        elif name == "SyncGroupRequest":
            for each in request.assignments:
                if each.member_id in self.members:
                    self._carry_out(each.member_id, bytes(each.assignment))
            done(SimpleNamespace(error_code=0))
        else:
            done(SimpleNamespace(error_code=REBALANCING if self.rebalances else 0))

    ask_aside = ask

    def _row(self, name: str) -> SimpleNamespace:
        row = ConnectWorkerAssignment.ConnectorTasks
        rows = [
            row(connector=unit, tasks=[t.number for t in self.members[name] if t.unit == unit])
            for unit in sorted({t.unit for t in self.members[name]})
        ]
        runs = ConnectWorkerAssignment(
            version=2,
            error=0,
            leader="g",
            leader_url="",
            config_offset=self.offset,
            assigned=rows,
            revoked=[],
            delay_ms=0,
        )
        about = ConnectWorkerMetadata(
            version=2,
            url=f"http://{name}/",
            config_offset=self.offset,
            allocation=bytes(runs.encode()),
        )
        return SimpleNamespace(
            member_id=name, group_instance_id=None, metadata=bytes(about.encode())
        )

    def _carry_out(self, name: str, written: bytes) -> None:
        answer = ConnectWorkerAssignment.decode(written)
        started = {(row.connector, n) for row in answer.assigned for n in row.tasks}
        table = TaskTable(self.units)
        tasks = [t for t in table.set_of(range(len(table))) if (t.unit, t.number) in started]
        self.members[name] = self.members[name] | TaskSet.of(tasks)

    def send(self, group: str, sends: Any) -> None:
        """Take events for muster's log."""
        self.inputs += [Acknowledged(sent) for sent in sends]
        self.written += [(self.now_ms, sent.event) for sent in sends]

    def configure(self, written: GroupConfig) -> None:
        """Take the group's configuration for muster's log."""
        self.inputs.append(Configured(Place("muster.config", 0, self.offset)))
        self.written.append((self.now_ms, written))

    def look_for_governor(self) -> None:
        """No other governor is there."""


class Life:
    """A governor, and the group as the coordinator knows it, from a start with some workers."""

    def __init__(self, story: Story, members: Mapping[str, TaskSet]) -> None:
        self.story = story
        self.kafka = kafka = Kafka(members)
        options = Options(
            group=CONFIG.group,
            kind=Kind.CONNECT,
            config=CONFIG,
            configured=Place("muster.config", 0, 0),
            instance_id=f"{SEAT_PREFIX}-1",
            session_timeout_ms=DELAY_MS,
        )
        port: Any = kafka
        governor = Governor(options, port, port, port, kafka.inputs.append, lambda: kafka.now_ms)
        self.governor = governor
        kafka.inputs += [AssignableUnits(UNITS, offset=1), story.group.snapshot()]
        governor.begin()

    def until(self, at_ms: int) -> Life:
        """Go on to this time of the governor's clock."""
        while self.kafka.now_ms < at_ms:
            while self.kafka.inputs:
                self.governor.take(self.kafka.inputs.pop(0))
            self.kafka.now_ms += 500
            self.governor.take(None)
        return self

    @property
    def seen(self) -> tuple[State, int, int]:
        """The governor's state, how many jobs A runs, and how many rebalances there were."""
        return self.governor.state, len(self.kafka.members["A"]), self.kafka.generation


def test_the_governor_ends_the_wait_itself() -> None:
    """B dies while no coordinator reads the log: A gets B's job when the delay is over."""
    life = Life(*a_story())
    assert life.until(5_000).seen == (State.LEADING, 3, 1)
    del life.kafka.members["B"]
    life.kafka.rebalances = True
    assert life.until(DELAY_MS).seen == (State.LEADING, 3, 2)
    assert life.until(DELAY_MS + 20_000).seen == (State.LEADING, 4, 3)
    assert life.until(4 * DELAY_MS).seen == (State.LEADING, 4, 3)


def a_life_without_b() -> Life:
    """The coordinator lets B's job wait; the governor has just read that."""
    story, runs = a_story()
    story.take(leave("B"))
    assert story.group.timers.delay_until_ms == story.now_ms + DELAY_MS
    return Life(story, {"A": runs["A"]})


@pytest.mark.parametrize("at_once", [True, False], ids=["one batch", "many batches"])
def test_the_governor_ends_a_wait_that_the_coordinator_began(at_once: bool) -> None:
    """The coordinator is away when the delay ends: A gets B's job, and keeps it afterwards."""
    life = a_life_without_b()
    assert life.until(DELAY_MS).seen == (State.LEADING, 3, 1)
    assert life.until(DELAY_MS + 5_000).seen == (State.LEADING, 4, 2)
    assert life.until(4 * DELAY_MS).seen == (State.LEADING, 4, 2)
    events = [since(sent_ms, event) for sent_ms, event in life.kafka.written]
    for batch in [events] if at_once else [[event] for event in events]:
        life.story.take(*batch)  # the coordinator is back, and reads what the governor has written
    group = life.story.group
    a = group.roster.by_id["A"]
    assert (group.owned.holder == a).all()
    assert not group.owned.revoking.any()
    assert group.timers.delay_until_ms is None


def test_a_worker_that_bounces_meanwhile_does_not_lengthen_the_wait() -> None:
    """C is gone and back while the coordinator is away; B's job still starts after the delay."""
    story = Story()
    story.take(CONFIG, join("A"), join("B"), join("C"))
    runs = {m.id: invariants.holding_of(story.group, m.slot).active for m in story.group.roster}
    story.take(leave("B"))
    life = Life(story, {"A": runs["A"], "C": runs["C"]}).until(5_000)
    for workers in ({"A": runs["A"]}, {"A": runs["A"], "C": runs["C"]}):
        life.kafka.members = dict(workers)
        life.kafka.rebalances = True
        life.until(life.kafka.now_ms + 5_000)
    assert life.until(DELAY_MS).kafka.generation == 3
    assert life.until(DELAY_MS + 5_000).kafka.generation == 4
    assert sum(map(len, life.kafka.members.values())) == len(story.group.table)
    assert life.until(4 * DELAY_MS).kafka.generation == 4


@pytest.mark.parametrize("at_once", [True, False], ids=["one batch", "many batches"])
@pytest.mark.parametrize("workers", ["A", "AC"], ids=["one worker", "two workers"])
def test_a_local_decision_for_every_worker_does_not_end_the_wait(
    workers: str, at_once: bool
) -> None:
    """A connector is deployed while no coordinator reads the log; each worker gets jobs of it.

    When the coordinator is back, B's job still waits for B until the delay is over.
    """
    story = Story()
    story.take(CONFIG, join("B"), *map(join, workers))
    runs = {m.id: invariants.holding_of(story.group, m.slot).active for m in story.group.roster}
    story.take(leave("B"))
    life = Life(story, {name: runs[name] for name in workers}).until(5_000)
    kafka = life.kafka
    kafka.units, kafka.offset, kafka.rebalances = (*UNITS, Connector("d", 5)), 2, True
    kafka.inputs.append(AssignableUnits(kafka.units, offset=2))
    life.until(20_000)
    assert all(kafka.members[name] - runs[name] for name in workers)
    assert not any(runs["B"] & kafka.members[name] for name in workers)
    events = [since(sent_ms, event) for sent_ms, event in kafka.written]
    for batch in [events] if at_once else [[event] for event in events]:
        story.take(*batch)  # the coordinator is back, and reads what the governor has written
    group = story.group
    lost = group.table.indexes_of(runs["B"])[0]
    assert (group.target.active[lost] == -1).all()
    assert group.timers.delay_until_ms == 1_000_000 + DELAY_MS
    for name, slot in group.roster.by_id.items():
        assert invariants.holding_of(group, slot).active == kafka.members[name]


def test_the_coordinator_ends_its_wait_while_it_is_there() -> None:
    """A decision that comes within the answer timeout is the only one."""
    life = a_life_without_b().until(DELAY_MS)
    life.story.at(DELAY_MS).take(tick())
    life.kafka.inputs.append(life.story.group.snapshot())
    assert life.until(4 * DELAY_MS).seen == (State.LEADING, 4, 2)
    assert life.governor.round is not None
    assert life.governor.round.by_coordinator


def test_a_worker_lost_meanwhile_waits_no_longer_than_the_first() -> None:
    """The coordinator's delay counts from when the governor has read of it, for all lost jobs."""
    story = Story()
    story.take(CONFIG, join("A"), join("B"), join("C"))
    runs = {m.id: invariants.holding_of(story.group, m.slot).active for m in story.group.roster}
    story.take(leave("B"))
    decisions = LocalDecisions()
    decisions.read(story.group.snapshot(), 0)
    held = {"A": runs["A"]}
    a = len(decisions.decide(story.group.snapshot(), CONFIG, [join("A")], held, 40_000)["A"])
    assert a == len(runs["A"])
    assert not decisions.is_due(DELAY_MS - 1)
    assert decisions.is_due(DELAY_MS)
