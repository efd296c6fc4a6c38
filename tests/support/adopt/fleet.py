"""A governed group on a real Kafka: consumers in processes of their own, load, and `muster adopt`.

`Fleet.check` compares what the consumers printed with what a group promises: every record was
processed, no partition had two owners, what was committed never went back.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from support.adopt.commits import commits
from support.kafka.brokers import Topics
from support.suite.ended import ends
from support.suite.waiting import until

from muster.broker.ends_with_parent import Tethered
from muster.errors import NotFound
from muster.kafka import groups

ROOT = Path(__file__).resolve().parents[3]
MATRIX = pytest.mark.skipif(
    os.environ.get("MUSTER_ADOPT") != "all", reason="make adopt runs the whole matrix"
)
FOLLOWER = Path(__file__).with_name("followers.py")


class Tenure(NamedTuple):
    """How long one consumer had one partition; `how` it ended: revoked, lost, killed or bye."""

    owner: str
    since_ms: int
    until_ms: int
    how: str


@dataclass
class Running:
    """One process of the fleet and its output."""

    name: str
    process: Tethered
    file: Path

    def lines(self) -> list[list[str]]:
        """The words of each line it has printed."""
        return [line.split() for line in self.file.read_text(errors="replace").splitlines()]

    def ends(self) -> int:
        """Wait until it ends by itself; return the exit code."""
        return ends(self.process, self.file, signal.SIGABRT)


class Fleet:
    """One group; a context manager that ends every process.

    Args:
        topics: of muster, and the broker.
        folder: for the output of processes.
        partitions: of the group's topic.

    Attributes:
        group, topic: names of their own.
    """

    def __init__(self, topics: Topics, folder: Path, partitions: int) -> None:
        suffix = uuid.uuid4().hex[:6]
        self.group, self.topic = f"group-{suffix}", f"orders-{suffix}"
        self.topics, self.folder, self.partitions = topics, folder, partitions
        self.folder.mkdir(parents=True, exist_ok=True)
        self.members: dict[str, Running] = {}
        self.killed: dict[str, int] = {}
        self._others: list[Running] = []
        self._admin = AdminClient({"bootstrap.servers": topics.address})
        self._producing = threading.Event()
        self._sent = 0
        self._thread = threading.Thread(target=self._produce, daemon=True)

    # ---------------------------------------------------------------------------- processes

    def consumer(self, name: str, **settings: object) -> Running:
        """Start an ordinary consumer."""
        said = {
            "topics": [self.topic],
            "settings": {
                "bootstrap.servers": self.topics.address,
                "group.id": self.group,
                "client.id": name,
                **settings,
            },
        }
        return self.member(name, [sys.executable, str(FOLLOWER), json.dumps(said)])

    def member(self, name: str, command: Sequence[str]) -> Running:
        """Start a consumer of any client, which prints what `followers.py` does."""
        self.members[name] = self.run(name, command)
        return self.members[name]

    def run(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Running:
        """Start any process."""
        file = self.folder / f"{name}.out"
        with file.open("wb") as output:
            process = Tethered(command, output=output, cwd=cwd or self.folder, env=env)
        running = Running(name, process, file)
        self._others.append(running)
        return running

    def adopt(self, *options: str, name: str = "governor") -> Running:
        """Start `muster adopt` for the group."""
        command = [sys.executable, "-m", "muster.cli.main", "adopt", "--group", self.group]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}
        return self.run(name, [*command, *self.kafka, *options], env)

    @property
    def kafka(self) -> list[str]:
        """The options of every command."""
        return [
            *("--bootstrap-server", self.topics.address),
            *("--topic-prefix", self.topics.prefix),
        ]

    def muster(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `muster` for the group, to its end."""
        command = [sys.executable, "-m", "muster.cli.main", *words, "--group", self.group]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [*command, *self.kafka], capture_output=True, text=True, env=env, check=False
        )

    def described(self) -> dict[str, Any]:
        """The group as muster has it; empty = it does not."""
        done = self.muster("groups", "describe", "--format", "json")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def stop(self, name: str) -> None:
        """Let a consumer close and leave."""
        running = self.members.pop(name)
        running.process.send(signal.SIGTERM)
        running.ends()

    def kill(self, name: str) -> None:
        """Kill a consumer."""
        running = self.members.pop(name)
        self.killed[name] = time.time_ns() // 1_000_000
        running.process.kill()

    def grow(self, partitions: int) -> None:
        """Add partitions to the topic."""
        self.partitions = partitions
        made = self._admin.create_partitions([NewPartitions(self.topic, partitions)])
        made[self.topic].result(30)

    # ------------------------------------------------------------------------------- looking

    def shares(self) -> dict[str, int]:
        """Partitions of each live consumer, as Kafka's stable group says; empty = it moves."""
        try:
            [described] = groups.describe(self.topics.clients, [self.group])
        except NotFound:
            return {}
        if described.state != "Stable":
            return {}
        return {
            member.client_id: len(member.assigned)
            for member in described.members
            if not (member.instance_id or "").startswith("muster-governor")
        }

    def settles(self, wanted: Mapping[str, int] | Sequence[int], story: str) -> None:
        """Wait until the consumers have these shares, in the books of muster too."""

        def settled() -> bool:
            shares = self.shares()
            if isinstance(wanted, Mapping):
                return shares == wanted
            return sorted(shares.values()) == sorted(wanted)

        until(settled, story, pause_s=0.3, story=self.story)

    def story(self) -> str:
        """The last lines of every process."""
        tails = []
        for each in self._others:
            lines = each.file.read_text(errors="replace").splitlines()
            plain = [line for line in lines if " read " not in line][-12:]
            tails.append("\n".join([f"-- {each.name}", *plain]))
        return "\n".join(tails)

    # ------------------------------------------------------------------------------- promises

    def produces(self) -> None:
        """Begin to write records to all partitions in turn."""
        self._producing.set()
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._thread.start()

    def rests(self) -> None:
        """Stop the load, and wait until every record is committed; `produces` begins again.

        A commit that is under way when the broker stops may wait for its answer for ever
        (librdkafka 2.16: 2 of 36 consumers), and its consumer never joins again.
        """
        self._producing.clear()
        self._thread.join(60)
        ends = self.ends()
        until(lambda: self._committed() == ends, "every record is committed", story=self.story)

    def _committed(self) -> dict[int, int]:
        """What the group has committed, by partition."""
        asked = [TopicPartition(self.topic, number) for number in range(self.partitions)]
        settings = {"bootstrap.servers": self.topics.address, "group.id": self.group}
        consumer = Consumer(settings)  # it subscribes to nothing, so it is no member
        try:
            return {each.partition: each.offset for each in consumer.committed(asked, timeout=30)}
        finally:
            consumer.close()

    def _produce(self) -> None:
        quick = {"topic.metadata.refresh.interval.ms": 500}
        producer = Producer({"bootstrap.servers": self.topics.address, **quick})
        while self._producing.is_set():
            with suppress(KafkaException):  # a partition that the client has not heard of yet
                producer.produce(self.topic, b"order", partition=self._sent % self.partitions)
            self._sent += 1
            producer.poll(0.02)
        assert producer.flush(30) == 0

    def ends(self) -> dict[int, int]:
        """End offset of each partition."""
        consumer = Consumer({"bootstrap.servers": self.topics.address, "group.id": "looks"})
        try:
            return {
                number: consumer.get_watermark_offsets(
                    TopicPartition(self.topic, number), timeout=30
                )[1]
                for number in range(self.partitions)
            }
        finally:
            consumer.close()

    def check(self) -> None:
        """Stop the load, wait until all is read, and compare with what a group promises."""
        self._producing.clear()
        self._thread.join(60)
        ends = self.ends()

        def all_read() -> bool:
            read = self.read()
            return all(read[number] == set(range(end)) for number, end in ends.items())

        until(all_read, "every record is processed", pause_s=0.3, story=self.story)
        for offsets in commits(self.topics.address, self.group, self.topic).values():
            assert offsets == sorted(offsets), "a committed offset went back"
        for partition, tenures in self.tenures().items():
            orderly = sorted(t for t in tenures if t.how in ("revoked", "bye", "holds"))
            for one in orderly:
                for other in orderly:
                    overlap = min(one.until_ms, other.until_ms) - max(one.since_ms, other.since_ms)
                    assert one.owner == other.owner or overlap <= 0, (partition, one, other)

    def read(self) -> defaultdict[int, set[int]]:
        """Offsets that were processed, by partition."""
        offsets: defaultdict[int, set[int]] = defaultdict(set)
        for each in self._others:
            for words in each.lines():
                if len(words) == 4 and words[1] == "read":
                    offsets[int(words[2].rpartition(":")[2])].add(int(words[3]))
        return offsets

    def tenures(self) -> dict[str, list[Tenure]]:
        """Who had each partition, from when to when."""
        by_partition: defaultdict[str, list[Tenure]] = defaultdict(list)
        for each in self._others:
            since: dict[str, int] = {}
            for words in each.lines():
                if len(words) < 2 or not words[0].isdigit():
                    continue
                at, word, parts = int(words[0]), words[1], words[2:]
                if word == "assigned":
                    since |= dict.fromkeys(parts, at)
                elif word in ("revoked", "lost"):
                    for part in parts:
                        if part in since:
                            by_partition[part].append(Tenure(each.name, since.pop(part), at, word))
            how = "killed" if each.name in self.killed else "holds"
            end = self.killed.get(each.name, 2**62)
            for part, at in since.items():
                by_partition[part].append(Tenure(each.name, at, end, how))
        return by_partition

    def __enter__(self) -> Self:
        new = NewTopic(self.topic, self.partitions, 1)
        self._admin.create_topics([new])[self.topic].result(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._producing.clear()
        for each in self._others:
            each.process.kill()
