"""Checkpoints that a job cannot continue from: of other topics, or at an invalid URL."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from support.kafka.brokers import Topics, create_topics
from support.streams.job import Job
from support.suite.waiting import until
from support.worker.fleet import Fleet

from muster.protocol.events import Join
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.topics import TopicKind, topic_name
from muster.streams.checkpoint.topic_ids import FILE

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def joins(topics: Topics, job: Job) -> None:
    """A member joins and is answered."""
    before = topics.end(TopicKind.GROUPS)
    join = Join(group=GroupId("lone"), member=MemberId("M"), incarnation=1)
    topics.write(TopicKind.MEMBERSHIP, join)
    until(lambda: topics.end(TopicKind.GROUPS) > before, "it answers", story=job.tail)


def made_anew(topics: Topics, *kinds: TopicKind) -> None:
    """Delete the topics, or those of these kinds, and create them under the same names."""
    admin = AdminClient({"bootstrap.servers": topics.address})
    wanted = kinds or tuple(TopicKind)
    names = [topic_name(kind, topics.prefix) for kind in wanted]
    for future in admin.delete_topics(names).values():
        future.result(30)

    def created() -> bool:
        try:
            create_topics(topics.address, topics.prefix, kinds=wanted)
        except KafkaException:  # the broker still deletes the old ones
            return False
        return True

    until(created, "the topics are there again")
    topics.forget()


def test_topics_made_anew_are_not_those_of_the_checkpoint(topics: Topics, tmp_path: Path) -> None:
    """A job whose topics were deleted and created again says so and ends with exit code 1.

    A checkpoint without its file of topic ids is accepted, as one of an older version is.
    """
    with Job(topics, tmp_path) as job:
        joins(topics, job.start())
        assert job.stop() == 0
        made_anew(topics)
        job.start(wait=False)
        assert job.wait() == 1
        assert f"is of other topics: {topics.prefix}.config" in job.tail()
        assert "Give --checkpoint a new folder" in job.tail()
        (job.checkpoint / FILE).unlink()
        (job.checkpoint / f".{FILE}.crc").unlink(missing_ok=True)
        job.start()
        assert (job.checkpoint / FILE).exists()


def test_topics_made_anew_while_the_job_runs(topics: Topics, tmp_path: Path) -> None:
    """The job ends as it would not have started: its query would skip what is written now."""
    with Job(topics, tmp_path) as job:
        joins(topics, job.start())
        made_anew(topics)
        assert job.wait() == 1
        assert f"is of other topics: {topics.prefix}." in job.tail()
        assert "Give --checkpoint a new folder" in job.tail()


def test_the_topic_of_the_claims_is_made_anew(topics: Topics, tmp_path: Path) -> None:
    """Epochs would begin anew, and no running worker would obey the job again.

    The job that runs goes on. Its next start refuses the checkpoint; with a new one it claims until
    its epoch is above that of the group, and the workers that ran all the time give another one its
    share.
    """
    with (
        Job(topics, tmp_path) as job,
        Job(topics, tmp_path / "new") as next_job,
        Fleet(topics, tmp_path, "g") as fleet,
    ):
        for _ in range(2):
            job.start()
            assert job.stop() == 0
        job.start()
        fleet.configure(6, config={"session.timeout.ms": "120000", "heartbeat.interval.ms": "1000"})
        fleet.start("W1", "W2")
        fleet.settled()
        made_anew(topics, TopicKind.COORDINATOR)
        assert job.stop() == 0
        job.start(wait=False)
        assert job.wait() == 1
        assert f"is of other topics: {topics.prefix}.coordinator" in job.tail()
        next_job.start()
        assert f"epoch[{topics.prefix}]=3" in next_job.tail()
        fleet.start("W3")
        assert all(fleet.settled().values())
        fleet.check()


def test_a_checkpoint_without_a_host(topics: Topics, tmp_path: Path) -> None:
    """With ``hdfs:///…``, a URL without a host, the job says what is wrong without a traceback."""
    with Job(topics, tmp_path, checkpoint="hdfs:///muster") as job:
        job.start(wait=False)
        assert job.wait() == 1
        log_lines = job.log_file.read_text().splitlines()
    assert "muster run: Spark does not start" in log_lines[-1]
    assert "hdfs:///muster" in log_lines[-1]
    assert not [line for line in log_lines if "Traceback" in line]
