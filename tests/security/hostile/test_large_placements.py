"""A config of a second, or a placement of many, does not make another group wait.

``pytest -s`` prints how long the members of the innocent group waited for their answers meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kafka.brokers import Topics
from support.protocol.bombs import HOSTILE, configured
from support.streams.job import Job
from support.suite.waiting import until

from muster.protocol.events import Join
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, GroupState, MemberAssignment, WakeUp
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind

pytestmark = [pytest.mark.broker, pytest.mark.spark]

INNOCENT, WIDE = GroupId("innocent"), GroupId("wide")
UNITS = 6_000
"""Units of the wide group; their names take some 600 kB."""
MEMBERS = 600
TASKS = 20_000
KEYS = ("a", "b", "c", "d")
PATIENCE_S = 240.0


@pytest.fixture
def job(topics: Topics, tmp_path: Path) -> Iterator[Job]:
    """The job that both groups share."""
    with Job(topics, tmp_path) as each:
        yield each.start()


def asks(topics: Topics, job: Job, number: int) -> float:
    """A member of the innocent group joins; seconds until it is answered."""
    member = MemberId(f"i{number}")
    began_s = time.monotonic()
    topics.write(TopicKind.MEMBERSHIP, Join(group=INNOCENT, member=member, incarnation=number + 1))

    def answered() -> bool:
        assert job.poll() is None, job.tail()
        return any(
            isinstance(record, MemberAssignment) and record.member == member
            for record in topics.records(TopicKind.ASSIGNMENTS)
        )

    until(answered, f"{member} is answered", timeout_s=PATIENCE_S, story=job.tail)
    return time.monotonic() - began_s


def is_configured(topics: Topics, job: Job) -> None:
    """A group of thousands of units with long names gets its config and its tasks, by a child.

    The wake-up that a group publishes while its batch is computed aside has no mark.
    """
    units = tuple(Subtopology(f"{'x' * 100}{number}", 1) for number in range(UNITS))
    topics.write(
        TopicKind.CONFIG, configured(WIDE, units, settings={"initial.rebalance.delay.ms": 0})
    )
    topics.write(TopicKind.MEMBERSHIP, Join(group=WIDE, member=MemberId("w"), incarnation=1))

    def has_tasks() -> bool:
        assert job.poll() is None, job.tail()
        return any(
            isinstance(record, GroupSnapshot)
            and record.group == WIDE
            and record.state is GroupState.STABLE
            and len(record.holder) == UNITS
            for record in topics.records(TopicKind.GROUPS)
        )

    until(has_tasks, "the group's tasks have an owner", timeout_s=PATIENCE_S, story=job.tail)
    wake_ups = [
        record
        for record in topics.records(TopicKind.CLOCK)
        if isinstance(record, WakeUp) and record.group == WIDE
    ]
    assert any(each.at_ms is not None and each.published is None for each in wake_ups)


def test_others_are_answered_meanwhile(topics: Topics, job: Job) -> None:
    """While the large placement is computed, the other group is answered again and again."""
    small = configured(INNOCENT, (Subtopology("0", 4),), settings={"initial.rebalance.delay.ms": 0})
    topics.write(TopicKind.CONFIG, small)
    asks(topics, job, 0)
    settings = {
        "rack.aware.assignment.tags": list(KEYS),
        "num.standby.replicas": 3,
        "heartbeat.interval.ms": 60_000,
        "session.timeout.ms": 600_000,
    }
    tasks = (Subtopology("0", TASKS, stateful=True),)
    topics.write(TopicKind.CONFIG, configured(HOSTILE, tasks, "high-availability", settings))
    joins = []
    for number in range(MEMBERS):
        tags = tuple((key, str(number // 5**place % 5)) for place, key in enumerate(KEYS))
        joins.append(Join(group=HOSTILE, member=MemberId(f"m{number}"), incarnation=1, tags=tags))
    topics.write(TopicKind.MEMBERSHIP, *joins)

    def state() -> tuple[GroupState, bool]:
        newest = GroupState.EMPTY, False
        for record in topics.records(TopicKind.GROUPS):
            if isinstance(record, GroupSnapshot) and record.group == HOSTILE:
                newest = record.state, bool((record.target >= 0).all()) and len(record.target) > 0
        return newest

    until(lambda: state()[0] is GroupState.ASSIGNING, "it is asked", story=job.tail)
    waits: list[float] = []
    while not state()[1]:
        waits.append(asks(topics, job, len(waits) + 1))
        assert len(waits) < 1_000, job.tail()
    print(f"\n{len(waits)} answers meanwhile, the slowest after {max(waits, default=0):.2f} s")
    assert len(waits) >= 2
    is_configured(topics, job)
    assert not list(topics.records(TopicKind.REJECTED)), "nothing has failed"
