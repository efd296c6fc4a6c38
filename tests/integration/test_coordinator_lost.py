"""The coordinator is killed, stopped, superseded or loses its checkpoint: no task moves."""

from __future__ import annotations

import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.kafka.brokers import Topics
from support.streams.job import Job
from support.suite.waiting import until
from support.worker.fleet import Fleet

from muster.cli.main import main
from muster.kafka.reader import read
from muster.protocol import codec
from muster.protocol.events import NOWHERE, Drain, Join
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, MemberAssignment, Record
from muster.protocol.topics import TopicKind

pytestmark = [pytest.mark.broker, pytest.mark.spark]


LATE = """
import sys
from muster.streams import claims, job, takeover

claimed = takeover.claimed

def late(config, signs, vigil):
    (prefix,) = config.prefixes
    claims.write(config.clients, prefix, "another", follows=-1, alone=False)
    return claimed(config, signs, vigil)

takeover.claimed = late
sys.exit(job.main())
"""
"""A job before whose claim another one claims, when it has looked at the claims."""


def _is_of(record: Record, group: str) -> bool:
    return isinstance(record, GroupSnapshot) and record.group == group


def assignments(topics: Topics) -> list[MemberAssignment]:
    """Every assignment ever published."""
    records = topics.records(TopicKind.ASSIGNMENTS)
    return [record for record in records if isinstance(record, MemberAssignment)]


