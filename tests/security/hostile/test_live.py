"""Every attack against the running job, beside an innocent group that must be answered.

One job meets all bombs in turn; after each the innocent group is answered and the job lives. Then
the job is started on the same checkpoint and on an empty one, and answers both times.
`MUSTER_HOSTILE_RECORDS` sets the number of records of an attack; ``pytest -s`` prints what the
innocent group noticed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from support.kafka.brokers import Topics
from support.protocol.bombs import APART_BOMBS, BOMBS, Bomb, config
from support.streams.job import Job
from support.suite.waiting import until

from muster.protocol.events import Join
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import MemberAssignment
from muster.protocol.topics import TopicKind

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RECORDS = int(os.environ.get("MUSTER_HOSTILE_RECORDS", "1000"))
INNOCENT = GroupId("innocent")
PATIENCE_S = 240.0
PYTHON_BYTES_MAX = 1 << 29
"""Far below the default; a group that needs more would be quarantined."""
HEAP_BYTES_MAX = 1 << 30
"""Spark's default for `spark.driver.memory`."""
PEAK_MB_MAX = 4 * 400 + (HEAP_BYTES_MAX >> 20) + 1_024
"""Python's processes, the JVM's heap, and what the JVM has beside its heap."""
CONF = (
    "muster.stall.ms=120000",
    f"muster.python.bytes.max={PYTHON_BYTES_MAX}",
    "spark.driver.memory=1g",
)


class Innocent:
    """A group whose members join and must be answered."""

    def __init__(self, topics: Topics) -> None:
        # The records of a hostile group may be in parts, or refer to a dictionary of names.
        self.topics = Topics(topics.address, topics.prefix, only=INNOCENT)
        self._turn = 0
        topics.write(TopicKind.CONFIG, config(4, group=INNOCENT))

    def asks(self, job: Job) -> float:
        """Seconds until a member that joins has an assignment."""
        self._turn += 1
        member = MemberId(f"i{self._turn}")
        began = time.monotonic()
        self.topics.write(
            TopicKind.MEMBERSHIP, Join(group=INNOCENT, member=member, incarnation=self._turn)
        )

        def answered() -> bool:
            assert job.poll() is None, f"the job has ended\n{job.tail()}"
            return any(
                isinstance(record, MemberAssignment) and record.member == member
                for record in self.topics.records(TopicKind.ASSIGNMENTS)
            )

        until(answered, f"{member} is answered", timeout_s=PATIENCE_S, story=job.tail)
        return time.monotonic() - began


@pytest.fixture(scope="module")
def target(kafka: Topics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """The job that is attacked."""
    with Job(kafka, tmp_path_factory.mktemp("target"), conf=CONF) as job:
        yield job.start()


@pytest.fixture(scope="module")
def innocent(target: Job, kafka: Topics) -> Iterator[Innocent]:
    """The innocent group, answered once."""
    group = Innocent(kafka)
    with closing(group.topics):
        group.asks(target)
        yield group


def throw(topics: Topics, bomb: Bomb) -> int:
    """Write all records of an attack at once; return their bytes."""
    told = topics.clients.producer({"linger.ms": 20, "message.max.bytes": 1_048_588})
    producer = Producer(told)
    size = 0
    for kind, key, value in bomb.records(RECORDS):
        size += len(key or b"") + len(value or b"")
        producer.produce(topics.name(kind), key=key, value=value)
        producer.poll(0)
    assert producer.flush(60) == 0
    return size


def peak_megabytes(job: Job) -> int:
    """Sum of the largest memory that the job, its JVM and its Python workers ever had, in MB."""
    family = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    peaks_kb = 0
    for each in family:
        with suppress(OSError):  # a process that has ended
            status = Path(f"/proc/{each.pid}/status").read_text(encoding="ascii")
            peak = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
            peaks_kb += int(peak[1]) if peak else 0  # a zombie has none
    return peaks_kb >> 10


@pytest.mark.timeout(1_800)  # each wait has its own limit
def test_the_innocent_are_answered(
    target: Job, innocent: Innocent, kafka: Topics, tmp_path: Path
) -> None:
    """After every attack the innocent group is answered, and the job lives within its memory.

    Afterwards the job starts on the same checkpoint and on an empty one, and answers.
    """
    peak_mb = 0
    for bomb in (*BOMBS, *APART_BOMBS):
        size = throw(kafka, bomb)
        took_s = innocent.asks(target)
        after_s = innocent.asks(target)
        assert target.get("/healthz") == (200, "ok\n"), target.tail()
        peak_mb = max(peak_mb, peak_megabytes(target))
        print(
            f"\n{bomb.name}: {size} bytes; answered behind it in {took_s:.2f} s, then in"
            f" {after_s:.2f} s; {peak_mb} MB at most; {kafka.end(TopicKind.REJECTED)} letters"
        )
    assert peak_mb <= PEAK_MB_MAX
    lines = target.get("/metrics")[1].splitlines()
    told = [line for line in lines if line.startswith("muster_groups_quarantined{")]
    assert [line.split()[-1] for line in told] == ["0.0"]
    target.kill()
    target.start()
    innocent.asks(target)
    target.kill()
    with Job(kafka, tmp_path, conf=CONF) as anew:
        anew.start()
        innocent.asks(anew)
