"""`docs/adopt.md`: its ladder, command by command, for a group of two ordinary consumers.

The README shows three of its steps, with what they print.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.adopt.fleet import ROOT, Fleet, Running
from support.suite.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.spark]
PAGE = (ROOT / "docs" / "adopt.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = dict(
    re.findall(
        r"^\$ muster (adopt --group orders(?: --release)?|drain)\b.*\n((?:[^$`].*\n)+)",
        README,
        re.MULTILINE,
    )
)
"""Command → the lines below it."""
LEFT_OUT = re.compile(r"moves no task$")
"""What the README replaces by "…": how many members are back in such a round is chance."""


class Shown:
    """Compares the README with what a governor logs and what commands print."""

    def __init__(self, governor: Running, group: str, read: int = 0) -> None:
        self._governor, self._group, self._read = governor, group, read

    def agrees(self, step: str, printed: str = "") -> None:
        """The lines below a command are those of the governor since the last step, and its own."""
        logged = [
            re.sub(r"^\S+ +\[\w+ *\] (.*?) +\[muster\.adopt\].*$", r"\1", line)
            for line in self._governor.file.read_text().splitlines()
        ]
        new, self._read = logged[self._read :], len(logged)
        shown = [_plain(line) for line in SHOWN[step].splitlines() if line != "…"]
        own = [_plain(line.replace(self._group, "orders")) for line in printed.splitlines()]
        assert [line for line in shown if line in own] == own
        theirs = [_plain(line) for line in new if not LEFT_OUT.search(line)]
        assert [line for line in shown if line not in own] == theirs


def _plain(line: str) -> str:
    """A line without what is chance: its times, and which of config and joins came first."""
    line = re.sub(r"(?<=ms: )(.*\d+ tasks added.*|W1, W2 joined)$", "it begins", line.rstrip())
    return re.sub(r"(?<=^round )\d+|\d+(?= ms\b)", "N", line)


class Reader:
    """A reader who follows the page on another Kafka, with a topic prefix of their own."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def words(self, line: str) -> list[str]:
        """The line as it is run here."""
        assert line.startswith("muster "), line
        here = line.replace("kafka:9092", self._fleet.topics.address)
        here = re.sub(r"--group orders\b", f"--group {self._fleet.group}", here)
        prefix = ["--topic-prefix", self._fleet.topics.prefix]
        return [sys.executable, "-m", "muster.cli.main", *shlex.split(here)[1:], *prefix]

    def runs(self, line: str) -> str:
        """Run a line to its end; what it prints."""
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}
        done = subprocess.run(self.words(line), capture_output=True, text=True, env=env)
        assert done.returncode == 0, (line, done.stderr, self._fleet.story())
        return done.stdout


def is_governed(fleet: Fleet, governor: Running, story: str) -> None:
    """Wait until this governor leads both members, and each of them has half of the partitions."""
    until(
        lambda: ": 2 members; " in governor.file.read_text(),
        "the governor leads",
        story=fleet.story,
    )
    until(
        lambda: len(fleet.described().get("members", ())) == 2,
        "muster has both members",
        story=fleet.story,
    )
    fleet.settles({"W1": 3, "W2": 3}, story)


def test_the_ladder(kafka, job, tmp_path: Path):
    """Each command does what the page says; consumers go on reading all along."""
    create, run, adopt, describe, explain, plan, drain, cancel, config, weigh, release = COMMANDS
    with Fleet(kafka, tmp_path, partitions=6) as fleet:
        reader = Reader(fleet)
        fleet.produces()
        for name in ("W1", "W2"):
            fleet.consumer(
                name,
                **{
                    "group.instance.id": name,
                    "partition.assignment.strategy": "cooperative-sticky",
                },
            )
        fleet.settles({"W1": 3, "W2": 3}, "the group is there")
        assert "differs" not in reader.runs(create)
        assert run.startswith("muster run --bootstrap-server kafka:9092 --checkpoint ")
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}
        patient = (
            "--answer-timeout-ms",
            "5000",
        )  # however busy the machine, the coordinator decides
        governor = fleet.run("governor", [*reader.words(adopt), *patient], env)
        is_governed(fleet, governor, "both have their share")
        readme = Shown(governor, fleet.group)
        readme.agrees("adopt --group orders")
        table = reader.runs(describe)
        assert re.search(r"^\S+ +W1 .*\n\S+ +W2 ", table, re.MULTILINE), table
        assert "governed by muster adopt: Kafka's session decides" in table
        assert "W1" in reader.runs(explain)
        assert "W2" in reader.runs(plan)
        drained = reader.runs(drain)
        assert "W1: empty" in drained
        fleet.settles({"W1": 0, "W2": 6}, "W1 is empty")
        readme.agrees("drain", drained)
        assert "W1: drain cancelled" in reader.runs(cancel)
        fleet.settles({"W1": 3, "W2": 3}, "W1 has its share again")
        assert "min_traffic" in reader.runs(config)
        governor.process.send(signal.SIGTERM)
        assert governor.ends() == 0
        governor = fleet.run("again", reader.words(weigh), env)
        is_governed(fleet, governor, "all partitions carry the same")
        rounds = len(governor.lines())
        released = reader.runs(release)
        assert governor.ends() == 0
        readme = Shown(governor, fleet.group, rounds)
        readme.agrees("adopt --group orders --release", released)
        fleet.settles({"W1": 3, "W2": 3}, "the group goes on by itself")
        fleet.check()
