"""The coordinator dies, is stopped, is superseded, loses its checkpoint: no task moves for it."""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from support.brokers import Topics
from support.fleet import Fleet
from support.spark import Job
from support.waiting import until

from muster.cli.kafka import read
from muster.cli.main import main
from muster.protocol import codec
from muster.protocol.events import NOWHERE, Drain, Join
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, MemberAssignment, Record
from muster.protocol.topics import TopicKind

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def _is_of(record: Record, group: str) -> bool:
    return isinstance(record, GroupSnapshot) and record.group == group


def assignments(topics: Topics) -> list[MemberAssignment]:
    """Every assignment ever published."""
    records = topics.records(TopicKind.ASSIGNMENTS)
    return [record for record in records if isinstance(record, MemberAssignment)]


def test_killed_in_the_middle_of_a_rebalance(topics: Topics, tmp_path: Path) -> None:
    """SIGKILL after the revocations are out: the restart goes on from the checkpoint.

    What is written again is the same but for the new coordinator epoch, and only the newcomer's
    share moves.
    """
    with Job(topics, tmp_path) as job, Fleet(topics, tmp_path, "g") as fleet:
        job.start()
        fleet.configure(12, config={"session.timeout.ms": "60000", "heartbeat.interval.ms": "1000"})
        fleet.start("W1", "W2", "W3")
        three = fleet.settled()
        seen = len(assignments(topics))
        fleet.start("W4")
        until(lambda: len(assignments(topics)) > seen, "the rebalance has begun")
        job.kill()
        job.start()
        four = fleet.settled()
        assert {name: len(tasks) for name, tasks in four.items()} == dict.fromkeys(four, 3)
        assert all(four[name] < three[name] for name in three)
        _same_decisions(assignments(topics))
        fleet.check()


def _same_decisions(published: list[MemberAssignment]) -> None:
    """What two coordinators said about one revision of one member must not differ."""
    said: dict[tuple[str, int, int], MemberAssignment] = {}
    for record in published:
        key = (record.member, record.incarnation, record.revision)
        timeless = replace(record, coordinator_epoch=0)
        assert said.setdefault(key, timeless) == timeless


def test_stopped_and_started_again(topics: Topics, tmp_path: Path) -> None:
    """SIGTERM: exit code 0. The next start repeats nothing and misses nothing written meanwhile.

    W3 joins and W1 is asked to be empty while no coordinator reads. Every record before the stop is
    still there, no revision and no state is published a second time, and a replay of the inputs
    gives all of them once more.
    """
    with Job(topics, tmp_path) as job, Fleet(topics, tmp_path, "g") as fleet:
        job.start()
        fleet.configure(6, config={"session.timeout.ms": "60000", "heartbeat.interval.ms": "1000"})
        fleet.start("W1", "W2")
        before = fleet.settled()
        assert job.stop(signal.SIGTERM) == 0
        told = {kind: list(topics.read(kind)) for kind in (TopicKind.ASSIGNMENTS, TopicKind.GROUPS)}
        drain = Drain(group=GroupId("g"), member=MemberId("W1"), on=True)
        topics.write(TopicKind.MEMBERSHIP, drain)
        fleet.start("W3")
        until(lambda: _joined(topics, "W3"), "W3 has joined", story=fleet.story)
        job.start()
        after = fleet.settled()
        assert after["W2"] >= before["W2"]
        assert {name: len(tasks) for name, tasks in after.items()} == {"W1": 0, "W2": 3, "W3": 3}
        assert job.stop(signal.SIGINT) == 0
        for kind, then in told.items():
            now = topics.read(kind)
            assert [w.value for w in now[: len(then)]] == [w.value for w in then]
            assert {w.record.coordinator_epoch for w in then if w.value} == {0}
        _nothing_twice(topics)
        where = ["--bootstrap-server", topics.address, "--topic-prefix", topics.prefix]
        assert main(["replay", "--group", "g", *where]) == 0
        fleet.check()


def _joined(topics: Topics, member: str) -> bool:
    rows = read(topics.clients, topics.name(TopicKind.MEMBERSHIP))
    written = [codec.decode(TopicKind.MEMBERSHIP, row.key, row.value, NOWHERE) for row in rows]
    return any(isinstance(event, Join) and event.member == member for event in written)


