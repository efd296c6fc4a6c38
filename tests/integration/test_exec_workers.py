"""``muster worker --exec`` with the real broker and job: killed, frozen, stopped and new workers.

The workers log every start and stop; the tests check that no task ever had two owners.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kafka.brokers import Topics
from support.streams.job import Job
from support.suite.waiting import until

from muster.kafka.reader import read
from muster.protocol import codec
from muster.protocol.events import NOWHERE, GroupConfig, Join
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot, GroupState
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector, Subtopology, TaskTable, Unit
from muster.protocol.topics import TopicKind
from muster.published.snapshots import Shown

pytestmark = [pytest.mark.broker, pytest.mark.spark]
QUICK = {"session.timeout.ms": "3000", "heartbeat.interval.ms": "500"}


class Fleet:
    """Worker commands of one group, each with its own log."""

    def __init__(
        self, kafka: Topics, folder: Path, group: str, assignor: str, *units: Unit
    ) -> None:
        self.kafka, self.folder, self.group = kafka, folder, group
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.assignor, self.units = assignor, units
        table = TaskTable(units)
        self.tasks = {str(table.task(place)) for place in range(len(table))}
        self.configure()

    def configure(self, **config: object) -> None:
        """Write the group's config; in a key of `config` each _ stands for a dot."""
        given = {key.replace("_", "."): value for key, value in config.items()}
        settings = parse_settings({**QUICK, **given}, self.assignor)
        group = GroupId(self.group)
        self.kafka.write(
            TopicKind.CONFIG,
            GroupConfig(group=group, assignor=self.assignor, settings=settings, tasks=self.units),
        )

    def start(self, name: str, *more: str) -> None:
        """Start a worker with further options."""
        program = [sys.executable, "-m", "muster.cli.main", "worker", "--group", self.group]
        where = ["--bootstrap-server", self.kafka.address, "--topic-prefix", self.kafka.prefix]
        what = ["--member-id", name, "--log", str(self.folder / f"{name}.jsonl")]
        task = "trap '' TERM; while :; do sleep 0.05; done" if name == "deaf" else "exec sleep 900"
        options = ["--stop-timeout-ms", "500", "--exec", task, *more]
        self.workers[name] = subprocess.Popen([*program, *where, *what, *options], cwd=self.folder)

    def kill(self, name: str) -> None:
        """SIGKILL a worker: it ends without a leave."""
        self.workers[name].kill()
        self.workers[name].wait()

    def lines(self) -> list[dict]:
        """The lines of all logs, in order of time."""
        printed = []
        for file in self.folder.glob("*.jsonl"):
            printed += [
                json.loads(line)
                for line in file.read_text().splitlines(keepends=True)
                if line.endswith("\n")
            ]
        return sorted(printed, key=lambda line: line["boottime_ms"])

    def snapshots(self) -> list[GroupSnapshot]:
        """The group's published snapshots, oldest first."""
        records = self.kafka.records(TopicKind.GROUPS)
        return [r for r in records if isinstance(r, GroupSnapshot) and r.group == self.group]

    def owners(self) -> dict[str, list[str]]:
        """Task → the members that run it now."""
        running: dict[str, list[str]] = {task: [] for task in self.tasks}
        for line in self.lines():
            if line["event"] == "start":
                running[line["task"]].append(line["member"])
            else:
                running[line["task"]].remove(line["member"])
        return running

    def settled(self, *names: str) -> bool:
        """Whether exactly these workers run all tasks, each task once."""
        owners = self.owners()
        return all(len(o) == 1 for o in owners.values()) and {o[0] for o in owners.values()} == set(
            names
        )

    def runs(self) -> dict[str, set[str]]:
        """Worker → the tasks it runs now; "-" has the tasks that no worker runs."""
        tasks_by_worker: dict[str, set[str]] = {}
        for task, owners in self.owners().items():
            for owner in owners or ["-"]:
                tasks_by_worker.setdefault(owner, set()).add(task)
        return tasks_by_worker

    def members(self) -> set[str]:
        """Members of the group in the newest snapshot."""
        records = self.kafka.records(TopicKind.GROUPS)
        mine = [r for r in records if isinstance(r, GroupSnapshot) and r.group == self.group]
        return {str(entry.id) for entry in mine[-1].members} if mine else set()

    def joins(self) -> list[Join]:
        """The joins that its workers have written."""
        rows = read(self.kafka.clients, self.kafka.name(TopicKind.MEMBERSHIP))
        events = (codec.decode(TopicKind.MEMBERSHIP, r.key, r.value, NOWHERE) for r in rows)
        return [e for e in events if isinstance(e, Join) and e.group == self.group]

    def overlaps(self) -> list[str]:
        """Starts of tasks that another worker still ran."""
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
        """End all workers and wait until no task process is left."""
        for process in self.workers.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        until(lambda: not any(self.owners().values()), "every task process has ended")


