"""A group whose events end the job's Python process, with the real job.

An allowed plug-in aborts the process or keeps it busy for ever. The job ends once. Its next start
quarantines the group and answers all others, and the operator's commands name the group and release
it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kafka.brokers import Topics
from support.protocol.bombs import config
from support.streams.job import Job
from support.suite.waiting import until

from muster.cli.main import main
from muster.protocol.digest import Holding
from muster.protocol.events import GroupConfig, Join, Report
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, MemberAssignment, Rejected
from muster.protocol.topics import TopicKind

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TESTS = Path(__file__).parents[2]
PLUGINS = ("support.plugin_assignors:Aborts", "support.plugin_assignors:Holds")
CONF = (f"muster.assignors={','.join(PLUGINS)}", "muster.group.cpu.ms=3000")
INNOCENT, ABORTS, HOLDS = GroupId("innocent"), GroupId("aborts"), GroupId("holds")
Muster = Callable[..., tuple[int, str]]


@pytest.fixture
def muster(kafka: Topics, capsys: pytest.CaptureFixture[str]) -> Muster:
    """Run a command on the topics; return exit code and output."""

    def run(*words: str) -> tuple[int, str]:
        at = ("--bootstrap-server", kafka.address, "--topic-prefix", kafka.prefix)
        code = main([*words, *at])
        out, err = capsys.readouterr()
        return code, out + err

    return run


def configured(group: GroupId, assignor: str = "sticky") -> GroupConfig:
    """A config with four tasks and a session so long that a silent member stays.

    The group that is released has a shorter one: a release that drops the events of the quarantine
    moves nothing for a session.
    """
    session_ms = 30_000 if group == ABORTS else 1_800_000
    beat_ms = session_ms // 6
    return config(4, assignor, group, session_timeout_ms=session_ms, heartbeat_interval_ms=beat_ms)


def snapshot_of(kafka: Topics, group: GroupId) -> GroupSnapshot | None:
    """The newest snapshot of a group."""
    found = (r for r in kafka.records(TopicKind.GROUPS) if isinstance(r, GroupSnapshot))
    return next((r for r in reversed(list(found)) if r.group == group), None)


def is_aside(kafka: Topics, group: GroupId) -> bool:
    """Whether a group is quarantined."""
    newest = snapshot_of(kafka, group)
    return newest is not None and newest.quarantine is not None


def answer_of(kafka: Topics, group: GroupId) -> Report:
    """The report of a group's only member that was asked what it holds."""
    found = (r for r in kafka.records(TopicKind.ASSIGNMENTS) if isinstance(r, MemberAssignment))
    asked = [r for r in found if r.group == group and r.report][-1]
    return Report(
        group=group,
        member=asked.member,
        incarnation=asked.incarnation,
        epoch=asked.epoch,
        revision=asked.revision,
        holding=Holding(active=asked.active),
        coordinator_epoch=asked.coordinator_epoch,
    )


def answered(kafka: Topics, job: Job, group: GroupId, member: str, tasks: int = 0) -> None:
    """A member joins and gets an assignment of at least this many tasks."""
    incarnation = sum(member.encode())
    join = Join(group=group, member=MemberId(member), incarnation=incarnation)
    kafka.write(TopicKind.MEMBERSHIP, join)

    def is_answered() -> bool:
        assert job.poll() is None, f"the job has ended\n{job.tail()}"
        return any(
            isinstance(r, MemberAssignment)
            and (r.group, r.member) == (group, member)
            and len(r.active) >= tasks
            for r in kafka.records(TopicKind.ASSIGNMENTS)
        )

    until(is_answered, f"{member} is answered", story=job.tail)


def lives_on(kafka: Topics, job: Job, group: GroupId, story: str, newcomer: str) -> None:
    """After the job has ended, its next start quarantines the group and answers others."""
    assert job.wait(timeout_s=120) == 1, job.tail()
    job.start()
    answered(kafka, job, INNOCENT, newcomer)
    snapshot = snapshot_of(kafka, group)
    assert snapshot is not None
    assert snapshot.quarantine is not None
    assert story in snapshot.quarantine.story
    assert len(snapshot.members) == 1
    assert snapshot.holder.tolist() == [0] * 4


@pytest.mark.timeout(600)
def test_groups_are_set_aside(kafka: Topics, tmp_path: Path, muster: Muster) -> None:
    """Each group ends the job once; the operator's tools name it, and it can be released."""
    path = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
    env = {**os.environ, "PYTHONPATH": path}
    groups = (INNOCENT, HOLDS, ABORTS)  # the last one has the shortest session
    with Job(kafka, tmp_path, conf=CONF, env=env) as job:
        job.start()
        kafka.write(TopicKind.CONFIG, *(configured(group) for group in groups))
        for group in groups:
            answered(kafka, job, group, f"{group}1", tasks=4)
        kafka.write(TopicKind.CONFIG, configured(ABORTS, PLUGINS[0]))
        lives_on(kafka, job, ABORTS, "SIGABRT", "i2")
        kafka.write(TopicKind.CONFIG, configured(HOLDS, PLUGINS[1]))
        lives_on(kafka, job, HOLDS, "CPU time", "i3")

        # The first group is still quarantined, and the operator's tools say so.
        rejected = [r for r in kafka.records(TopicKind.REJECTED) if isinstance(r, Rejected)]
        assert {r.reason for r in rejected} == {"QUARANTINED"}
        code, told = muster("groups", "describe", "--group", ABORTS)
        assert (code, "aborts: quarantined" in told, "SIGABRT" in told) == (0, True, True), told
        code, told = muster("doctor")
        assert (code, "muster groups release --group aborts" in told) == (1, True), told
        (line,) = re.findall(r"\nmuster_groups_quarantined.*", job.get("/metrics")[1])
        assert line.endswith(" 2.0")
        assert "group quarantined" in job.log_file.read_text()

        # While the cause is there, a released group fails again, and the job does not end.
        code, told = muster("groups", "release", "--group", ABORTS)
        assert (code, "aborts: released" in told) == (0, True), told

        def fails_again() -> bool:
            kafka.write(TopicKind.MEMBERSHIP, answer_of(kafka, ABORTS))  # and shows that it lives
            return is_aside(kafka, ABORTS)

        until(fails_again, "it fails again", story=job.tail)
        answered(kafka, job, INNOCENT, "i4")
        kafka.write(TopicKind.CONFIG, configured(ABORTS))
        until(lambda: not is_aside(kafka, ABORTS), "it goes on", story=job.tail)
        answered(kafka, job, ABORTS, "a3")
        code, told = muster("groups", "release", "--group", ABORTS)
        assert (code, "is not quarantined" in told) == (2, True), told
        assert job.poll() is None
