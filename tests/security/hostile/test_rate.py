"""What an innocent group notices of each attack at a steady rate, printed as a table.

``MUSTER_HOSTILE_SECONDS=10 python -m pytest -s tests/security/hostile/test_rate.py`` writes each
attack for 10 seconds at `RATE` records a second. It prints the innocent group's time from event to
answer (broker timestamps) before and during the attack, memory, and the size of the checkpoint. The
test asserts that every event is answered and the job lives; the times depend on the machine.

``MUSTER_HOSTILE_AT_ONCE=1`` writes each attack once, as fast as the broker takes it, in the sizes
of `SIZES`, instead of at a steady rate. The innocent group is asked for as many seconds from then.

``MUSTER_HOSTILE_BYTES=262144`` limits the attacker to so many bytes a second, as a Kafka quota
does. ``MUSTER_HOSTILE_READER=1`` adds a plain reader of the input topics, and a column with the
99th percentile of its time from event to read: where that is long, the broker is the limit.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from support.hostile.attack import Attack
from support.hostile.innocent import INNOCENT, for_seconds, share
from support.hostile.measured_job import measured_job, megabytes, stored, warmed_innocent
from support.kafka.brokers import Topics
from support.protocol.bombs import APART_BOMBS, BOMBS, Bomb
from support.streams.job import Job

from muster.protocol.topics import INPUTS

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(
        "MUSTER_HOSTILE_SECONDS" not in os.environ,
        reason="a measurement, run by MUSTER_HOSTILE_SECONDS=10; test_live asserts the same",
    ),
]

RATE = 1_000
SECONDS = float(os.environ.get("MUSTER_HOSTILE_SECONDS", "1"))
ONLY = os.environ.get("MUSTER_HOSTILE_ONLY", "")
"""Names of attacks, separated by commas; empty = all."""
BYTES = float(os.environ.get("MUSTER_HOSTILE_BYTES", "inf"))
"""Bytes that the attacker writes in a second, at most."""
AT_ONCE = "MUSTER_HOSTILE_AT_ONCE" in os.environ
SIZES = {"groups": 100_000, "unknown members": 80_000, "ticking": 20_000, "rubbish": 100_000}
"""Records of an attack that is written at once; of `ticking`, a hundred for each group."""
SIZE = 2_000
"""Records of the other attacks that are written at once."""
HAS_READER = "MUSTER_HOSTILE_READER" in os.environ


class Reader(threading.Thread):
    """Reads the input topics and does nothing else; `took` has the innocent's waits, in seconds."""

    def __init__(self, topics: Topics) -> None:
        super().__init__(daemon=True)
        settings = {"group.id": "reader", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
        self._consumer = Consumer(topics.clients.librdkafka(settings))
        names = [topics.name(kind) for kind in INPUTS]
        found = self._consumer.list_topics(timeout=30).topics
        places = [(name, number) for name in names for number in found[name].partitions]
        self._consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
        self._ended = threading.Event()
        self.took: list[float] = []

    def run(self) -> None:
        """Read until `end`."""
        while not self._ended.is_set():
            for message in self._consumer.consume(1_000, 0.02):
                if message.key() == INNOCENT.encode():
                    self.took.append(max(time.time() - message.timestamp()[1] / 1000, 0))
        self._consumer.close()

    def end(self) -> None:
        """Stop reading."""
        self._ended.set()
        self.join()


@pytest.fixture(scope="module")
def target(kafka: Topics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """The job that is attacked."""
    with measured_job(kafka, tmp_path_factory.mktemp("target")) as job:
        yield job


def row(
    name: str, took: list[float], job: Job, attack: Attack | None, reader: Reader | None
) -> str:
    """A line of the table."""
    jvm, python = megabytes(job)
    wrote = f"{attack.written} / {attack.bytes >> 10} kB" if attack else ""
    read = f"{share(reader.took, 0.99):.2f}" if reader and reader.took else ""
    if reader is not None:
        reader.took = []
    return (
        f"| {name} | {wrote} | {len(took)} | {share(took, 0.5):.2f} | {share(took, 0.99):.2f}"
        f" | {read} | {jvm} | {python} | {stored(job.checkpoint) >> 10} |"
    )


@pytest.mark.timeout(3_600)  # each wait has its own limit
def test_the_innocent_beside_each_attack(target: Job, kafka: Topics) -> None:
    """The innocent group is answered before, during and after each attack."""
    innocent = warmed_innocent(kafka, target)
    reader = Reader(kafka) if HAS_READER else None
    if reader is not None:
        reader.start()
    print("\n| attack | records / bytes | asked | p50 s | p99 s | plain reader p99 s", end="")
    print(" | JVM MB | Python MB | kB |")
    print(row("quiet", innocent.asks(for_seconds(SECONDS)), target, None, reader), flush=True)
    wanted = set(filter(None, ONLY.split(",")))
    for bomb in (*BOMBS, *APART_BOMBS):
        if wanted and bomb.name not in wanted:
            continue
        attack = attack_of(kafka, bomb)
        attack.start()
        time_left = for_seconds(SECONDS)
        took = innocent.asks(lambda: attack.is_alive() or time_left())  # noqa: B023  used here only
        attack.join()
        print(row(bomb.name, took, target, attack, reader), flush=True)
        assert target.get("/healthz") == (200, "ok\n"), target.tail()
    innocent.close()
    if reader is not None:
        reader.end()


def attack_of(topics: Topics, bomb: Bomb) -> Attack:
    """The attack as the environment asks for it: at a steady rate, or all at once."""
    limits = {"seconds": SECONDS, "bytes_a_second": BYTES}
    if AT_ONCE:
        return Attack(topics, bomb, records=SIZES.get(bomb.name, SIZE), **limits)
    return Attack(topics, bomb, rate=RATE, is_repeated=True, **limits)
