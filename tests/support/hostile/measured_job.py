"""The job that is attacked, as users run it: its start, its warm-up, its memory and checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from support.hostile.attack import Attack
from support.hostile.innocent import Innocent
from support.kafka.brokers import Topics
from support.protocol.bombs import Bomb, Raw, config, raw
from support.streams.job import Job
from support.suite.waiting import until

from muster.protocol.events import GroupDeleted, Join, Leave
from muster.protocol.ids import GroupId, MemberId

WARM_UP_S = 70.0
"""A JVM compiles what it runs often; before that an answer takes four times as long. So an ordinary
life goes on for so long first: members of `FLEETS` groups join and leave, `DEPLOY_RATE` records a
second. The first job on a machine makes its class archive after a minute (`class_archive`), which
takes a core for ten seconds, once: the measurement waits for its end, too."""
FLEETS = 100
DEPLOY_RATE = 300


@contextmanager
def measured_job(topics: Topics, folder: Path) -> Iterator[Job]:
    """A started job with the JVM that users have (see `support.suite.jvms`)."""
    env = {**os.environ, "SPARK_SUBMIT_OPTS": ""}
    with Job(topics, folder, conf=["muster.stall.ms=120000"], env=env) as job:
        yield job.start()


def warmed_innocent(topics: Topics, job: Job) -> Innocent:
    """An innocent group that has been asked during an ordinary life of `WARM_UP_S`."""
    innocent = Innocent(topics, job)
    life = Bomb("ordinary life", ordinary_life)
    warm_up = Attack(topics, life, seconds=2 * WARM_UP_S, rate=DEPLOY_RATE)
    warm_up.start()
    innocent.asks(warm_up.is_alive)
    until(lambda: not makes_class_archive(job), "no class archive is being made")
    return innocent


def ordinary_life(_: int) -> Iterator[Raw]:
    """Members of `FLEETS` groups join and leave for `WARM_UP_S`; then the groups are deleted."""
    fleets = [GroupId(f"fleet{number}") for number in range(FLEETS)]
    for group in fleets:
        yield raw(config(group=group, initial_rebalance_delay_ms=0))
    for turn in range(int(DEPLOY_RATE * WARM_UP_S) // (2 * FLEETS)):
        for kind in (Join, Leave):
            for group in fleets:
                yield raw(kind(group=group, member=MemberId(f"m{turn}"), incarnation=1))
    for group in fleets:
        yield raw(GroupDeleted(group=group))


def megabytes(job: Job) -> tuple[int, int]:
    """Memory of the JVM, and of all Python processes, in MB."""
    jvm = python = 0
    for each in [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]:
        try:
            size, is_java = each.memory_info().rss >> 20, each.name() == "java"
        except psutil.NoSuchProcess:
            continue
        jvm, python = (jvm + size, python) if is_java else (jvm, python + size)
    return jvm, python


def makes_class_archive(job: Job) -> bool:
    """Whether the job makes the archive that shortens later starts."""
    for child in psutil.Process(job.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile, or its parent has yet to see it
            if "-Xshare:dump" in child.cmdline():
                return True
    return False


def stored(folder: Path) -> int:
    """Total size of a folder's files, in bytes."""
    total = 0
    for each in folder.rglob("*"):
        with suppress(FileNotFoundError):  # Spark has deleted it meanwhile
            total += each.stat().st_size if each.is_file() else 0
    return total
