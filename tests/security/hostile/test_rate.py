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

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import psutil
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from support.kafka.brokers import Topics
from support.protocol.bombs import APART_BOMBS, BOMBS, Bomb, Raw, config, raw
from support.streams.job import Job
from support.suite.waiting import until

from muster.protocol import codec
from muster.protocol.events import Event, GroupDeleted, Join, Leave
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keys import key_of
from muster.protocol.topics import INPUTS, TopicKind

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
PACE_S = 0.1
"""Seconds between two joins of the innocent group."""
STEP_S = 0.005
"""The attacker writes so far ahead of its rate, then rests."""
WARM_UP_S = 70.0
"""A JVM compiles what it runs often; before that an answer takes four times as long. So an ordinary
life goes on for so long first: members of `FLEETS` groups join and leave, `DEPLOY_RATE` records a
second. The first job on a machine makes its class archive after a minute (`class_archive`), which
takes a core for ten seconds, once: the measurement waits for its end, too."""
FLEETS = 100
DEPLOY_RATE = 300
INNOCENT = GroupId("innocent")
PATIENCE_S = 240.0


class Innocent:
    """A group of which a new member joins every `PACE_S`, is answered and leaves.

    The members join whether or not the ones before are answered, so that the answers of a slow
    moment count as often as those of a fast one.
    """

    def __init__(self, topics: Topics, job: Job) -> None:
        self._job = job
        self._topic = topics.name(TopicKind.MEMBERSHIP)
        self._producer = Producer(topics.clients.producer({"linger.ms": 0}))
        self._answers = answers(topics)
        self._turn = 0
        self._written_ms: dict[bytes, int] = {}
        """Record key of a member's assignment → broker timestamp of its join."""
        self._waiting: dict[bytes, Join] = {}
        self._took: list[float] = []
        topics.write(TopicKind.CONFIG, config(4, group=INNOCENT, initial_rebalance_delay_ms=0))

    def asks(self, more: Callable[[], bool]) -> list[float]:
        """Let members join while `more()`, and wait until all are answered.

        Returns:
            Seconds from each join to its answer, by the broker's timestamps.
        """
        self._took = []
        next_s = time.monotonic()
        while more():
            if time.monotonic() >= next_s:
                next_s += PACE_S
                self._join()
            self._look()
        story = self._job.tail
        until(self._is_done, "all members are answered", timeout_s=PATIENCE_S, story=story)
        return self._took

    def close(self) -> None:
        """Stop reading."""
        self._answers.close()

    def _is_done(self) -> bool:
        assert self._job.poll() is None, self._job.tail()
        self._look()
        return not self._waiting

    def _join(self) -> None:
        self._turn += 1
        member = MemberId(f"i{self._turn}")
        join = Join(group=INNOCENT, member=member, incarnation=self._turn)
        key = key_of(INNOCENT, member)
        self._waiting[key] = join
        self._write(join, key)

    def _look(self) -> None:
        """Take what has been answered; who is answered leaves."""
        self._producer.poll(0)
        for message in self._answers.consume(10_000, 0.01):
            key = message.key()
            if key not in self._waiting or key not in self._written_ms or not message.value():
                continue
            join = self._waiting.pop(key)
            spent_ms = message.timestamp()[1] - self._written_ms.pop(key)
            self._took.append(max(spent_ms, 0) / 1000)
            leave = Leave(group=INNOCENT, member=join.member, incarnation=join.incarnation)
            self._write(leave)

    def _write(self, event: Event, key: bytes | None = None) -> None:
        """Write an event; with a key, remember the broker's timestamp under it."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None
            if key is not None:
                self._written_ms[key] = message.timestamp()[1]

        encoded = codec.encode(event)
        self._producer.produce(self._topic, encoded.value, encoded.key, on_delivery=delivered)
        if key is not None:
            self._producer.flush(60)  # its answer must not be read before its timestamp is known


def answers(topics: Topics) -> Consumer:
    """A reader of the assignments; it decodes nothing, since attacks cause large records too."""
    settings = {"group.id": "rate", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    consumer = Consumer(topics.clients.librdkafka(settings))
    name = topics.name(TopicKind.ASSIGNMENTS)
    found = consumer.list_topics(name, timeout=30).topics[name].partitions
    consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for number in found])
    return consumer


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


class Attack(threading.Thread):
    """Writes a bomb's records at a steady rate, again and again or once, or once without a rate."""

    def __init__(
        self,
        topics: Topics,
        bomb: Bomb,
        *,
        seconds: float = SECONDS,
        rate: float = math.inf if AT_ONCE else RATE,
        once: bool = AT_ONCE,
    ) -> None:
        super().__init__(daemon=True)
        told = topics.clients.producer({"linger.ms": 20, "message.max.bytes": 1_048_588})
        self._producer, self._topics = Producer(told), topics
        self._seconds, self._rate, self._once = seconds, rate, once
        count = SIZES.get(bomb.name, SIZE) if math.isinf(rate) else int(rate * seconds)
        self._records = list(bomb.records(count))  # made before the clock starts
        self.written = 0
        self.bytes = 0

    def run(self) -> None:
        """Write until the time is over."""
        began_s = time.monotonic()
        for kind, key, value in self._records if self._once else cycle(self._records):
            spent_s = time.monotonic() - began_s
            if spent_s > self._seconds:
                break
            self.written += 1
            self.bytes += len(key or b"") + len(value or b"")
            try:
                self._producer.produce(self._topics.name(kind), value, key)
            except BufferError:
                self._producer.poll(1)
            due_s = max(self.written / self._rate, self.bytes / BYTES)
            due_s = began_s + min(due_s, self._seconds)
            self._producer.poll(0)
            # In steps: a wait for each record would be a loop without a rest, and take a core that
            # the job needs. A client elsewhere takes none.
            if (left_s := due_s - time.monotonic()) > STEP_S:
                time.sleep(left_s)
        self._producer.flush(60)
        time.sleep(max(began_s + SECONDS - time.monotonic(), 0))


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
    """The job that is attacked, with the JVM that users have (see `support.suite.jvms`)."""
    env = {**os.environ, "SPARK_SUBMIT_OPTS": ""}
    folder = tmp_path_factory.mktemp("target")
    with Job(kafka, folder, conf=["muster.stall.ms=120000"], env=env) as job:
        yield job.start()


def share(took: list[float], part: float) -> float:
    """A quantile."""
    return sorted(took)[min(int(part * len(took)), len(took) - 1)]


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
    innocent = Innocent(kafka, target)
    life = Bomb("ordinary life", ordinary_life)
    warm_up = Attack(kafka, life, seconds=2 * WARM_UP_S, rate=DEPLOY_RATE, once=True)
    warm_up.start()
    innocent.asks(warm_up.is_alive)
    until(lambda: not makes_class_archive(target), "no class archive is being made")
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
        attack = Attack(kafka, bomb)
        attack.start()
        took = innocent.asks(attack.is_alive)
        attack.join()
        print(row(bomb.name, took, target, attack, reader), flush=True)
        assert target.get("/healthz") == (200, "ok\n"), target.tail()
    innocent.close()
    if reader is not None:
        reader.end()


def for_seconds(length_s: float) -> Callable[[], bool]:
    """A question that is answered with yes for so long."""
    end_s = time.monotonic() + length_s
    return lambda: time.monotonic() < end_s
