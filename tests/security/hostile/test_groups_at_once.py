"""What an innocent group notices when many groups get a config at once, printed line by line.

``MUSTER_HOSTILE_GROUPS=200,1000 python -m pytest -s tests/security/hostile/test_groups_at_once.py``
configures so many groups at once: new ones with a member each, then the same ones with one task
less. Each line has the time until all groups follow their config (from the first record to the
last answer, by the broker's timestamps) and the innocent group's slowest answer meanwhile. The test
asserts that all are answered; the times depend on the machine.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from support.hostile.attack import Attack
from support.hostile.innocent import PATIENCE_S, Innocent, for_seconds, share
from support.hostile.measured_job import measured_job, warmed_innocent
from support.kafka.brokers import Topics
from support.protocol.bombs import Bomb, config, raw

from muster.protocol.events import GroupConfig, Join
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keys import key_of
from muster.protocol.topics import TopicKind

COUNTS = [int(word) for word in os.environ.get("MUSTER_HOSTILE_GROUPS", "").split(",") if word]
QUIET_S = 10.0
MEMBER = MemberId("m")

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(
        not COUNTS, reason="a measurement, run by MUSTER_HOSTILE_GROUPS=200; see test_pace.py"
    ),
]


class Followed(threading.Thread):
    """Waits until a topic has a record with each of these keys, written after the start.

    Attributes:
        missing: the keys without a record.
        last_s: broker timestamp of the last record that was missing, epoch seconds.
    """

    def __init__(self, topics: Topics, kind: TopicKind, keys: set[bytes]) -> None:
        super().__init__(daemon=True)
        self.missing = keys
        self.last_s = 0.0
        settings = {"group.id": "followed", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
        self._consumer = Consumer(topics.clients.librdkafka(settings))
        name = topics.name(kind)
        found = self._consumer.list_topics(name, timeout=30).topics[name].partitions
        ends = [TopicPartition(name, number) for number in found]
        for end in ends:
            end.offset = self._consumer.get_watermark_offsets(end, timeout=30)[1]
        self._consumer.assign(ends)

    def run(self) -> None:
        """Read until nothing is missing, at most `PATIENCE_S`."""
        until_s = time.monotonic() + PATIENCE_S
        while self.missing and time.monotonic() < until_s:
            for message in self._consumer.consume(10_000, 0.02):
                if message.value() and message.key() in self.missing:
                    self.missing.discard(message.key())
                    self.last_s = message.timestamp()[1] / 1000
        self._consumer.close()


def configured(
    topics: Topics,
    innocent: Innocent,
    events: Sequence[GroupConfig | Join],
    answers: tuple[TopicKind, set[bytes]],
) -> str:
    """Write events at once and wait for their answers; a line about the time that it took."""
    followed = Followed(topics, *answers)
    followed.start()
    began_s = time.time()
    attack = Attack(topics, Bomb("configs", lambda _: map(raw, events)), seconds=60, records=0)
    attack.start()
    took = innocent.asks(followed.is_alive)
    assert not followed.missing
    return f"all {followed.last_s - began_s:.2f} s, the innocent group {max(took):.2f} s"


@pytest.mark.timeout(3_600)  # each wait has its own limit
def test_the_innocent_beside_groups_that_are_configured(kafka: Topics, tmp_path: Path) -> None:
    """The innocent group and all others are answered when many groups get a config at once."""
    with measured_job(kafka, tmp_path) as job:
        innocent = warmed_innocent(kafka, job)
        print(f"\nquiet p99: {share(innocent.asks(for_seconds(QUIET_S)), 0.99):.2f} s")
        for turn, count in enumerate(COUNTS):
            groups = [GroupId(f"many{turn}-{number}") for number in range(count)]
            now = {"initial_rebalance_delay_ms": 0}
            joins = [Join(group=group, member=MEMBER, incarnation=1) for group in groups]
            configs = [config(4, group=group, **now) for group in groups]
            both = [event for pair in zip(configs, joins, strict=True) for event in pair]
            members = TopicKind.ASSIGNMENTS, {key_of(group, MEMBER) for group in groups}
            print(f"{count} new groups:", configured(kafka, innocent, both, members), flush=True)
            fewer = [config(3, group=group, **now) for group in groups]
            known = TopicKind.GROUPS, {group.encode() for group in groups}
            print(f"{count} known ones:", configured(kafka, innocent, fewer, known), flush=True)
        innocent.close()
