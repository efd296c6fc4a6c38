"""Signed and forged events side by side, on the real broker and the real query."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from support.kafka.brokers import Topics
from support.streams.job import Job
from support.suite.waiting import until
from support.worker.fleet import QUICK, Fleet
from support.worker.ring import Ring, letters

from muster.cli.main import main
from muster.kafka.writer import append
from muster.protocol.events import Drain, Event, GroupConfig, GroupDeleted, Heartbeat, Join, Leave
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.settings import Settings
from muster.protocol.signing import HEADER
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind
from muster.signing import rotation
from muster.signing.followed_key_file import VARIABLE, KeyFile

pytestmark = [pytest.mark.broker, pytest.mark.spark]

GROUP = GroupId("signed")
SPREAD_MS = "3000"
"""Job and workers look at the file once a second."""
Output = pytest.CaptureFixture[str]


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    """A keyring that requires signatures of every group."""
    ring = Ring(tmp_path / "ring.json")
    ring("require", "--group", "*", "--spread-ms", "0")
    return ring


@pytest.fixture
def job(kafka: Topics, tmp_path: Path, ring: Ring) -> Iterator[Job]:
    """A coordinator with the keyring."""
    env = {**os.environ, VARIABLE: str(ring.file)}
    with Job(kafka, tmp_path / "job", env=env) as job:
        yield job.start()


class Signers:
    """Key id → records on the membership topic that were signed with it, so far."""

    def __init__(self, topics: Topics) -> None:
        name = topics.name(TopicKind.MEMBERSHIP)
        self._count: Counter[str] = Counter()
        self._consumer = Consumer(topics.clients.librdkafka({"group.id": "signers"}))
        partitions = self._consumer.list_topics(name, timeout=30).topics[name].partitions
        self._consumer.assign([TopicPartition(name, p, 0) for p in partitions])

    def __call__(self) -> Counter[str]:
        """The counts so far."""
        for message in self._consumer.consume(10_000, 0.1):
            for header, signature in message.headers() or []:
                if header == HEADER and isinstance(signature, bytes):
                    self._count[signature[11 : 11 + signature[10]].decode("latin-1")] += 1
        return self._count.copy()

    def __enter__(self) -> Signers:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def forge(topics: Topics, fleet: Fleet, forger: KeyFile | None) -> int:
    """Write one event of each harmful kind, unsigned or with a given keyring; return how many."""
    (member, *_) = fleet.snapshots()[-1].members
    m = member.id
    events: list[tuple[TopicKind, Event]] = [
        (TopicKind.MEMBERSHIP, Join(group=GROUP, member=MemberId("intruder"), incarnation=7)),
        (TopicKind.MEMBERSHIP, Leave(group=GROUP, member=m, incarnation=member.incarnation)),
        (TopicKind.MEMBERSHIP, Heartbeat(group=GROUP, member=m, epoch=99, digest=1)),
        (TopicKind.MEMBERSHIP, Drain(group=GROUP, member=m)),
        (
            TopicKind.CONFIG,
            GroupConfig(
                group=GROUP,
                assignor="sticky",
                settings=Settings(),
                tasks=(Subtopology("0", 50),),
            ),
        ),
        (TopicKind.CONFIG, GroupDeleted(group=GROUP)),
    ]
    for kind, event in events:
        append(topics.clients, topics.name(kind), event, forger)
    return len(events)


def test_forged_events_are_dead_letters_and_rotation_moves_no_task(
    kafka: Topics, job: Job, ring: Ring, tmp_path: Path, capsys: Output
) -> None:
    """Two signing members keep their tasks through forgeries, rotations and a lost keyring.

    Unsigned and forged events of each kind become dead letters, and so do events with the old key
    after a rotation for a leaked secret.
    """
    forger_file = tmp_path / "forger.json"
    rotation.write(forger_file, rotation.new_key({}, 1))
    forger = KeyFile(str(forger_file))
    with Fleet(kafka, tmp_path, GROUP) as fleet, Signers(kafka) as signers:
        configure(kafka, ring, tmp_path)
        fleet.expect(6)
        keys = {"signing_keys": str(ring.file)}
        fleet.start("W1", "W2", **keys)
        before = fleet.settled()
        written = forge(kafka, fleet, None)
        until(lambda: len(letters(kafka)) >= written, "bare ones are letters", story=job.tail)
        written += forge(kafka, fleet, forger)
        until(lambda: len(letters(kafka)) >= written, "forged ones are letters", story=job.tail)
        reasons = Counter(reason for reason, _ in letters(kafka))
        assert reasons == {"UNSIGNED": written // 2, "UNKNOWN_KEY": written // 2}

        counted = f'muster_rejected_events_total{{prefix="{kafka.prefix}",reason="UNKNOWN_KEY"}}'
        count = f"{counted} {written / 2}"
        until(lambda: count in job.get("/metrics")[1], "they are counted", story=job.tail)

        ring("rotate", "--spread-ms", SPREAD_MS)
        until(lambda: signers()[ring.newest()] >= 8, "all sign with it", story=fleet.story)
        leaked = tmp_path / "leaked.json"
        leaked.write_bytes(ring.file.read_bytes())
        ring("rotate", "--spread-ms", SPREAD_MS, "--compromised")
        until(lambda: signers()[ring.newest()] >= 8, "and with the next", story=fleet.story)
        written = len(letters(kafka)) + forge(kafka, fleet, KeyFile(str(leaked)))
        until(lambda: len(letters(kafka)) >= written, "old ones are letters", story=job.tail)
        assert {r for r, _ in letters(kafka)} == {"UNSIGNED", "UNKNOWN_KEY", "KEY_RETIRED"}

        kept = ring.file.read_bytes()
        ring.file.unlink()
        heard = signers()
        until(lambda: signers().total() >= heard.total() + 12, "they go on", story=job.tail)
        assert fleet.settled() == before
        assert {entry.id for entry in fleet.snapshots()[-1].members} == {"W1", "W2"}
        ring.file.write_bytes(kept)
        fleet.start("W3", **keys)
        assert sorted(map(len, fleet.settled().values())) == [2, 2, 2]
        fleet.check()
        fleet.stop("W1", "W2", "W3")
        said = job.log_file.read_text() + fleet.story() + capsys.readouterr().out
    assert [secret for secret in ring.secrets() if secret in said] == []


def configure(topics: Topics, ring: Ring, folder: Path) -> None:
    """Configure the group as an operator does, with a signature."""
    tasks = folder / "tasks.json"
    tasks.write_text(json.dumps([{"subtopology": "0", "partitions": 6}]))
    settings = [word for key, value in QUICK.items() for word in ("--config", f"{key}={value}")]
    command = ["config", "set", "--group", GROUP, "--assignor", "sticky", "--tasks", str(tasks)]
    where = ["--bootstrap-server", topics.address, "--topic-prefix", topics.prefix]
    assert main([*command, *settings, *where, "--signing-keys", str(ring.file)]) == 0
