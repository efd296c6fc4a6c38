"""A real Connect cluster of unmodified workers, governed: pins, a swap in two rounds, a drain."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.adopt.connect import ConnectCluster, Worker
from support.adopt.fleet import MATRIX, Fleet
from support.kafka.brokers import Topics
from support.suite.waiting import until

from muster.cli.main import main

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def looked_at(
    cluster: ConnectCluster, one: Worker, two: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    """`muster shadow` sees what each worker runs, and what would move if one stopped."""

    def shadow(*words: str) -> dict[str, Any]:
        where = ("--bootstrap-server", cluster.address, "--format", "json")
        assert main(["shadow", "--group", cluster.group, *where, *words]) == 0
        return json.loads(capsys.readouterr().out)

    def shown() -> tuple[str, dict[str, set[str]]]:
        seen = shadow()
        return seen["kind"], {m["id"]: set(m["active"]) for m in seen["members"]}

    def run() -> dict[str, set[str]]:
        places = cluster.places()
        return {each.name: {job for job in places if places[job] == each.name} for each in both}

    both = (one, two)
    until(  # Connect may move a job between the two looks
        lambda: shown() == ("connect", run()),
        "shadow shows what each worker runs",
        story=lambda: (shown(), run(), cluster.story()),
    )
    rest = ("--connect-url", f"http://{one.name}")
    left = shadow("--remove-member", two.name, *rest)["plan"]["members"]
    assert set(left) == {one.name}
    assert set(left[one.name]["active"]) == set(cluster.places())


def test_pins_swap_and_drain(kafka, job, tmp_path, capsys):
    """Jobs go where pins say, move in two rounds, leave a drained worker; REST works all along."""
    with (
        ConnectCluster(kafka.address, tmp_path / "connect") as cluster,
        Fleet(kafka, tmp_path / "fleet", partitions=1) as fleet,
    ):
        fleet.group = cluster.group
        one, two = cluster.start(), cluster.start()
        cluster.ready()
        cluster.connector("a", 2)
        cluster.connector("b", 1)
        jobs = ("a", "a-0", "a-1", "b", "b-0")
        until(lambda: set(cluster.places()) == set(jobs), "Connect places", story=cluster.story)

        looked_at(cluster, one, two, capsys)

        def adopt(name: str, pins: dict[str, str]):
            words = [w for job, worker in pins.items() for w in ("--pin", f"{job}={worker}")]
            delay = ("--config", "scheduled.rebalance.max.delay.ms=0")
            topic = ("--config-topic", cluster.config_topic)
            return fleet.adopt(*topic, *delay, *words, name=name)

        def placed(wanted: dict[str, str], story: str) -> None:
            until(
                lambda: cluster.places() == wanted,
                story,
                pause_s=0.5,
                story=lambda: (cluster.places(), fleet.story(), cluster.story()),
            )

        pins = {job: (one if job.startswith("a") else two).name for job in jobs}
        governor = adopt("first", pins)
        placed(pins, "jobs are where they are pinned")

        governor.process.kill()
        swapped = {job: (two if job.startswith("a") else one).name for job in jobs}
        governor = adopt("second", swapped)
        placed(swapped, "the pins are swapped")

        until(lambda: one.ask("POST", "/connectors/a/restart?includeTasks=true"), "a restarts")
        placed(swapped, "all run again")

        governor.process.send(signal.SIGTERM)
        assert governor.ends() == 0
        governor = adopt("third", {})
        until(lambda: len(fleet.described().get("members", ())) == 2, "governed without pins")
        done = fleet.muster("drain", "--member", two.name, "--wait", "--timeout-ms", "60000")
        assert (done.returncode, "empty" in done.stdout) == (0, True), done.stderr
        placed(dict.fromkeys(jobs, one.name), "the drained worker runs nothing")
        cluster.stop(two)

        governor.process.send(signal.SIGTERM)
        assert governor.ends() == 0
        cluster.start()
        cluster.ready()
        until(
            lambda: len(set(cluster.places().values())) == 2,
            "Connect's own assignor goes on",
            pause_s=0.5,
            story=cluster.story,
        )
        cluster.check_alone()


@contextmanager
def two_workers(
    kafka: Topics, folder: Path, protocol: str = "sessioned"
) -> Iterator[tuple[ConnectCluster, Fleet, Worker, Worker]]:
    """A Connect cluster of two workers, and what may govern it."""
    with (
        ConnectCluster(kafka.address, folder / "connect") as cluster,
        Fleet(kafka, folder / "fleet", partitions=1) as fleet,
    ):
        fleet.group = cluster.group
        one, two = cluster.start(protocol), cluster.start(protocol)
        cluster.ready()
        yield cluster, fleet, one, two
        cluster.check_alone()


@MATRIX
@pytest.mark.parametrize("protocol", ["eager", "compatible"])
def test_connects_older_protocols(kafka, job, tmp_path, protocol):
    """Workers of `connect.protocol` eager and compatible go where pins say, and are swapped."""
    with two_workers(kafka, tmp_path, protocol) as (cluster, fleet, one, two):
        cluster.connector("a", 2)
        cluster.connector("b", 1)
        jobs = ("a", "a-0", "a-1", "b", "b-0")
        until(lambda: set(cluster.places()) == set(jobs), "Connect places", story=cluster.story)
        both = f"({'default' if protocol == 'eager' else protocol}): 2 members; "
        for name, (left, right) in {"first": (one, two), "second": (two, one)}.items():
            pins = {job: (left if job.startswith("a") else right).name for job in jobs}
            words = [w for job, worker in pins.items() for w in ("--pin", f"{job}={worker}")]
            governor = fleet.adopt("--config-topic", cluster.config_topic, *words, name=name)
            until(
                lambda file=governor.file: both in file.read_text(),
                "the governor answers both",
                story=fleet.story,
            )
            until(
                lambda pins=pins: cluster.places() == pins,
                f"the {name} pins hold",
                pause_s=0.5,
                story=lambda: (cluster.places(), fleet.story(), cluster.story()),
            )
            governor.process.send(signal.SIGTERM)
            assert governor.ends() == 0


@MATRIX
def test_a_lost_workers_jobs_wait(kafka, job, tmp_path):
    """As in Connect, no worker runs them before `scheduled.rebalance.max.delay.ms` is over."""
    with two_workers(kafka, tmp_path) as (cluster, fleet, _, two):
        cluster.connector("a", 3)
        until(lambda: len(cluster.places()) == 4, "Connect places", story=cluster.story)
        delay = ("--config", "scheduled.rebalance.max.delay.ms=20000")
        governor = fleet.adopt("--config-topic", cluster.config_topic, *delay)

        def said() -> str:
            return governor.file.read_text(errors="replace")

        until(lambda: ": 2 members; " in said(), "it answers both", story=fleet.story)
        until(
            lambda: (jobs := Counter(cluster.places().values())).total() == 4 and len(jobs) == 2,
            "both have their share",
            pause_s=0.5,
            story=fleet.story,
        )
        lost = Counter(cluster.places().values())[two.name]
        cluster.kill(two)
        until(
            lambda: set(cluster.running()) == {"a", "a-0", "a-1", "a-2"},
            "the other worker runs all",
            pause_s=0.5,
            story=fleet.story,
        )
        alone = said().rpartition(": 2 members; ")[2]
        starts = re.findall(r": 1 member; (\d+) tasks? to start, 0 to stop", alone)
        assert starts[0] == "0", alone
        assert [int(count) for count in starts if count != "0"] == [lost], alone


@MATRIX
def test_a_connector_that_weighs_more(kafka, job, tmp_path):
    """`--weight heavy=4`: the worker that runs its one task runs one other job of seven."""
    with two_workers(kafka, tmp_path) as (cluster, fleet, one, two):
        cluster.connector("heavy", 1)
        cluster.connector("light", 4)
        until(lambda: len(cluster.places()) == 7, "Connect places", story=cluster.story)
        fleet.adopt("--config-topic", cluster.config_topic, "--weight", "heavy=4")

        def loads() -> dict[str, int]:
            """The weight of what each worker runs."""
            load = {one.name: 0, two.name: 0}
            for job, worker in cluster.places().items():
                load[worker] += 4 if job == "heavy-0" else 1
            return load

        until(
            lambda: loads() == {one.name: 5, two.name: 5},
            "the weight counts",
            timeout_s=90,
            pause_s=0.5,
            story=fleet.story,
        )
