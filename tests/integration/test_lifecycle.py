"""A job's life: other versions, more partitions, other shuffle partitions, another cluster.

Each test is a procedure of docs/operations.md with a real broker and job: tasks run on and none
moves.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from support.kafka.brokers import Topics, create_topics
from support.streams import kept_checkpoint
from support.streams.job import Job
from support.suite.waiting import until
from support.worker import overlap
from support.worker.fleet import Fleet

from muster.broker.embedded_kafka import EmbeddedKafka
from muster.protocol.digest import Holding
from muster.protocol.events import Join, Report
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, GroupState, MemberAssignment
from muster.protocol.tasks import TaskTable
from muster.protocol.topics import TOPICS, TopicKind

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = sorted((ROOT / "tests" / "golden" / "checkpoint").glob("*.tar.gz"))
STEADY = {"session.timeout.ms": "60000", "heartbeat.interval.ms": "1000"}
SHUFFLE = "spark.sql.shuffle.partitions"


@pytest.fixture
def elsewhere() -> Iterator[EmbeddedKafka]:
    """Another cluster, without topics."""
    with EmbeddedKafka() as broker:
        yield broker


# ---------------------------------------------------------------- other versions


@pytest.mark.parametrize("file", CHECKPOINTS, ids=lambda file: file.name.partition(".")[0])
def test_goes_on_from_the_checkpoint_of_another_version(
    file: Path, elsewhere: EmbeddedKafka, tmp_path: Path
) -> None:
    """The job reads the Spark files, state and unfinished batch of another version's checkpoint.

    Both members stay in the group without being asked, and a third one gets its share of both.
    """
    topics, checkpoint = kept_checkpoint.resume(file, elsewhere.bootstrap_server, tmp_path)
    old = newest(topics)
    with Job(topics, tmp_path / "job", checkpoint=checkpoint) as job:
        job.start()
        joined = Join(group=GroupId(kept_checkpoint.GROUP), member=MemberId("W3"), incarnation=3)
        topics.write(TopicKind.MEMBERSHIP, joined)
        answered: set[tuple[MemberId, int]] = set()

        def is_settled() -> bool:
            answer(topics, old.coordinator_epoch, answered)
            now = newest(topics)
            return len(now.members) == 3 and now.state is GroupState.STABLE

        until(is_settled, "the newcomer has its share", story=job.tail)
        assert job.stop() == 0
    before, after = holders(old), holders(newest(topics))
    moved = {task for task in before if after[task] != before[task]}
    assert len(moved) == kept_checkpoint.TASKS // 3
    assert {after[task] for task in moved} == {"W3"}
    epochs = [s.coordinator_epoch for s in snapshots(topics) if s.recovering]
    assert epochs == [], "the state was there: no member had to be asked"
    topics.close()


def answer(topics: Topics, epoch: int, answered: set[tuple[MemberId, int]]) -> None:
    """Members report what a coordinator with a later epoch assigned to them."""
    for record in topics.records(TopicKind.ASSIGNMENTS):
        if not isinstance(record, MemberAssignment) or record.coordinator_epoch <= epoch:
            continue
        if (record.member, record.revision) in answered:
            continue
        answered.add((record.member, record.revision))
        report = Report(
            group=record.group,
            member=record.member,
            incarnation=record.incarnation,
            epoch=record.epoch,
            revision=record.revision,
            holding=Holding(record.active, record.standby, record.learner),
        )
        topics.write(TopicKind.MEMBERSHIP, report)


def snapshots(topics: Topics) -> list[GroupSnapshot]:
    """The published snapshots, oldest first."""
    return [r for r in topics.records(TopicKind.GROUPS) if isinstance(r, GroupSnapshot)]


def newest(topics: Topics) -> GroupSnapshot:
    """The newest snapshot."""
    return until(lambda: snapshots(topics), "a state is published")[-1]


def holders(snapshot: GroupSnapshot) -> dict[str, str]:
    """Task → the member that holds it."""
    table, name = TaskTable(snapshot.tasks), {m.slot: str(m.id) for m in snapshot.members}
    slots = enumerate(snapshot.holder.tolist())
    return {str(table.task(index)): name[slot] for index, slot in slots if slot in name}


def test_upgrade_and_rollback(topics: Topics, tmp_path: Path) -> None:
    """Stop, exchange the installation, start on the same checkpoint; then the same way back.

    The two installations cannot read each other's liveness, so each asks the members, and no task
    moves.
    """
    conf = {**os.environ, "PYTHONPATH": str(other_version(tmp_path))}
    checkpoint = tmp_path / "checkpoint"
    ours = Job(topics, tmp_path / "ours", checkpoint=checkpoint)
    theirs = Job(topics, tmp_path / "theirs", checkpoint=checkpoint, env=conf)
    with ours, theirs, Fleet(topics, tmp_path, "g") as fleet:
        ours.start()
        fleet.configure(6, config=STEADY)
        fleet.start("W1", "W2")
        before = fleet.settled()
        tenures = fleet.check()
        for epoch, (old, new) in enumerate([(ours, theirs), (theirs, ours)], 1):
            assert old.stop(signal.SIGTERM) == 0
            new.start()
            every_member_has_reported(fleet, epoch)
            assert [s for s in fleet.snapshots() if s.coordinator_epoch == epoch and s.recovering]
            assert fleet.settled() == before
            assert fleet.check() == tenures
        fleet.start("W3")
        after = fleet.settled()
        assert all(after[name] < before[name] for name in before)
        fleet.check()


def other_version(folder: Path) -> Path:
    """An installation with another version of the liveness format."""
    shutil.copytree(ROOT / "muster", folder / "other" / "muster")
    file = folder / "other" / "muster" / "streams" / "batch" / "stored_values.py"
    source = file.read_text()
    ours, other = (
        "\nPLAIN, SIGNED, ON_PROBATION, ON_CREDIT = 1, 2, 3, 4\n",
        "= 200, 201, 202, 203\n",
    )
    assert source.count(ours) == 1
    file.write_text(source.replace("= 1, 2, 3, 4\n", other))
    return folder / "other"


def every_member_has_reported(fleet: Fleet, epoch: int) -> None:
    """Wait until a new coordinator knows what every member holds."""
    until(
        lambda: (s := fleet.snapshots()[-1]).coordinator_epoch == epoch and not s.recovering,
        "every member has reported",
        story=fleet.story,
    )


# ---------------------------------------------------------------- partitions


def test_more_partitions(topics: Topics, tmp_path: Path) -> None:
    """Every keyed topic grows while the job is stopped; later the checkpoint is lost as well.

    Members follow their keys to other partitions, and the coordinator reads back the newest
    snapshot, not an older one in the partition that the key had before.
    """
    grown = [topic.kind for topic in TOPICS if topic.partitions is None]
    assert {TopicKind.MEMBERSHIP, TopicKind.ASSIGNMENTS, TopicKind.GROUPS} <= {*grown}
    with Job(topics, tmp_path) as job, Fleet(topics, tmp_path, "g") as fleet:
        job.start()
        fleet.configure(12, config=STEADY)
        fleet.start("W1", "W2", "W3")
        before = fleet.settled()
        tenures = fleet.check()
        assert job.stop(signal.SIGTERM) == 0
        grow(topics, grown, 5)
        topics.forget()
        job.start()
        assert fleet.settled() == before
        assert fleet.check() == tenures
        fleet.start("W4")
        four = fleet.settled()
        assert all(four[name] < before[name] for name in before)
        assert job.stop(signal.SIGTERM) == 0
        shutil.rmtree(job.checkpoint)
        job.start()
        every_member_has_reported(fleet, 2)
        assert fleet.settled() == four
        fleet.start("W5")
        five = fleet.settled()
        assert all(five[name] <= four[name] for name in four)
        fleet.check()


def grow(topics: Topics, kinds: list[TopicKind], partitions: int) -> None:
    """Do what ``kafka-topics.sh --alter --partitions`` does."""
    admin = AdminClient({"bootstrap.servers": topics.address})
    wanted = [NewPartitions(topics.name(kind), partitions) for kind in kinds]
    for future in admin.create_partitions(wanted).values():
        future.result(30)

    def done() -> bool:
        listed = admin.list_topics(timeout=10).topics
        return all(
            len(listed[name].partitions) == partitions
            and all(p.leader >= 0 for p in listed[name].partitions.values())
            for name in map(topics.name, kinds)
        )

    until(done, f"{len(kinds)} topics have {partitions} partitions")


def test_another_number_of_shuffle_partitions(topics: Topics, tmp_path: Path) -> None:
    """A checkpoint keeps its number of shuffle partitions; a new one takes the setting.

    From three to the default, one, for which the query has no exchange, no task moves.
    """
    with Fleet(topics, tmp_path, "g") as fleet:
        with Job(topics, tmp_path / "three", conf=[f"{SHUFFLE}=3"]) as three:
            three.start()
            fleet.configure(6, config=STEADY)
            fleet.start("W1")
            fleet.settled()
            assert three.stop(signal.SIGTERM) == 0
        with Job(topics, tmp_path / "same", checkpoint=three.checkpoint) as same:
            same.start()
            fleet.start("W2")
            before = fleet.settled()
            tenures = fleet.check()
            assert same.stop(signal.SIGTERM) == 0
        assert shuffle_partitions(three.checkpoint) == {"0", "1", "2"}
        with Job(topics, tmp_path / "new") as new:
            new.start()
            every_member_has_reported(fleet, 2)
            assert fleet.settled() == before
            assert fleet.check() == tenures
            fleet.start("W3")
            after = fleet.settled()
            assert all(after[name] < before[name] for name in before)
        assert shuffle_partitions(new.checkpoint) == {"0"}
        fleet.check()


def shuffle_partitions(checkpoint: Path) -> set[str]:
    """The partitions of the operator's state."""
    return {place.name for place in (checkpoint / "state" / "0").iterdir() if place.name.isdigit()}


