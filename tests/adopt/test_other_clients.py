"""Governed consumers of Java, Node and Go: what the governor answers, every client obeys.

No coordinator runs here: the governor decides with the same assignor.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.adopt.fleet import MATRIX, Fleet
from support.suite.waiting import until
from support.worker.languages import UNREACHABLE

from muster.broker import jars
from muster.broker.java import java

pytestmark = pytest.mark.broker
CLIENTS = Path(__file__).parents[1] / "support" / "adopt" / "clients"
JVM = ("-Xms16m", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def prepared(command: Sequence[str], folder: Path) -> None:
    """Build something; skips where the machine cannot."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode and any(word in done.stderr for word in UNREACHABLE):
        pytest.skip(f"{command[0]} cannot fetch its modules")
    assert done.returncode == 0, done.stderr


def with_java(folder: Path, jar_set: jars.JarSet, assignor: str) -> tuple[list[str], list[str]]:
    """A Java consumer with the clients of one set of jars; assignors by comma."""
    places = ":".join(map(str, jars.jars(jar_set)))
    prepared(["javac", "-cp", places, "-d", str(folder), str(CLIENTS / "Follower.java")], folder)
    return [str(java()), *JVM, "-cp", f"{places}:{folder}", "Follower"], [assignor]


def with_node(folder: Path) -> tuple[list[str], list[str]]:
    """A KafkaJS consumer."""
    for name in ("package.json", "follower.js"):
        shutil.copy(CLIENTS / name, folder)
    prepared(["npm", "install", "--no-audit", "--no-fund", "--silent"], folder)
    return ["node", str(folder / "follower.js")], []


def with_go(folder: Path, balancer: str) -> tuple[list[str], list[str]]:
    """A franz-go consumer."""
    built = str(folder / "follower")
    prepared(["go", "build", "-buildvcs=false", "-o", built, "."], CLIENTS / "go")
    return [built], [balancer]


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(lambda f: with_java(f, "kafka", "CooperativeStickyAssignor"), id="java-4.3"),
        pytest.param(with_node, id="kafkajs"),
        pytest.param(
            lambda f: with_java(f, "clients", "RangeAssignor"), id="java-3.9-eager", marks=MATRIX
        ),
        pytest.param(lambda f: with_go(f, "cooperative-sticky"), id="franz-go", marks=MATRIX),
    ],
)
def test_a_client_obeys(kafka, tmp_path, client):
    """Taken over under load, one more joins, one leaves, the group is handed back."""
    command, options = client(tmp_path)
    with Fleet(kafka, tmp_path / "fleet", partitions=4) as fleet:

        def start(name: str) -> None:
            where = [fleet.topics.address, fleet.group, fleet.topic, name]
            fleet.member(name, [*command, *where, *options])

        fleet.produces()
        start("A")
        fleet.settles({"A": 4}, "one consumer has all")
        governor = fleet.adopt()
        until(
            lambda: ": 1 member; " in governor.file.read_text(errors="replace"),
            "the governor answers",
            story=fleet.story,
        )
        start("B")
        fleet.settles({"A": 2, "B": 2}, "the second has its share")
        fleet.stop("A")
        fleet.settles({"B": 4}, "the one that stays has all")
        governor.process.send(signal.SIGTERM)
        assert governor.ends() == 0
        fleet.settles({"B": 4}, "the group goes on")
        fleet.check()


@MATRIX
def test_a_group_rolls_from_eager_to_cooperative_and_back(kafka, tmp_path):
    """Java's consumers, restarted one by one: first they offer both protocols, then the new one."""
    eager, cooperative = "RangeAssignor", "CooperativeStickyAssignor"
    with Fleet(kafka, tmp_path / "fleet", partitions=4) as fleet:

        def start(name: str, assignors: str) -> None:
            command, options = with_java(tmp_path, "kafka", assignors)
            where = [fleet.topics.address, fleet.group, fleet.topic, name]
            fleet.member(name, [*command, *where, *options])

        def answered(words: str) -> None:
            text = governor.file
            until(lambda: words in text.read_text(errors="replace"), words, story=fleet.story)

        fleet.produces()
        governor = fleet.adopt("--fresh", "consumer")
        for name in ("A1", "B1"):
            start(name, eager)
        answered("(range): 2 members; ")
        fleet.settles({"A1": 2, "B1": 2}, "an eager group")
        for number, assignors in enumerate((f"{cooperative},{eager}", cooperative), start=2):
            for name in "AB":
                fleet.stop(f"{name}{number - 1}")
                start(f"{name}{number}", assignors)
                fleet.settles([2, 2], "both have their share")
        answered("(cooperative-sticky): 2 members; ")
        for number, assignors in enumerate((f"{eager},{cooperative}", eager), start=4):
            for name in "AB":
                fleet.stop(f"{name}{number - 1}")
                start(f"{name}{number}", assignors)
                fleet.settles([2, 2], "both have their share")
        last = governor.file.read_text().split(": 2 members; ")[-2]
        assert last.endswith("(range)"), "the group is eager again"
        fleet.check()
