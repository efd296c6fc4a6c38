"""A coordinator's normal life writes nothing at WARN or above to its log."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from support.kafka.brokers import Topics
from support.streams.job import Job
from support.worker.fleet import Fleet

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TROUBLE = re.compile(
    r"\b(WARN(ING)?|ERROR|FATAL)\b|\[(warning|error|critical) *\]|Traceback|Exception"
    r"|Error:|^\s+at "
)
"""A line above INFO, of muster or of the JVM, or a part of a stack trace."""


def test_a_normal_life_writes_no_warning(topics: Topics, tmp_path: Path) -> None:
    """Members come, leave and die, and the job restarts, even without its checkpoint: no warning.

    The log has lines for the generations, none at WARN or above, and no stack trace.
    """
    folder = tmp_path / "job"
    with Job(topics, folder) as job:
        job.start()
        for number, group in enumerate(("a", "b")):
            with Fleet(topics, tmp_path, group) as fleet:
                fleet.configure(6)
                fleet.start("W1", "W2")
                fleet.settled()
                fleet.start("W3")
                fleet.settled()
                fleet.stop("W1")
                fleet.settled()
                if number == 0:
                    assert job.stop(signal.SIGTERM) == 0
                    job.start()
                fleet.kill("W2")
                fleet.settled()
                fleet.stop("W3")
        assert job.stop(signal.SIGTERM) == 0
    with Job(topics, folder, checkpoint=tmp_path / "another") as job:
        job.start()
        assert job.stop(signal.SIGTERM) == 0
    lines = job.log_file.read_text().splitlines()
    assert sum("generation" in line for line in lines) >= 6
    assert [line for line in lines if TROUBLE.search(line)] == []