# ---------------------------------------------------------------- another cluster


def test_another_cluster(topics: Topics, elsewhere: EmbeddedKafka, tmp_path: Path) -> None:
    """Fleet and job stop, config and groups are copied, and both start on another cluster.

    Members have instance ids and get their tasks back, and the old cluster's offsets in the copied
    snapshot do no harm.
    """
    names = ("W1", "W2", "W3")
    with Job(topics, tmp_path / "old") as job, Fleet(topics, tmp_path / "old", "g") as fleet:
        job.start()
        fleet.configure(9, config=STEADY)
        start_static(fleet, *names)
        before = fleet.settled()
        fleet.stop(*names)
        until(
            lambda: all(member.away for member in fleet.snapshots()[-1].members),
            "every member is known to be away",
            story=fleet.story,
        )
        assert job.stop(signal.SIGTERM) == 0
        left = fleet.check()
        generation = fleet.snapshots()[-1].generation
    create_topics(elsewhere.bootstrap_server, topics.prefix)
    new = Topics(elsewhere.bootstrap_server, topics.prefix)
    for kind in (TopicKind.CONFIG, TopicKind.GROUPS):
        kept_checkpoint.write(new, kept_checkpoint.records(topics, kind), same_place=False)
    with Job(new, tmp_path / "new") as job, Fleet(new, tmp_path / "new", "g") as fleet:
        job.start()
        fleet.expect(9)
        start_static(fleet, *names)
        assert fleet.settled() == before
        fleet.start("W4")
        after = fleet.settled()
        assert all(after[name] <= before[name] for name in before)
        assert overlap.overlaps([*left, *fleet.check()]) == []
        assert fleet.snapshots()[-1].generation > generation + 1  # tokens only grow
    new.close()


def start_static(fleet: Fleet, *names: str) -> None:
    """Start workers with instance ids, so that their tasks wait for them after a short stop."""
    for name in names:
        fleet.start(name, instance_id=f"i-{name}")
