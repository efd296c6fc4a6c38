"""A coordinator is killed, frozen and stopped while another stands by: that one goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from support.kafka.brokers import Topics
from support.streams.job import COMMAND, Job
from support.suite.waiting import until
from support.worker.fleet import Fleet

from muster.cli.main import main

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SETTINGS = {"session.timeout.ms": "60000", "heartbeat.interval.ms": "1000"}


def standby(topics: Topics, folder: Path) -> Job:
    """A process that is started with --standby."""
    return Job(topics, folder, command=(*COMMAND, "--standby"))


def says(job: Job, word: str) -> bool:
    """Whether its ``/readyz`` answers 200 with this word."""
    return job.get("/readyz") == (200, f"{word}\n")


def printed(capfd: pytest.CaptureFixture[str], topics: Topics, *command: str) -> str:
    """What a command prints."""
    capfd.readouterr()
    main([*command, "--bootstrap-server", topics.address, "--topic-prefix", topics.prefix])
    return capfd.readouterr().out


def joins(fleet: Fleet, name: str) -> None:
    """A worker starts, and gets tasks from those that had them; no other task moves."""
    before = fleet.held()
    fleet.start(name)
    after = fleet.settled()
    assert after[name]
    assert all(after[other] <= tasks for other, tasks in before.items())


def test_a_standby_takes_over(
    topics: Topics, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two processes take turns: killed, frozen while its JVM decides on, stopped in order.

    The process that was superseded starts again as the standby, on the folder that it had. No two
    workers ever run a task at once, and only the share of a worker that joins ever moves.
    """
    with (
        standby(topics, tmp_path / "a") as a,
        standby(topics, tmp_path / "b") as b,
        Fleet(topics, tmp_path, "g") as fleet,
    ):
        a.start()
        assert says(a, "ready")
        fleet.configure(12, config=SETTINGS)
        fleet.start("W1", "W2")
        fleet.settled()
        b.start()
        assert says(b, "standby")
        _is_seen(capfd, topics)

        a.kill()
        joins(fleet, "W3")
        until(lambda: says(b, "ready"), "the standby has taken over", story=b.tail)
        a.start()
        assert says(a, "standby")
        assert "checkpoint emptied" not in a.tail()

        # Only Python is frozen: the JVM does not read the claim, and answers workers as before.
        psutil.Process(b.pid).suspend()
        until(lambda: says(a, "ready"), "the standby has taken over", story=a.tail)
        assert "checkpoint emptied" in a.tail()
        joins(fleet, "W4")
        psutil.Process(b.pid).resume()
        assert b.wait() == 1
        assert "after this job" in b.tail()
        b.start()
        assert says(b, "standby")

        assert a.stop(signal.SIGTERM) == 0
        joins(fleet, "W5")
        until(lambda: says(b, "ready"), "the standby has taken over", story=b.tail)
        assert "has ended" in b.tail()
        fleet.check()


def _is_seen(capfd: pytest.CaptureFixture[str], topics: Topics) -> None:
    """The doctor and `groups describe` name the coordinator and the standby."""
    out = printed(capfd, topics, "groups", "describe")
    assert "coordinator: job " in out
    assert out.rstrip().endswith(" stands by")
    signs = [line for line in printed(capfd, topics, "doctor").splitlines() if " signs " in line]
    assert len(signs) == 1
    assert signs[0].startswith("OK")
    assert signs[0].endswith(" stands by")


def test_two_standbys_on_one_folder(topics: Topics, tmp_path: Path) -> None:
    """A second process on the folder of the first is refused, and says why."""
    with (
        standby(topics, tmp_path / "a") as a,
        Job(topics, tmp_path / "b", checkpoint=a.checkpoint, command=(*COMMAND, "--standby")) as b,
    ):
        a.start()
        b.start(wait=False)
        assert b.wait() == 2
        assert "a folder that no other process uses" in b.tail()
        assert says(a, "ready")