def _nothing_twice(topics: Topics) -> None:
    """No revision of a member, and no state of a group, was published again."""
    said = [(r.member, r.incarnation, r.revision, r.report) for r in assignments(topics)]
    assert sorted(set(said)) == sorted(said)
    states = [r.through for r in topics.records(TopicKind.GROUPS) if isinstance(r, GroupSnapshot)]
    assert sorted(set(states)) == sorted(states)


def test_checkpoint_deleted(topics: Topics, tmp_path: Path) -> None:
    """Without its checkpoint the coordinator reads the groups back; no task stops or moves.

    Afterwards it is in charge again: a newcomer gets its share. Who joins a group that nothing was
    read of is asked what it holds. What the coordinator before still writes does not stand.
    """
    with Job(topics, tmp_path) as job, Fleet(topics, tmp_path, "g") as fleet:
        job.start()
        fleet.configure(6, config={"session.timeout.ms": "60000", "heartbeat.interval.ms": "1000"})
        fleet.start("W1", "W2")
        before = fleet.settled()
        tenures = fleet.check()
        assert job.stop() == 0
        shutil.rmtree(job.checkpoint)
        job.start()
        assert fleet.settled() == before
        until(
            lambda: (
                not fleet.snapshots()[-1].recovering and fleet.snapshots()[-1].coordinator_epoch > 0
            ),
            "every member has reported",
            story=fleet.story,
        )
        assert fleet.held() == before
        assert fleet.check() == tenures
        with Fleet(topics, tmp_path, "new") as new:  # of which the job before may have known
            new.configure(4)
            new.start("V1", "V2")
            new.settled()
            asked = {r.member for r in assignments(topics) if r.group == "new" and r.report}
            assert asked == {"V1", "V2"}
            new.check()
        last = fleet.snapshots()[-1].generation
        fleet.start("W3")
        after = fleet.settled()
        assert all(after[name] < before[name] for name in before)
        # One generation is left out: the batch that may be lost may have handed out tokens of it.
        assert fleet.snapshots()[-1].generation >= last + 2
        oldest = next(w for w in topics.read(TopicKind.GROUPS) if _is_of(w.record, "g"))
        published = len(fleet.snapshots())
        topics.write_raw(TopicKind.GROUPS, oldest.key, oldest.value)
        until(
            lambda: len(fleet.snapshots()) >= published + 2,
            "the group is published again, behind what was written late",
            story=fleet.story,
        )
        assert fleet.snapshots()[-1].coordinator_epoch == 1
        assert fleet.settled() == after
        fleet.check()


def test_a_later_claim_stops_the_earlier_job(topics: Topics, tmp_path: Path) -> None:
    """Two jobs: the one that claimed first ends by itself, exit code 1, and says why."""
    with Job(topics, tmp_path / "one") as one, Job(topics, tmp_path / "two") as two:
        one.start()
        two.start()
        assert one.wait() == 1
        assert "after this job" in one.tail()
        _answers(topics, two)


def _answers(topics: Topics, job: Job) -> None:
    join = Join(group=GroupId("lone"), member=MemberId("M"), incarnation=1)
    topics.write(TopicKind.MEMBERSHIP, join)
    until(lambda: topics.records(TopicKind.GROUPS), "it answers", story=job.tail)


def test_nothing_to_start_with(bootstrap: str, tmp_path: Path) -> None:
    """Missing topics are named, exit code 1; a bad setting is named, exit code 2."""
    with Job(Topics(bootstrap, "no-such-prefix"), tmp_path) as job:
        job.start(wait=False)
        assert job.wait() == 1
        assert "no topic no-such-prefix.assignments, " in job.tail()
        assert ", no-such-prefix.membership, " in job.tail()
    with Job(Topics(bootstrap, "p"), tmp_path, conf=["muster.batch.rows.max=none"]) as job:
        job.start(wait=False)
        assert job.wait() == 2
        assert "muster.batch.rows.max: 'none' is not accepted" in job.tail()
