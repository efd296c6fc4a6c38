"""Workers in Python, Go and JavaScript share a group under the real broker and job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kafka.brokers import Topics
from support.streams.job import Job
from support.suite.waiting import PATIENCE_S, until
from support.worker import overlap
from support.worker.fleet import Workers
from support.worker.languages import LANGUAGES, Language, Running
from support.worker.ring import Ring, letters

from muster.protocol.events import GroupConfig
from muster.protocol.ids import GroupId
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector, Subtopology, TaskTable
from muster.protocol.topics import TopicKind
from muster.signing.followed_key_file import VARIABLE

pytestmark = [pytest.mark.broker, pytest.mark.spark]
GROUP = "polyglot"
UNITS = (Connector("c", 3), Subtopology("0", 8))
QUICK = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}


class Band(Workers):
    """The members of the group, each with its own log."""

    def __init__(self, kafka: Topics, folder: Path, ring: Ring) -> None:
        super().__init__(kafka, folder, GROUP)
        table = TaskTable(UNITS)
        self.tasks = {str(table.task(index)) for index in range(len(table))}
        self.keys = {VARIABLE: str(ring.file)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.built: dict[str, Language] = {}
        settings, group = parse_settings(QUICK), GroupId(GROUP)
        config = GroupConfig(group=group, assignor="sticky", settings=settings, tasks=UNITS)
        kafka.write(TopicKind.CONFIG, config)
        ring("require", "--group", "*", "--spread-ms", "0")

    def start_python(self) -> None:
        """Start ``muster worker``."""
        program = [sys.executable, "-m", "muster.cli.main", "worker", "--group", GROUP]
        where = ["--bootstrap-server", self.topics.address, "--topic-prefix", self.topics.prefix]
        log = ["--member-id", "python", "--log", str(self.folder / "python.jsonl")]
        command = [*program, *where, *log, "--exec", "exec sleep 900"]
        self.processes["python"] = subprocess.Popen(
            command, cwd=self.folder, env={**os.environ, **self.keys}
        )

    def start(self, name: str, language: str) -> None:
        """Start the example of a language."""
        if language not in self.built:
            folder = self.folder / language
            folder.mkdir()
            self.built[language] = LANGUAGES[language](folder)
        log = self.folder / f"{name}.jsonl"
        running = Running(self.built[language], self.topics, GROUP, name, log, **self.keys)
        self.processes[name] = running.process

    def kill(self, name: str) -> None:
        """SIGKILL a member, and log the time of its death for it."""
        self.processes[name].kill()
        self.processes[name].wait()
        at_ns = overlap.now_ns()
        mine = [line for line in overlap.lines(self.folder) if line.get("member") == name]
        died = {"at_ns": at_ns, "what": "died", "pid": mine[-1]["pid"]}
        (self.folder / "deaths.jsonl").write_text(json.dumps(died) + "\n")

    def leave(self, name: str) -> None:
        """SIGTERM: the member stops its tasks, leaves the group and ends with exit code 0."""
        self.processes[name].send_signal(signal.SIGTERM)
        assert self.processes[name].wait(PATIENCE_S) == 0

    def running(self) -> set[overlap.Tenure]:
        """The tenures that have not ended."""
        return {tenure for tenure in self.tenures() if tenure.stop_ns == overlap.FOREVER}

    def shared_by(self, *names: str) -> bool:
        """Whether exactly these members run every task once, and evenly."""
        held = self.held()
        sizes = [len(tasks) for tasks in held.values()]
        return self.is_whole() and held.keys() == set(names) and max(sizes) <= min(sizes) + 1

    def await_share(self, *names: str) -> None:
        """Wait until these members share the tasks."""
        until(lambda: self.shared_by(*names), f"{names} share the tasks", story=self.held)

    def close(self) -> None:
        """End all members."""
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    """The keyring of the coordinator and of all members."""
    return Ring(tmp_path / "ring.json")


@pytest.fixture
def job(kafka: Topics, tmp_path: Path, ring: Ring) -> Iterator[Job]:
    """A coordinator with the keyring."""
    env = {**os.environ, VARIABLE: str(ring.file)}
    with Job(kafka, tmp_path / "job", env=env) as job:
        yield job.start()


@pytest.fixture
def band(kafka: Topics, job: Job, tmp_path: Path, ring: Ring) -> Iterator[Band]:
    """A group of eight stateless tasks and a connector of three, with signatures required."""
    made = Band(kafka, tmp_path, ring)
    yield made
    made.close()


def test_three_languages_share_a_group(band: Band, job: Job) -> None:
    """Members join, one is killed, others leave: all tasks move, and no task ever has two owners.

    All events must be signed, and no task stops when the coordinator loses its checkpoint.
    """
    band.start_python()
    band.await_share("python")
    band.start("go", "go")
    band.start("js", "js")
    band.await_share("python", "go", "js")
    before = band.running()
    assert job.stop() == 0
    shutil.rmtree(job.checkpoint)
    job.start()
    band.kill("js")
    band.await_share("python", "go")
    assert {t for t in before if t.member != "js"} <= band.running()
    band.start("js-2", "js")
    band.await_share("python", "go", "js-2")
    band.leave("go")
    band.await_share("python", "js-2")
    band.leave("python")
    band.await_share("js-2")
    band.leave("js-2")
    tenures = band.check()
    assert {tenure.member for tenure in tenures} == {"python", "go", "js", "js-2"}
    assert all(tenure.stop_ns < overlap.FOREVER for tenure in tenures)
    assert letters(band.topics) == []
