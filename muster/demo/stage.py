"""The processes of `muster demo`: a Kafka, the Spark job and workers; all of them end with it.

Every process is tethered (`muster.broker.tether`): it ends even if the demo is killed. Logs and the
checkpoint are in one temporary folder, which is deleted at the end.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from muster.broker.kafka import EmbeddedKafka, free_port
from muster.broker.tether import Tethered
from muster.errors import DemoFailed
from muster.kafka.settings import ClientSettings, client_settings
from muster.kafka.topics import create
from muster.kafka.writer import append
from muster.protocol.events import Drain, GroupConfig
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import DEFAULT_PREFIX, TopicKind, topic_name

GROUP = GroupId("demo")
ASSIGNOR = "sticky"
TASKS = (Subtopology("0", 12),)
SETTINGS: Mapping[str, object] = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 500}
"""A short session, so that a killed worker expires while people watch."""
PARTITIONS = 2
LOG_TAIL = 15


class Stage:
    """The processes of the demo; a context manager.

    Attributes:
        folder: where logs and the checkpoint are.
        kafka: the broker.
        workers: those that should run, by member id.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="muster-demo-"))
        self.kafka = EmbeddedKafka()
        self.workers: dict[str, Tethered] = {}
        self._job: Tethered | None = None
        self._metrics_port = free_port()

    @property
    def clients(self) -> ClientSettings:
        """How to reach the broker."""
        return client_settings(self.kafka.bootstrap_server)

    @property
    def logs(self) -> Path:
        """Where workers log the tasks that they run."""
        return self.folder / "tenures"

    def start_kafka(self) -> None:
        """Start Kafka; returns when it answers."""
        self.logs.mkdir()
        self.kafka.start()

    def create_topics(self) -> None:
        """Create muster's topics, all with broker timestamps, also those the coordinator writes."""
        more = {"message.timestamp.type": "LogAppendTime"}
        create(self.clients, DEFAULT_PREFIX, PARTITIONS, more=more)

    def start_job(self) -> None:
        """Start the Spark job and return at once; see `job_answers` and `job_is_ready`."""
        conf = (f"muster.metrics.port={self._metrics_port}", "muster.metrics.host=127.0.0.1")
        command = [
            *(sys.executable, "-m", "muster.cli.main", "run"),
            *("--bootstrap-server", self.kafka.bootstrap_server),
            *("--checkpoint", str(self.folder / "checkpoint")),
            *(word for setting in conf for word in ("--conf", setting)),
        ]
        # It runs in the demo's folder: in a checkout, Spark's workers would import from there.
        self._job = self._run("job", command, sweep=self.folder)

    def job_answers(self) -> bool:
        """Whether Spark is up: the job has claimed to be the coordinator and answers probes."""
        return self._probed() is not None

    def job_is_ready(self) -> bool:
        """Whether the query runs."""
        return self._probed() == 200

    def _probed(self) -> int | None:
        """Status of the job's readiness page; None = nothing listens."""
        try:
            page = f"http://127.0.0.1:{self._metrics_port}/readyz"
            with urllib.request.urlopen(page, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refusal:
            return refusal.code
        except (urllib.error.URLError, OSError):
            return None

    def configure_group(self) -> None:
        """Declare the group's tasks and settings."""
        group = GroupConfig(
            group=GROUP,
            assignor=ASSIGNOR,
            settings=parse_settings(SETTINGS, ASSIGNOR),
            tasks=TASKS,
        )
        append(self.clients, topic_name(TopicKind.CONFIG), group)

    def start_worker(self, member: str) -> None:
        """Start a worker process; it joins by itself."""
        file = self.logs / f"{member}.jsonl"
        words = [self.kafka.bootstrap_server, GROUP, member, str(file)]
        command = [sys.executable, "-m", "muster.demo.worker", *words]
        self.workers[member] = self._run(member, command)

    def kill_worker(self, member: str) -> int:
        """Kill a worker with SIGKILL, log the time of its death, and return its pid."""
        process = self.workers.pop(member)
        process.kill()
        line = {"at_ns": time.monotonic_ns(), "what": "died", "member": member}
        (self.logs / f"{member}-died.jsonl").write_text(json.dumps(line) + "\n")
        return process.pid

    def drain(self, member: str) -> None:
        """Write the order that empties a member, as `muster drain` does."""
        order = Drain(group=GROUP, member=MemberId(member))
        append(self.clients, topic_name(TopicKind.MEMBERSHIP), order)

    def check(self) -> None:
        """Check that every process that should run still does.

        Raises:
            DemoFailed: a process ended; the message has its last lines.
        """
        processes = {"the Spark job": self._job, **self.workers}
        for name, process in processes.items():
            if process is not None and process.poll() is not None:
                raise DemoFailed(f"{name} ended with exit code {process.poll()}\n{self.tail(name)}")
        if not self.kafka.running:
            raise DemoFailed("Kafka ended")

    def tail(self, name: str) -> str:
        """The last lines of a process's log, indented."""
        file = self.folder / ("job.log" if name == "the Spark job" else f"{name}.log")
        lines = file.read_text(errors="replace").splitlines() if file.exists() else []
        return "\n".join(f"  {line}" for line in lines[-LOG_TAIL:])

    def close(self) -> None:
        """End everything: workers leave first, then the job, then Kafka. Idempotent."""
        try:
            for worker in self.workers.values():
                worker.send(signal.SIGTERM)
            for worker in self.workers.values():
                worker.stop()
            if self._job is not None:
                self._job.stop()
        finally:
            self.kafka.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, name: str, command: list[str], sweep: Path | None = None) -> Tethered:
        with (self.folder / f"{name}.log").open("ab") as log:
            return Tethered(command, output=log, cwd=self.folder, sweep=sweep)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
