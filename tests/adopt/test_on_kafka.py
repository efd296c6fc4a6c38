"""`muster adopt` on a real Kafka, with a real coordinator and ordinary consumers of librdkafka."""

from __future__ import annotations

import signal
import time

import pytest
from support.adopt.fleet import MATRIX, Fleet
from support.suite.waiting import until

from muster.cli.console import readers
from muster.console.frames import frame
from muster.console.store import SHADOWED, GroupKey, Store

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def kind(store: Store, prefix: str, group: str) -> object:
    """What the console says of who coordinates a group; None = it does not show it yet."""
    history = store.history(GroupKey(prefix, group))
    if history is None or not history.moments:
        return None
    newest = history.moments[-1]
    return frame(history, newest, history.snapshot(newest)).head["kind"]


@pytest.mark.parametrize("protocol", ["range", pytest.param("cooperative-sticky", marks=MATRIX)])
def test_the_life_of_a_governed_group(kafka, job, tmp_path, protocol):
    """Taken over under load; members join, are drained, killed, partitions are added; handed back.

    Every record is processed, no partition has two owners, no committed offset goes back.
    """
    settings = {"partition.assignment.strategy": protocol}
    with Fleet(kafka, tmp_path, partitions=6) as fleet:
        fleet.produces()
        for name in "AB":
            fleet.consumer(name, **settings)
        fleet.settles([3, 3], "two consumers share the topic by themselves")
        governor = fleet.adopt()
        until(lambda: fleet.described().get("members"), "muster has members", story=fleet.story)
        fleet.settles([3, 3], "the governed group is balanced")
        fleet.consumer("C", **settings)
        fleet.settles([2, 2, 2], "a third consumer has its share")
        drained = next(m["id"] for m in fleet.described()["members"] if m["id"].startswith("A-"))
        done = fleet.muster("drain", "--member", drained, "--wait", "--timeout-ms", "60000")
        assert (done.returncode, "empty" in done.stdout) == (0, True), done.stderr
        fleet.settles({"A": 0, "B": 3, "C": 3}, "the drained consumer has nothing")
        fleet.kill("B")
        fleet.settles({"A": 0, "C": 6}, "the killed consumer's partitions have moved")
        fleet.grow(8)
        begun = time.monotonic()
        fleet.settles({"A": 0, "C": 8}, "new partitions are owned")
        print(f"{protocol}: new partitions are owned after {time.monotonic() - begun:.1f} s")
        governor.process.send(signal.SIGTERM)
        assert governor.ends() == 0
        fleet.settles({"A": 4, "C": 4}, "the group assigns by itself again")
        fleet.check()
        done = fleet.muster("replay")
        assert done.returncode == 0, f"the log does not give the same again: {done.stdout}"


def test_the_governor_is_killed_and_its_stand_by_governs(kafka, job, tmp_path):
    """The stand-by has the seat a session later; `--release` ends it from elsewhere."""
    with Fleet(kafka, tmp_path, partitions=4) as fleet:
        fleet.produces()
        first = fleet.adopt("--fresh", "consumer")
        fleet.consumer("A", **{"partition.assignment.strategy": "cooperative-sticky"})
        fleet.settles({"A": 4}, "one consumer has all")
        second = fleet.adopt(*("--stand-by", "--instance-id", "muster-governor-2"), name="second")
        first.process.kill()
        until(
            lambda: "round" in second.file.read_text(errors="replace"),
            "the stand-by answers a round",
            story=fleet.story,
        )
        fleet.consumer("B", **{"partition.assignment.strategy": "cooperative-sticky"})
        fleet.settles([2, 2], "it governs")
        store = Store([kafka.prefix])
        with readers(kafka.clients, store, shadow=True):
            until(
                lambda: kind(store, kafka.prefix, fleet.group) == "governed", "the console marks it"
            )
            twice = GroupKey(SHADOWED, fleet.group)
            until(lambda: store.history(twice) is None, "and shows it once")
        done = fleet.muster("adopt", "--release")
        assert done.stdout == f"{fleet.group}: handed back by muster-governor-2\n"
        assert second.ends() == 0
        fleet.settles([2, 2], "the group goes on")
        fleet.check()
