"""A group that needs more memory than the job allows its Python processes, with the real job."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kafka.brokers import Topics
from support.protocol.bombs import HOSTILE, config, configured
from support.streams.job import Job
from support.suite.waiting import until

from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import NOWHERE, Join
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, MemberAssignment, Rejected
from muster.protocol.tasks import Connector
from muster.protocol.topics import TopicKind

pytestmark = [pytest.mark.broker, pytest.mark.spark]

INNOCENT = GroupId("innocent")
CONF = ("muster.python.bytes.max=268435456", "muster.group.tasks.max=1048576")
"""The smallest memory that may be set, and a limit of tasks that does not refuse the config."""
CONNECTORS = 360_000
"""Their config takes 1 MB in Kafka and, in a process without a limit, 330 MB in memory."""


def answered(kafka: Topics, job: Job, group: GroupId, member: str) -> None:
    """A member joins and gets an assignment."""
    incarnation = sum(member.encode())
    join = Join(group=group, member=MemberId(member), incarnation=incarnation)
    kafka.write(TopicKind.MEMBERSHIP, join)

    def is_answered() -> bool:
        assert job.poll() is None, f"the job has ended\n{job.tail()}"
        found = (r for r in kafka.records(TopicKind.ASSIGNMENTS) if isinstance(r, MemberAssignment))
        return any((r.group, r.member) == (group, member) for r in found)

    until(is_answered, f"{member} is answered", story=job.tail)


def is_quarantined(kafka: Topics, group: GroupId) -> bool:
    """Whether the newest snapshot of a group says so."""
    found = [r for r in kafka.records(TopicKind.GROUPS) if isinstance(r, GroupSnapshot)]
    newest = [r for r in found if r.group == group][-1:]
    return bool(newest) and newest[0].quarantine is not None


@pytest.mark.timeout(600)
def test_only_the_group_that_needs_too_much_is_refused(kafka: Topics, tmp_path: Path) -> None:
    """Its config is refused or it is quarantined; others are answered, and the job never ends."""
    with Job(kafka, tmp_path, conf=CONF) as job:
        job.start()
        kafka.write(TopicKind.CONFIG, config(4, group=INNOCENT), config(4))
        answered(kafka, job, INNOCENT, "i1")
        answered(kafka, job, HOSTILE, "h1")
        many = tuple(Connector(f"c{number}", 1) for number in range(CONNECTORS))
        kafka.write(TopicKind.CONFIG, configured(HOSTILE, many))
        encoded = codec.encode(configured(HOSTILE, many))
        # Nothing else is wrong with it: a process without the limit reads it.
        codec.decode(TopicKind.CONFIG, encoded.key, encoded.value, NOWHERE)
        answered(kafka, job, INNOCENT, "i2")

        def is_refused() -> bool:
            assert job.poll() is None, f"the job has ended\n{job.tail()}"
            found = (r for r in kafka.records(TopicKind.REJECTED) if isinstance(r, Rejected))
            return is_quarantined(kafka, HOSTILE) or any(
                r.reason == DeadLetter.UNDECODABLE and r.key == HOSTILE.encode() for r in found
            )

        def letters() -> str:
            found = [r for r in kafka.records(TopicKind.REJECTED) if isinstance(r, Rejected)]
            return "\n".join(f"{r.reason}: {r.message[:500]}" for r in found)

        until(is_refused, "the group is refused", story=letters)
        assert not is_quarantined(kafka, INNOCENT)
        kafka.write(TopicKind.CONFIG, config(4))  # releases the group if it is quarantined
        answered(kafka, job, HOSTILE, "h2")
        answered(kafka, job, INNOCENT, "i3")
