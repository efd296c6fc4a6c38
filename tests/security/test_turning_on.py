"""One job's life with session keys: a missing file, off, on, and required."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kafka.brokers import Topics
from support.streams.job import Job
from support.suite.waiting import until
from support.worker.fleet import Fleet
from support.worker.overlap import FOREVER, Tenure
from support.worker.ring import Ring, letters

from muster.protocol.records import MemberAssignment
from muster.protocol.topics import TopicKind
from muster.signing.followed_key_file import VARIABLE

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TASKS = 6
SIGNED, BARE = ("W1", "W2"), "W3"
PATIENT = {"session.timeout.ms": "15000", "heartbeat.interval.ms": "500"}
"""A busy machine may delay a member for two seconds; it must not lose its tasks."""


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    """A keyring that requires no signatures yet."""
    return Ring(tmp_path / "ring.json")


@pytest.fixture
def fleet(kafka: Topics, tmp_path: Path) -> Iterator[Fleet]:
    """A group without members."""
    with Fleet(kafka, tmp_path, "turned") as fleet:
        yield fleet


def coordinator(kafka: Topics, folder: Path, ring: Ring | None) -> Job:
    """The job on this test's checkpoint, with the keyring or without."""
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return Job(kafka, folder, env=env if ring is None else {**env, VARIABLE: str(ring.file)})


def tenures(fleet: Fleet) -> set[Tenure]:
    """The tenures that have not ended; no task ever had two owners."""
    return {tenure for tenure in fleet.check() if tenure.stop_ns == FOREVER}


def test_signing_is_turned_on_for_a_running_group(
    kafka: Topics, tmp_path: Path, ring: Ring, fleet: Fleet
) -> None:
    """A job whose executor finds no keyring names the file, processes nothing and ends.

    Jobs on the same checkpoint then run without keys and with them, and no task stops until
    signatures are required: then only the unsigned member's tasks move.
    """
    with coordinator(kafka, tmp_path / "job", ring) as job:
        job.start()
        with ring.away():
            fleet.configure(TASKS, config=PATIENT)
            assert job.wait() == 1
        assert f"{str(ring.file)!r} is not accepted; expected a readable keyring" in job.tail()
        assert fleet.snapshots() == []
        with ring.away():
            assert job.start(wait=False).wait() == 2
        assert f"keyring: {str(ring.file)!r} is not accepted" in job.tail()

    with coordinator(kafka, tmp_path / "job", None) as job:
        job.start()
        fleet.start(*SIGNED, signing_keys=str(ring.file))
        fleet.start(BARE)
        before = fleet.settled()
        assert sorted(map(len, before.values())) == [2, 2, 2]
        running = tenures(fleet)
        assert job.stop() == 0

    with coordinator(kafka, tmp_path / "job", ring) as job:
        job.start()
        heard = kafka.end(TopicKind.MEMBERSHIP)
        until(lambda: kafka.end(TopicKind.MEMBERSHIP) >= heard + 12, "it listens", story=job.tail)
        assert fleet.settled() == before
        assert (letters(kafka), tenures(fleet)) == ([], running)

        ring("require", "--group", "*", "--spread-ms", "2000")
        until(lambda: not fleet.held()[BARE], "the one without a key stops", story=fleet.story)
        until(
            lambda: sum(len(fleet.held()[name]) for name in SIGNED) == TASKS,
            "the others take over",
            story=fleet.story,
        )
        assert {t.member for t in running - tenures(fleet)} == {BARE}
        assert {reason for reason, _ in letters(kafka)} == {"UNSIGNED"}
        assignments = [
            r for r in kafka.records(TopicKind.ASSIGNMENTS) if isinstance(r, MemberAssignment)
        ]
        assert {r.member for r in assignments if r.fault is not None} == {BARE}
