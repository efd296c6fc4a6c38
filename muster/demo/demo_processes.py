"""The processes of `muster demo`: a Kafka, the Spark job and workers; all of them end with it."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from muster.broker.ends_with_parent import Tethered
from muster.demo.local_cluster import LocalCluster
from muster.errors import DemoFailed
from muster.kafka.writer import append
from muster.protocol.events import Drain, GroupConfig
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind, topic_name

GROUP = GroupId("demo")
ASSIGNOR = "sticky"
TASKS = (Subtopology("0", 12),)
SETTINGS: Mapping[str, object] = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 500}
"""A short session, so that a killed worker expires while people watch."""


class DemoProcesses(LocalCluster):
    """The processes of the demo; a context manager.

    Attributes:
        workers: those that should run, by member id.
    """

    def __init__(self) -> None:
        super().__init__()
        self.workers: dict[str, Tethered] = {}

    @property
    def logs(self) -> Path:
        """Where workers log the tasks that they run."""
        return self.folder / "tenures"

    def start_kafka(self) -> None:
        """Start Kafka; returns when it answers."""
        self.logs.mkdir()
        super().start_kafka()

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
        for name, process in self.workers.items():
            if process.poll() is not None:
                raise DemoFailed(f"{name} ended with exit code {process.poll()}\n{self.tail(name)}")
        if (ended := self.ended()) is not None:
            raise DemoFailed(ended)

    def close(self) -> None:
        """End everything: workers leave first, then the job, then Kafka. Idempotent."""
        try:
            for worker in self.workers.values():
                worker.send(signal.SIGTERM)
            for worker in self.workers.values():
                worker.stop()
        finally:
            super().close()
