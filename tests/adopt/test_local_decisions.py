"""A lost Connect worker's jobs while muster's coordinator is away: they wait, but not for ever."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from support.state.story import Story, config, join

from muster.adopt.governor import Governor
from muster.adopt.join_metadata import Kind
from muster.adopt.model import AssignableUnits, GovernorInput, Options, State
from muster.adopt.target_choice import LocalDecisions
from muster.kafka.groups import SEAT_PREFIX
from muster.kafka.messages import ConnectWorkerAssignment, ConnectWorkerMetadata
from muster.kafka.writer import Place
from muster.protocol.tasks import EMPTY, Connector, TaskSet
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
    decisions.end()
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
        self.inputs: list[GovernorInput] = []

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
        rows = [row(connector="c", tasks=[t.number for t in self.members[name]])]
        runs = ConnectWorkerAssignment(
            version=2,
            error=0,
            leader="g",
            leader_url="",
            config_offset=1,
            assigned=rows,
            revoked=[],
            delay_ms=0,
        )
        about = ConnectWorkerMetadata(
            version=2, url=f"http://{name}/", config_offset=1, allocation=bytes(runs.encode())
        )
        return SimpleNamespace(
            member_id=name, group_instance_id=None, metadata=bytes(about.encode())
        )

    def _carry_out(self, name: str, written: bytes) -> None:
        answer = ConnectWorkerAssignment.decode(written)
        started = {n for row in answer.assigned for n in row.tasks}
        tasks = [t for t in a_story()[0].group.table.set_of(range(4)) if t.number in started]
        self.members[name] = self.members[name] | TaskSet.of(tasks)

    def send(self, group: str, sends: Any) -> None:
        """Take events for muster's log, which no coordinator reads."""
        self.inputs += [Acknowledged(sent) for sent in sends]

    def look_for_governor(self) -> None:
        """No other governor is there."""


def test_the_governor_ends_the_wait_itself() -> None:
    """B dies while no coordinator reads the log: A gets B's job when the delay is over."""
    story, runs = a_story()
    kafka = Kafka(runs)
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

    def live_until(at_ms: int) -> None:
        while kafka.now_ms < at_ms:
            while kafka.inputs:
                governor.take(kafka.inputs.pop(0))
            kafka.now_ms += 500
            governor.take(None)

    kafka.inputs += [AssignableUnits(UNITS, offset=1), story.group.snapshot()]
    governor.begin()
    live_until(5_000)
    assert (governor.state, kafka.generation) == (State.LEADING, 1)
    del kafka.members["B"]
    kafka.rebalances = True
    live_until(DELAY_MS)
    assert (len(kafka.members["A"]), kafka.generation) == (3, 2)
    live_until(DELAY_MS + 20_000)
    assert (len(kafka.members["A"]), kafka.generation) == (4, 3)
    live_until(4 * DELAY_MS)
    assert (governor.state, kafka.generation) == (State.LEADING, 3)
