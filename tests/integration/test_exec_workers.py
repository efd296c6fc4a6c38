"""``muster worker --exec`` under the real broker and the real job: killed, frozen, stopped.

The guards log every start and stop; the check is that no task ever had two owners.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import Topics
from support.spark import Job
from support.waiting import until

from muster.protocol.events import GroupConfig
from muster.protocol.ids import GroupId
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind

pytestmark = [pytest.mark.broker, pytest.mark.spark]
QUICK = {"session.timeout.ms": "3000", "heartbeat.interval.ms": "500"}


class Fleet:
    """Worker commands of one group, each with a log of its own."""

    def __init__(self, kafka: Topics, folder: Path, group: str, partitions: int) -> None:
        self.kafka, self.folder, self.group = kafka, folder, group
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.tasks = {f"0_{n}" for n in range(partitions)}
        config = GroupConfig(
            group=GroupId(group),
            assignor="sticky",
            settings=parse_settings(QUICK),
            tasks=(Subtopology("0", partitions),),
        )
        kafka.write(TopicKind.CONFIG, config)

    def start(self, name: str) -> None:
        """Start a worker."""
        program = [sys.executable, "-m", "muster.cli.main", "worker", "--group", self.group]
        where = ["--bootstrap-server", self.kafka.address, "--topic-prefix", self.kafka.prefix]
        what = ["--member-id", name, "--log", str(self.folder / f"{name}.jsonl")]
        task = "trap '' TERM; while :; do sleep 0.05; done" if name == "deaf" else "exec sleep 900"
        options = ["--stop-timeout-ms", "500", "--exec", task]
        self.workers[name] = subprocess.Popen([*program, *where, *what, *options], cwd=self.folder)

    def lines(self) -> list[dict]:
        """Every line of every log, by time."""
        found = []
        for file in self.folder.glob("*.jsonl"):
            found += [
                json.loads(line)
                for line in file.read_text().splitlines(keepends=True)
                if line.endswith("\n")
            ]
        return sorted(found, key=lambda line: line["boottime_ms"])

    def owners(self) -> dict[str, list[str]]:
        """Who runs each task now."""
        running: dict[str, list[str]] = {task: [] for task in self.tasks}
        for line in self.lines():
            if line["event"] == "start":
                running[line["task"]].append(line["member"])
            else:
                running[line["task"]].remove(line["member"])
        return running

    def settled(self, *names: str) -> bool:
        """Whether these, and no others, run all tasks, one each."""
        owners = self.owners()
        return all(len(o) == 1 for o in owners.values()) and {o[0] for o in owners.values()} == set(
            names
        )

    def overlaps(self) -> list[str]:
        """Moments at which a task had two owners."""
        running: dict[str, str] = {}
        wrong = []
        for line in self.lines():
            task = line["task"]
            if line["event"] == "stop":
                running.pop(task, None)
            elif task in running:
                wrong.append(f"{task}: {running[task]}, then {line}")
            else:
                running[task] = line["member"]
        return wrong

    def close(self) -> None:
        """End everything, and see that nothing is left."""
        for process in self.workers.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        until(lambda: not any(self.owners().values()), "every task process has ended")


@pytest.fixture
def fleet(kafka: Topics, job: Job, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet of six tasks."""
    made = Fleet(kafka, tmp_path, "exec-workers", 6)
    yield made
    made.close()


def test_killed_frozen_and_stopped(fleet: Fleet) -> None:
    """Each way to lose a worker moves its tasks to the others, and never gives one two owners."""
    for name in ("W1", "W2", "deaf"):
        fleet.start(name)
    until(lambda: fleet.settled("W1", "W2", "deaf"), "three share the tasks", story=fleet.owners)
    fleet.workers["W1"].kill()
    until(lambda: fleet.settled("W2", "deaf"), "W1's tasks have moved", story=fleet.owners)
    fleet.workers["deaf"].send_signal(signal.SIGSTOP)
    until(lambda: fleet.settled("W2"), "the frozen one's tasks have moved", story=fleet.owners)
    fleet.workers["deaf"].send_signal(signal.SIGCONT)
    until(lambda: fleet.settled("W2", "deaf"), "it is back", story=fleet.owners)
    fleet.workers["W2"].send_signal(signal.SIGTERM)
    assert fleet.workers["W2"].wait(30) == 0
    until(lambda: fleet.settled("deaf"), "W2 has left", story=fleet.owners)
    assert fleet.overlaps() == []
    assert len({line["incarnation"] for line in fleet.lines() if line["member"] == "deaf"}) == 2