def test_killed_in_the_middle_of_a_rebalance(topics: Topics, tmp_path: Path) -> None:
    """Killed after the revocations are out, the coordinator continues from its checkpoint.

    It decides the same again under a new coordinator epoch, and only the new member's share moves.
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
    """Check that records of one revision of one member differ only in coordinator epoch."""
    said: dict[tuple[str, int, int], MemberAssignment] = {}
    for record in published:
        key = (record.member, record.incarnation, record.revision)
        timeless = replace(record, coordinator_epoch=0)
        assert said.setdefault(key, timeless) == timeless


def test_stopped_and_started_again(topics: Topics, tmp_path: Path) -> None:
    """The coordinator stops with exit code 0; the next start decides nothing twice, misses nothing.

    W3 joins and W1 is drained while no coordinator runs; older records stay, and a replay gives
    equal records. A batch that the stop cuts off is repeated, and decides the same again.
    """
    with Job(topics, tmp_path) as job, Fleet(topics, tmp_path, "g") as fleet:
        job.start()
        fleet.configure(6, config={"session.timeout.ms": "60000", "heartbeat.interval.ms": "1000"})
        fleet.start("W1", "W2")
        before = fleet.settled()
        assert job.stop(signal.SIGTERM) == 0
        records_before = {
            kind: list(topics.read(kind)) for kind in (TopicKind.ASSIGNMENTS, TopicKind.GROUPS)
        }
        drain = Drain(group=GroupId("g"), member=MemberId("W1"), on=True)
        topics.write(TopicKind.MEMBERSHIP, drain)
        fleet.start("W3")
        until(lambda: _joined(topics, "W3"), "W3 has joined", story=fleet.story)
        job.start()
        after = fleet.settled()
        assert after["W2"] >= before["W2"]
        assert {name: len(tasks) for name, tasks in after.items()} == {"W1": 0, "W2": 3, "W3": 3}
        assert job.stop(signal.SIGINT) == 0
        for kind, then in records_before.items():
            now = topics.read(kind)
            assert [w.value for w in now[: len(then)]] == [w.value for w in then]
            assert {w.record.coordinator_epoch for w in then if w.value} == {0}
        _same_decisions(assignments(topics))
        where = ["--bootstrap-server", topics.address, "--topic-prefix", topics.prefix]
        assert main(["replay", "--group", "g", *where]) == 0
        fleet.check()


def _joined(topics: Topics, member: str) -> bool:
    rows = read(topics.clients, topics.name(TopicKind.MEMBERSHIP))
    written = [codec.decode(TopicKind.MEMBERSHIP, row.key, row.value, NOWHERE) for row in rows]
    return any(isinstance(event, Join) and event.member == member for event in written)


def test_checkpoint_deleted(topics: Topics, tmp_path: Path) -> None:
    """Without its checkpoint the coordinator reads the groups back; no task stops or moves.

    Then it works as before: a new member gets its share, members of an unknown group are asked what
    they hold, and a late snapshot of the earlier coordinator is overwritten.
    """
    with Job(topics, tmp_path) as job, Fleet(topics, tmp_path, "g") as fleet:
        job.start()
        fleet.configure(6, config={"session.timeout.ms": "60000", "heartbeat.interval.ms": "1000"})
        fleet.start("W1", "W2")
        before = fleet.settled()
        tenures = fleet.check()
        assert job.stop() == 0
        shutil.rmtree(job.checkpoint)
        with Fleet(topics, tmp_path, "new") as new:  # the earlier job may have known this group
            new.configure(4)
            new.start("V1", "V2")
            for name in ("V1", "V2"):
                until(lambda name=name: _joined(topics, name), f"{name} has joined")
            job.start()
            assert fleet.settled() == before
            until(
                lambda: (
                    not fleet.snapshots()[-1].recovering
                    and fleet.snapshots()[-1].coordinator_epoch > 0
                ),
                "every member has reported",
                story=fleet.story,
            )
            assert fleet.held() == before
            assert fleet.check() == tenures
            new.settled()
            asked = {r.member for r in assignments(topics) if r.group == "new" and r.report}
            assert asked == {"V1", "V2"}
            new.check()
        last = fleet.snapshots()[-1].generation
        fleet.start("W3")
        after = fleet.settled()
        assert all(after[name] < before[name] for name in before)
        # One generation is skipped: a lost batch may have granted tokens with it.
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
    """Of two jobs the one that claimed first ends with exit code 1 and says why.

    Started again on its old checkpoint, it refuses; on a new checkpoint it takes over.
    """
    with Job(topics, tmp_path / "one") as one, Job(topics, tmp_path / "two") as two:
        one.start()
        two.start()
        assert one.wait() == 1
        assert "after this job" in one.tail()
        _answers(topics, two)
        one.start(wait=False)
        assert one.wait() == 1
        assert "is behind" in one.tail()
        assert two.poll() is None
        assert len(topics.records(TopicKind.COORDINATOR)) == 2
        shutil.rmtree(one.checkpoint)
        one.start()
        assert two.wait() == 1
        assert one.poll() is None


def test_another_job_claims_while_one_starts(topics: Topics, tmp_path: Path) -> None:
    """The job has looked at the claims, and another one claims before it does.

    A standby goes on with an empty checkpoint and reads the groups back; a job that is none ends,
    as does the next start on that checkpoint.
    """
    command = (sys.executable, "-c", LATE)
    with (
        Job(topics, tmp_path) as job,
        Job(topics, tmp_path / "a", checkpoint=job.checkpoint, command=command) as late,
        Job(
            topics, tmp_path / "b", checkpoint=job.checkpoint, command=(*command, "--standby")
        ) as standby,
    ):
        job.start()
        _answers(topics, job)
        assert job.stop() == 0
        standby.start()
        until(
            lambda: standby.get("/readyz") == (200, "ready\n"),
            "the standby has taken over",
            story=standby.tail,
        )
        _answers(topics, standby, incarnation=2)
        assert standby.stop() == 0
        said = standby.log_file.read_text()
        assert said.index("takes over") < said.index("checkpoint emptied")
        assert said.index("checkpoint emptied") < said.index("recovering")
        late.start(wait=False)
        assert late.wait() == 1
        assert "is behind: job another" in late.tail()
        job.start(wait=False)
        assert job.wait() == 1
        assert "is behind: job another" in job.tail()


def _answers(topics: Topics, job: Job, incarnation: int = 1) -> None:
    before = topics.end(TopicKind.GROUPS)
    join = Join(group=GroupId("lone"), member=MemberId("M"), incarnation=incarnation)
    topics.write(TopicKind.MEMBERSHIP, join)
    until(lambda: topics.end(TopicKind.GROUPS) > before, "it answers", story=job.tail)


def test_nothing_to_start_with(bootstrap: str, tmp_path: Path) -> None:
    """Missing topics give exit code 1, a bad setting gives 2; the log names them."""
    with Job(Topics(bootstrap, "no-such-prefix"), tmp_path) as job:
        job.start(wait=False)
        assert job.wait() == 1
        assert "no topic no-such-prefix.assignments, " in job.tail()
        assert ", no-such-prefix.membership, " in job.tail()
    with Job(Topics(bootstrap, "p"), tmp_path, conf=["muster.batch.rows.max=none"]) as job:
        job.start(wait=False)
        assert job.wait() == 2
        assert "muster.batch.rows.max: 'none' is not accepted" in job.tail()