@pytest.fixture
def fleet(kafka: Topics, job: Job, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet of six tasks."""
    made = Fleet(kafka, tmp_path, "exec-workers", "sticky", Subtopology("0", 6))
    yield made
    made.close()


@pytest.fixture
def pinned(kafka: Topics, job: Job, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet of two connectors with two tasks each, under `static`."""
    made = Fleet(kafka, tmp_path, "pinned", "static", Connector("c", 2), Connector("d", 2))
    yield made
    made.close()


def test_killed_frozen_and_stopped(fleet: Fleet) -> None:
    """When a worker is killed, frozen or stopped, the others get its tasks; none has two owners."""
    for name in ("W1", "W2", "deaf"):
        fleet.start(name)
    until(lambda: fleet.settled("W1", "W2", "deaf"), "three share the tasks", story=fleet.owners)
    assert all(join.apart for join in fleet.joins()), "each knows the topic of heartbeats"
    fleet.kill("W1")
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
    fleet.kill("deaf")
    until(lambda: not fleet.members(), "the last one expires, although no member heartbeats")


def test_pinned_jobs_run_where_they_are_named(pinned: Fleet) -> None:
    """A worker with `--static` runs exactly the jobs it names; wildcard workers run the others.

    When it is killed, its jobs wait for it as lost jobs do (KIP-987), or without a delay go to the
    wildcard workers; without wildcard workers the other jobs stay unassigned.
    """
    mine, rest = {"c-0", "d"}, pinned.tasks - {"c-0", "d"}

    def shared() -> bool:
        runs = pinned.runs()
        return runs.get("P") == mine and "-" not in runs and len(runs) == 3

    def waiting() -> bool:
        return pinned.members() == {"W1", "W2"} and pinned.runs().get("-") == mine

    def pin() -> None:
        pinned.start("P", *[word for job in sorted(mine) for word in ("--static", job)])

    pinned.start("W1")
    until(lambda: pinned.runs() == {"W1": pinned.tasks}, "W1 has all", story=pinned.runs)
    pin()
    pinned.start("W2")
    until(shared, "P has what it names, W1 and W2 share the rest", story=pinned.runs)
    before = pinned.runs()
    pinned.kill("P")
    until(waiting, "the jobs of P wait", story=pinned.runs)
    assert {name: pinned.runs()[name] for name in ("W1", "W2")} == {
        name: before[name] for name in ("W1", "W2")
    }
    pin()
    until(lambda: pinned.runs() == before, "P has its jobs again", story=pinned.runs)
    pinned.configure(scheduled_rebalance_max_delay_ms=0)
    pinned.kill("P")
    until(lambda: pinned.runs().keys() == {"W1", "W2"}, "the others have all", story=pinned.runs)
    pin()
    until(shared, "P has what it names again", story=pinned.runs)
    for name in ("W1", "W2"):
        pinned.workers[name].send_signal(signal.SIGTERM)
        assert pinned.workers[name].wait(30) == 0
    until(lambda: pinned.members() == {"P"}, "the wildcard workers have left")
    until(lambda: pinned.runs() == {"P": mine, "-": rest}, "the rest waits", story=pinned.runs)
    started = {line["task"] for line in pinned.lines() if line["member"] == "P"}
    assert (started, pinned.overlaps()) == (mine, [])


def test_new_workers_of_a_group_with_standbys(kafka: Topics, job: Job, tmp_path: Path) -> None:
    """Two workers join three: all five run tasks, each task has a standby, no follow-up comes."""
    tasks = Subtopology("0", 6, stateful=True)
    fleet = Fleet(kafka, tmp_path, "exec-standbys", "high-availability", tasks)
    fleet.configure(num_standby_replicas="1")

    def rests() -> bool:
        snapshots = fleet.snapshots()
        return bool(snapshots) and (snapshots[-1].state, snapshots[-1].followup_ms) == (
            GroupState.STABLE,
            None,
        )

    try:
        for name in ("W1", "W2", "W3"):
            fleet.start(name)
        until(lambda: fleet.settled("W1", "W2", "W3") and rests(), "three", story=fleet.owners)
        for name in ("W4", "W5"):
            fleet.start(name)
        five = ("W1", "W2", "W3", "W4", "W5")
        until(lambda: fleet.settled(*five) and rests(), "five share", story=fleet.owners)
        newest = fleet.snapshots()[-1]
        shown = Shown(newest, {})
        copies = [str(task) for member in newest.members for task in shown.standby(member)]
        assert sorted(copies) == sorted(fleet.tasks)
        assert not any(shown.standby(each) & shown.active(each) for each in newest.members)
        loads = Counter(newest.holder.tolist())
        assert sorted(loads.values()) == [1, 1, 1, 1, 2]
        assert fleet.overlaps() == []
        # No generation has a follow-up as its cause.
        causes = {s.generation: s.cause for s in fleet.snapshots()}
        assert [cause for cause in causes.values() if cause == "follow-up"] == []
    finally:
        fleet.close()
