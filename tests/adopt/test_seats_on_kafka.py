"""Who has the leader's seat of a real group: `--wait`, a frozen governor, members with other names.

No coordinator runs here: the governor decides with the same assignor.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from support.adopt.classic_member import ClassicMember
from support.adopt.fleet import Fleet
from support.kafka.members import Consumers
from support.suite.waiting import until

from muster.adopt.eligibility import governors
from muster.cli.main import main
from muster.kafka import groups
from muster.published.config_changes import current

pytestmark = pytest.mark.broker
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}


def described(fleet: Fleet) -> groups.Description:
    """The group as Kafka has it."""
    [description] = groups.describe(fleet.topics.clients, [fleet.group])
    return description


def test_wait_makes_no_member_leave(kafka, tmp_path):
    """The governor joins and waits; it leads when those that were there before it are gone."""
    with Fleet(kafka, tmp_path, partitions=4) as fleet:
        fleet.produces()
        for name in "AB":
            fleet.consumer(name, **COOPERATIVE)
        fleet.settles([2, 2], "two consumers share the topic by themselves")
        governor = fleet.adopt("--wait")
        until(
            lambda: governors(described(fleet)) == ["muster-governor-1"],
            "the governor is in the group",
            pause_s=0.3,
            story=fleet.story,
        )
        fleet.settles([2, 2], "it takes nothing")
        assert "round" not in governor.file.read_text()
        for name in "AB":
            fleet.stop(name)
        until(lambda: "round" in governor.file.read_text(), "it leads", story=fleet.story)
        for name in "CD":
            fleet.consumer(name, **COOPERATIVE)
        until(
            lambda: ": 2 members; " in governor.file.read_text(),
            "it answers both",
            story=fleet.story,
        )
        fleet.settles([2, 2], "both have their share")
        fleet.check()
        ends = {tenure.how for tenures in fleet.tenures().values() for tenure in tenures}
        assert "lost" not in ends, "no member was let go"


def test_a_configured_group_has_no_members_at_a_start(kafka, tmp_path):
    """Refused as long as muster does not know it; then governed from when its members come."""
    with Fleet(kafka, tmp_path, partitions=2) as fleet:
        fleet.produces()
        assert fleet.adopt(name="unknown").ends() == 1
        first = fleet.adopt("--fresh", "consumer", name="first")
        until(lambda: "round" in first.file.read_text(), "it leads", story=fleet.story)
        first.process.send(signal.SIGTERM)
        assert first.ends() == 0
        again = fleet.adopt(name="again")
        until(lambda: "round" in again.file.read_text(), "it leads again", story=fleet.story)
        assert "has no members now; is governed from when they come" in again.file.read_text()
        for name in "AB":
            fleet.consumer(name, **COOPERATIVE)
        fleet.settles([1, 1], "both have their share")
        fleet.check()


def test_a_frozen_governor_and_its_stand_by(kafka, tmp_path):
    """The stand-by governs a session later; the one that wakes up does no harm."""
    with Fleet(kafka, tmp_path, partitions=6) as fleet:
        fleet.produces()
        first = fleet.adopt("--fresh", "consumer")
        until(lambda: "round" in first.file.read_text(), "the first leads", story=fleet.story)
        for name in "AB":
            fleet.consumer(name, **COOPERATIVE)
        fleet.settles([3, 3], "two consumers have their share")
        second = fleet.adopt("--stand-by", "--instance-id", "muster-governor-2", name="second")
        until(lambda: "stands by" in second.file.read_text(), "it stands by", story=fleet.story)
        os.kill(first.process.pid, signal.SIGSTOP)
        fleet.consumer("C", **COOPERATIVE)
        until(lambda: ": 3 members; " in second.file.read_text(), "it leads", story=fleet.story)
        fleet.settles([2, 2, 2], "all have their share")
        assert governors(described(fleet)) == ["muster-governor-2"]
        os.kill(first.process.pid, signal.SIGCONT)
        until(lambda: "stands by" in first.file.read_text(), "it stands by", story=fleet.story)
        assert governors(described(fleet)) == ["muster-governor-2"]
        second.process.kill()
        until(
            lambda: governors(described(fleet)) == ["muster-governor-1"],
            "the first governs again",
            pause_s=0.3,
            story=fleet.story,
        )
        fleet.stop("C")
        fleet.settles([3, 3], "it governs")
        fleet.check()


def test_members_whose_assignor_has_a_name_of_its_own(kafka, tmp_path: Path, capsys):
    """Kafka does not tell the name while they rebalance: one line, nothing changed."""
    with Fleet(kafka, tmp_path, partitions=4) as fleet:
        readers = [
            ClassicMember(fleet.topics.clients, fleet.group, name, fleet.topic, 4, "own")
            for name in "AB"
        ]
        one, two = readers
        try:
            one.joins(True)
            fleet.settles({"A": 4}, "one has all")
            one.joins(False)
            two.joins(True)
            until(
                lambda: described(fleet).is_rebalancing,
                "the group waits for one that does not join",
                pause_s=0.3,
            )
            assert main(["adopt", "--group", fleet.group, *fleet.kafka]) == 2
            said = capsys.readouterr().err.splitlines()
            messages = [line for line in said if line.startswith("muster adopt: ")]
            assert len(messages) == 1
            assert "have no protocol in common with" in messages[0]
            assert "--protocol NAME adds the name of their assignor" in messages[0]
            one.joins(True)
            until(
                lambda: sorted(fleet.shares().values()) == [2, 2],
                "the group goes on as if nothing had been",
                pause_s=0.3,
                story=lambda: described(fleet),
            )
            governor = fleet.adopt()
            until(
                lambda: "(own): 2 members; " in governor.file.read_text(),
                "it is governed",
                story=fleet.story,
            )
            fleet.settles([2, 2], "both have their share")
            assert fleet.muster("adopt", "--release").returncode == 0
            assert governor.ends() == 0
        finally:
            for each in readers:
                each.close()


def test_partitions_weigh_what_is_measured(kafka, tmp_path):
    """`--weight lag`: the consumer of the partition that lags most has no other."""
    with (
        Fleet(kafka, tmp_path, partitions=1) as fleet,
        Consumers(kafka.address, {"orders": 4}) as readers,
    ):
        fleet.group, topic = readers.group, readers.topic("orders")
        producer = Producer({"bootstrap.servers": kafka.address})
        for number in range(900):
            producer.produce(topic, b"x", partition=max(0, number % 9 - 5))
        assert producer.flush(30) == 0
        both = [readers.start(COOPERATIVE) for _ in "AB"]
        until(lambda: readers.shared_by(2), "the group is there")
        nothing = [TopicPartition(topic, number, 0) for number in range(4)]
        for each in both:
            mine = [p for p in nothing if p in each.assignment()]
            each.commit(offsets=mine, asynchronous=False)
        fleet.adopt("--weight", "lag")

        def shares() -> list[int]:
            return sorted(len(each.assignment()) for each in both)

        until(lambda: shares() == [1, 3], "the weights count", story=fleet.story)
        [alone] = [each for each in both if len(each.assignment()) == 1]
        assert [part.partition for part in alone.assignment()] == [0]


def test_groups_that_are_refused(kafka, capsys):
    """Not there, empty, of KIP-848: one line each with what can be done; muster writes nothing."""
    with Consumers(kafka.address, {"orders": 2}) as fleet:
        adopt = ["adopt", "--group", fleet.group, "--bootstrap-server", kafka.address]
        adopt += ["--topic-prefix", kafka.prefix]

        def refused() -> str:
            assert main(adopt) in (1, 2)
            [line] = [text for text in capsys.readouterr().err.splitlines() if "%" not in text[:1]]
            assert current(kafka.clients, kafka.prefix, fleet.group) is None
            return line

        assert f"Kafka has no group '{fleet.group}'" in refused()
        first = fleet.start({"group.protocol": "consumer"})
        until(lambda: fleet.shared_by(1), "a group of KIP-848")
        assert "KIP-848" in (line := refused())
        assert "start its members with group.protocol=classic" in line
        assert fleet.shared_by(1)
        fleet.stop(first)
    with Consumers(kafka.address, {"orders": 2}) as fleet:
        adopt[2] = fleet.group
        only = fleet.start({})
        until(lambda: fleet.shared_by(1), "a classic group")
        only.commit(offsets=[TopicPartition(fleet.topic("orders"), 0, 0)], asynchronous=False)
        fleet.stop(only)
        assert "has no members now" in refused()
