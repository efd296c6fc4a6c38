"""A governed group while its broker restarts and its coordinator is killed."""

from __future__ import annotations

import pytest
from support.adopt.fleet import MATRIX, Fleet
from support.kafka.brokers import new_topics
from support.streams.job import Job
from support.suite.waiting import until

COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}


@pytest.mark.broker
def test_the_broker_restarts(own_broker, tmp_path):
    """The governor finds it again, and leads; every record is processed."""
    topics = new_topics(own_broker.bootstrap_server)
    with Fleet(topics, tmp_path, partitions=4) as fleet:
        fleet.produces()
        governor = fleet.adopt("--fresh", "consumer")
        fleet.consumer("A", **COOPERATIVE)
        until(
            lambda: ": 1 member; " in governor.file.read_text(),
            "the governor leads",
            story=fleet.story,
        )
        fleet.settles({"A": 4}, "one consumer has all")
        fleet.rests()
        own_broker.stop()
        own_broker.start()
        fleet.produces()
        fleet.consumer("B", **COOPERATIVE)
        until(
            lambda: ": 2 members; " in governor.file.read_text(),
            "the governor leads again",
            story=fleet.story,
        )
        fleet.settles([2, 2], "both have their share")
        done = fleet.muster("adopt", "--release")
        assert done.returncode == 0, (done.stderr, fleet.story())
        fleet.settles([2, 2], "the group goes on")
        fleet.check()
    topics.close()


@MATRIX
@pytest.mark.broker
@pytest.mark.spark
def test_the_coordinator_is_killed(own_broker, tmp_path):
    """The group does not wait for it, and what was decided stands when it is back."""
    topics = new_topics(own_broker.bootstrap_server)
    with Fleet(topics, tmp_path / "fleet", partitions=6) as fleet, Job(topics, tmp_path) as job:
        job.start()
        fleet.produces()
        governor = fleet.adopt("--fresh", "consumer")
        fleet.consumer("A", **COOPERATIVE)
        fleet.settles({"A": 6}, "one consumer has all")
        job.kill()
        fleet.consumer("B", **COOPERATIVE)
        fleet.settles({"A": 3, "B": 3}, "the governor decides")
        assert "the governor decided" in governor.file.read_text()
        before = fleet.tenures()
        job.start()
        until(
            lambda: sorted(len(m["active"]) for m in fleet.described()["members"]) == [3, 3],
            "muster's books agree",
            pause_s=0.5,
            story=fleet.story,
        )
        fleet.check()
        moved = {part: len(tenures) for part, tenures in fleet.tenures().items()}
        assert moved == {part: len(tenures) for part, tenures in before.items()}
    topics.close()
