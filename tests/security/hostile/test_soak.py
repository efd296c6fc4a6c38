"""All attacks in turn, round after round, against one job: does anything grow?

``MUSTER_SOAK_MINUTES=60 python -m pytest -s tests/security/hostile/test_soak.py`` prints a line for
each round: the innocent group's answers, the JVM's live heap (what a full collection leaves) and
size, the Python processes, threads, open files, the checkpoint. The first round fills caches. After
it each figure must stay below `MORE` times its value then, and the job must live and answer.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from support.hostile.attack import Attack
from support.hostile.innocent import for_seconds, share
from support.hostile.live_heap import live_heap_mb
from support.hostile.measured_job import measured_job, megabytes, stored, warmed_innocent
from support.kafka.brokers import Topics
from support.protocol.bombs import APART_BOMBS, BOMBS
from support.streams.job import Job

MINUTES = float(os.environ.get("MUSTER_SOAK_MINUTES", "0"))
ATTACK_S = 5.0
RATE = 1_000
BYTES_A_SECOND = 262_144
"""The quota that docs/security.md recommends."""
MORE = 1.25
"""What a figure may be at most, in parts of its value after the first round; in small figures, and
between two cleanings of the checkpoint, chance is larger, so `SLACK` is allowed, too."""
QUIET_S = 5.0

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(not MINUTES, reason="an hour or more, run by MUSTER_SOAK_MINUTES=60"),
]


class Sizes(NamedTuple):
    """What the job takes after a round."""

    live_heap_mb: float
    jvm_mb: float
    python_mb: float
    threads: int
    files: int
    checkpoint_kb: float


SLACK = Sizes(
    live_heap_mb=16, jvm_mb=512, python_mb=256, threads=20, files=100, checkpoint_kb=40_000
)


def sizes(job: Job) -> Sizes:
    """What the job takes now."""
    threads = files = 0
    heap_mb = float("nan")
    for each in [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            threads += each.num_threads()
            files += each.num_fds()
            if each.name() == "java":
                heap_mb = round(live_heap_mb(each.pid), 1)
    return Sizes(heap_mb, *megabytes(job), threads, files, stored(job.checkpoint) >> 10)


@pytest.mark.timeout(60 * MINUTES + 3_600)
def test_nothing_grows_under_attacks(kafka: Topics, tmp_path: Path) -> None:
    """After the first round of all attacks neither memory, threads, files nor checkpoint grow."""
    with measured_job(kafka, tmp_path) as job:
        innocent = warmed_innocent(kafka, job)
        print(f"\n| round | minutes | quiet p99 s | attacked p99 s | {' | '.join(Sizes._fields)} |")
        rounds: list[Sizes] = []
        began_s = time.monotonic()
        while len(rounds) < 3 or time.monotonic() - began_s < 60 * MINUTES:
            took = []
            for bomb in (*BOMBS, *APART_BOMBS):
                limits = {"seconds": ATTACK_S, "rate": RATE, "bytes_a_second": BYTES_A_SECOND}
                attack = Attack(kafka, bomb, is_repeated=True, **limits)
                attack.start()
                took += innocent.asks(attack.is_alive)
                assert job.get("/healthz") == (200, "ok\n"), job.tail()
            quiet = innocent.asks(for_seconds(QUIET_S))
            rounds.append(sizes(job))
            waits = f"{share(quiet, 0.99):.2f} | {share(took, 0.99):.2f}"
            minutes = (time.monotonic() - began_s) / 60
            told = " | ".join(map(str, rounds[-1]))
            print(f"| {len(rounds)} | {minutes:.1f} | {waits} | {told} |", flush=True)
        innocent.close()
    assert all(each.live_heap_mb > 0 for each in rounds)  # NaN is no figure
    first, last = rounds[0], rounds[-1]
    bounds = [MORE * was + slack for was, slack in zip(first, SLACK, strict=True)]
    grown = {
        name: (was, now)
        for name, was, now, bound in zip(Sizes._fields, first, last, bounds, strict=True)
        if now > bound
    }
    assert not grown
