"""A real Spark cluster of a master and two workers, whose executors are killed at work."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.kafka.brokers import Topics
from support.streams.job import Job
from support.streams.spark_cluster import CONF, SparkCluster, environment
from support.suite.waiting import until
from support.worker.fleet import Fleet

pytestmark = [pytest.mark.broker, pytest.mark.spark]

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
STEADY = {"session.timeout.ms": "45000", "heartbeat.interval.ms": "1000"}
URL = "viewfs://shared/store/checkpoint"
MOUNT = "spark.hadoop.fs.viewfs.mounttable.shared.link./store"
"""Hadoop's setting that gives a folder another URL scheme."""
MUSTER_RUN = (sys.executable, "-m", "muster.cli.main", "run")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A standalone cluster that the tests of this module share."""
    with SparkCluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


def two(cluster: SparkCluster) -> list[psutil.Process]:
    """The executors, once both run."""

    def both() -> list[psutil.Process]:
        executors = cluster.executors()
        return executors if len(executors) == 2 else []

    return until(both, "two executors run", story=lambda: cluster.log("master"))


def replaced(cluster: SparkCluster, lost: list[psutil.Process]) -> None:
    """Wait until the killed executors are gone and two others run."""
    until(lambda: not {*lost} & {*cluster.executors()}, "they are gone")
    two(cluster)


def test_executors_are_killed_one_by_one_and_all_at_once(
    cluster: SparkCluster, topics: Topics, tmp_path: Path
) -> None:
    """``muster run --master spark://…``: executors are killed in rebalances, and no task notices.

    The checkpoint has a URL that only Hadoop knows, as on an object store; a restart finds the
    groups there and asks no member.
    """
    command = (*MUSTER_RUN, "--master", cluster.master)
    (tmp_path / "store").mkdir()
    conf = (*CONF, f"{MOUNT}=file://{tmp_path / 'store'}")
    with (
        Job(topics, tmp_path, checkpoint=URL, command=command, env=environment(), conf=conf) as job,
        Fleet(topics, tmp_path, "g") as fleet,
    ):
        job.start()
        fleet.configure(12, config=STEADY)
        fleet.start("W1", "W2")
        before = fleet.settled()
        first, second = two(cluster)
        for lost, newcomer in (([first], "W3"), ([second], "W4"), ([], "W5")):
            victims = lost or two(cluster)
            fleet.start(newcomer)
            for executor in victims:
                executor.kill()
            after = fleet.settled()
            assert all(after[name] <= before[name] for name in before)
            replaced(cluster, victims)
            before = after
        assert job.stop() == 0
        job.start()
        fleet.stop("W1")
        fleet.settled()
        assert [s for s in fleet.snapshots() if s.coordinator_epoch > 0]
        assert [s for s in fleet.snapshots() if s.recovering] == []
        fleet.check()
        assert job.stop() == 0
    until(lambda: not cluster.executors(), "the cluster is free again")


def test_submitted_as_the_page_says(cluster: SparkCluster, topics: Topics, tmp_path: Path) -> None:
    """The ``spark-submit`` line of the operations page works, with the test's own addresses.

    Killed and submitted again, the job continues from the same checkpoint.
    """
    line = re.search(r"### Standalone\n.*?```sh\n(.*?)```", OPERATIONS.read_text(), re.S)
    assert line is not None
    script = line[1].replace("spark://master:7077", cluster.master)
    start, options, _ = script.partition("--bootstrap-server")
    assert options, "the line ends with the job's own options, which the test replaces"
    env = {**environment(), "PATH": f"{Path(sys.executable).parent}:{environment()['PATH']}"}
    conf = " ".join(f"--conf {shlex.quote(setting)}" for setting in CONF)
    command = ("bash", "-euc", f'{start.rstrip().removesuffix(chr(92))} {conf} "$@"', "submit")
    with (
        Job(topics, tmp_path, command=command, env=env) as job,
        Fleet(topics, tmp_path, "g") as fleet,
    ):
        job.start()
        fleet.configure(6, config=STEADY)
        fleet.start("W1", "W2")
        before = fleet.settled()
        job.kill()
        job.start()
        fleet.start("W3")
        after = fleet.settled()
        assert all(after[name] < before[name] for name in before)
        fleet.check()
