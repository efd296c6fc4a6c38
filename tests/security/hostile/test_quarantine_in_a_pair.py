"""A group whose events end the coordinator's process, with a pair of coordinators.

Each process that ends is started again, as a supervisor does, and stands by. The other one takes
over, on a checkpoint that it has emptied, and meets the same events.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kafka.brokers import Topics
from support.protocol.bombs import config
from support.streams.job import COMMAND, Job
from support.suite.waiting import until
from support.worker.fleet import Fleet

from muster.protocol.ids import GroupId
from muster.protocol.topics import TopicKind

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TESTS = Path(__file__).parents[2]
ABORTS = "support.plugin_assignors:Aborts"
CONF = (f"muster.assignors={ABORTS}",)
SETTINGS = {"session.timeout.ms": "120000", "heartbeat.interval.ms": "1000"}


def pair(topics: Topics, folder: Path) -> tuple[Job, Job]:
    """Two processes that stand by for each other."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", ""))),
    }
    command = (*COMMAND, "--standby")
    a, b = (Job(topics, folder / name, conf=CONF, env=env, command=command) for name in "ab")
    return a, b


def supervised(jobs: tuple[Job, Job], is_done: Callable[[], bool], what: str) -> int:
    """Start again whichever process ends, until something is done; return how often one ended."""
    ends = 0

    def look() -> bool:
        nonlocal ends
        for job in jobs:
            if job.poll() is not None:
                ends += 1
                job.start(wait=False)
        return is_done()

    until(look, what, timeout_s=300, story=lambda: "\n".join(job.tail() for job in jobs))
    return ends


@pytest.mark.timeout(600)
def test_a_pair_sets_a_group_aside(topics: Topics, tmp_path: Path) -> None:
    """The process of the third claim quarantines the group, and the other group is answered."""
    a, b = jobs = pair(topics, tmp_path)
    with a, b, Fleet(topics, tmp_path, "innocent") as innocent, Fleet(topics, tmp_path, "g") as g:
        a.start()
        innocent.configure(4, config=SETTINGS)
        g.configure(4, config=SETTINGS)
        innocent.start("I1")
        g.start("G1")
        innocent.settled()
        g.settled()
        b.start()
        topics.write(
            TopicKind.CONFIG,
            config(4, ABORTS, GroupId("g"), session_timeout_ms=120_000, heartbeat_interval_ms=1000),
        )

        def is_aside() -> bool:
            newest = g.newest()
            return newest is not None and newest.quarantine is not None

        ends = supervised(jobs, is_aside, "the group is quarantined")
        innocent.start("I2")
        assert supervised(jobs, innocent.is_settled, "the other group is answered") == 0
        assert ends <= 3
