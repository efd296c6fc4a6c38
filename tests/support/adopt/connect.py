"""A real Connect cluster of the released jars, whose workers know nothing of muster."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any, Self

from confluent_kafka.admin import AdminClient, NewTopic
from support.suite.waiting import until

from muster.broker import jars
from muster.broker.java import java
from muster.broker.kafka import HOST, free_port
from muster.broker.tether import Tethered

START_S = 240.0
LOGGING = """\
status = error
appenders = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{UNIX_MILLIS} %p %m%n
rootLogger.level = WARN
rootLogger.appenderRefs = out
rootLogger.appenderRef.out.ref = out
logger.worker.name = org.apache.kafka.connect.runtime.Worker
logger.worker.level = DEBUG
logger.herder.name = org.apache.kafka.connect.runtime.distributed.DistributedHerder
logger.herder.level = INFO
"""
WORKER = """\
bootstrap.servers={address}
group.id={group}
config.storage.topic={group}-configs
offset.storage.topic={group}-offsets
status.storage.topic={group}-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=1
status.storage.partitions=1
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
listeners=http://{host}:{port}
session.timeout.ms=6000
heartbeat.interval.ms=500
connect.protocol={protocol}
plugin.discovery=service_load
"""
STARTED = re.compile(r"^(\d+) \w+ Creating (?:task|connector) (\S+?)(?: of type .*)?$")
STOPPED = re.compile(r"^(\d+) \w+ Graceful stop of (?:task|connector) (\S+) (?:succeeded|failed)\.")


class Worker:
    """One worker process.

    Attributes:
        name: as muster calls it: host and port of its REST address.
    """

    def __init__(self, cluster: ConnectCluster, number: int, protocol: str) -> None:
        port = free_port()
        self.name = f"{HOST}:{port}"
        self.log = cluster.folder / f"worker{number}.log"
        settings = cluster.folder / f"worker{number}.properties"
        settings.write_text(
            WORKER.format(
                address=cluster.address,
                group=cluster.group,
                host=HOST,
                port=port,
                protocol=protocol,
            )
        )
        logging = cluster.folder / "log4j2.properties"
        logging.write_text(LOGGING)
        command = [
            str(java()),
            "-Xms32m",
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={logging}",
            "-cp",
            ":".join(map(str, jars.jars("connect"))),
            "org.apache.kafka.connect.cli.ConnectDistributed",
            str(settings),
        ]
        with self.log.open("wb") as output:
            self.process = Tethered(command, output=output, cwd=cluster.folder)

    def get(self, path: str) -> Any:
        """What its REST API says; None = nothing."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """A request to its REST API; None = it did not succeed."""
        request = urllib.request.Request(
            f"http://{self.name}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.loads(answer.read() or b"{}")
        except (OSError, urllib.error.HTTPError):
            return None


class ConnectCluster:
    """Workers of one group; a context manager."""

    def __init__(self, address: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.address, self.folder = address, folder
        self.group = f"connect-{uuid.uuid4().hex[:6]}"
        self.workers: list[Worker] = []
        self._all: list[Worker] = []
        self._topic = f"{self.group}-input"

    @property
    def config_topic(self) -> str:
        """Where its connectors are."""
        return f"{self.group}-configs"

    def start(self, protocol: str = "sessioned") -> Worker:
        """Start a worker; returns at once."""
        worker = Worker(self, len(self._all), protocol)
        self.workers.append(worker)
        self._all.append(worker)
        return worker

    def ready(self) -> None:
        """Wait until every worker answers."""
        for worker in self.workers:
            until(
                lambda worker=worker: worker.get("/connectors") is not None,
                f"{worker.name} answers",
                timeout_s=START_S,
                pause_s=0.3,
                story=self.story,
            )

    def connector(self, name: str, tasks: int) -> None:
        """Make a connector with so many tasks, that writes a topic's records to a file."""
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "tasks.max": str(tasks),
            "topics": self._topic,
            "file": str(self.folder / f"{name}.txt"),
        }
        until(
            lambda: self.workers[0].ask("PUT", f"/connectors/{name}/config", config),
            f"connector {name} is made",
            pause_s=0.5,
            story=self.story,
        )

    def places(self) -> dict[str, str]:
        """Connector or task → worker that runs it, as REST says; only those that run."""
        found: dict[str, str] = {}
        there = self.workers[0].get("/connectors?expand=status") or {}
        for name, row in there.items():
            status = row["status"]
            if status["connector"]["state"] == "RUNNING":
                found[name] = status["connector"]["worker_id"]
            for task in status["tasks"]:
                if task["state"] == "RUNNING":
                    found[f"{name}-{task['id']}"] = task["worker_id"]
        return found

    def stop(self, worker: Worker) -> None:
        """Stop a worker in order."""
        self.workers.remove(worker)
        worker.process.send(signal.SIGTERM)
        worker.process.wait(60)

    def kill(self, worker: Worker) -> None:
        """Kill a worker."""
        self.workers.remove(worker)
        worker.process.kill()

    def check_alone(self) -> None:
        """No job ran on two workers at once, by the workers' own logs.

        A task that a killed worker ran has no end there: it counts as ended with the log. One that
        does not stop within `task.shutdown.graceful.timeout.ms` is cancelled by its worker, which
        then tells the cluster that it does not run it any more: that counts as its end.
        """
        spans: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for worker in self._all:
            since: dict[str, int] = {}
            at = 0
            for line in worker.log.read_text(errors="replace").splitlines():
                stamp = line.partition(" ")[0]
                at = int(stamp) if stamp.isdigit() else at
                if (begun := STARTED.match(line)) is not None:
                    since[begun[2]] = int(begun[1])
                elif (ended := STOPPED.match(line)) is not None:
                    job = ended[2]
                    if job in since:
                        spans[job].append((since.pop(job), int(ended[1]), worker.name))
            last = 2**62 if worker in self.workers else at
            for job, begun_ms in since.items():
                spans[job].append((begun_ms, last, worker.name))
        assert spans, "the workers log what they start"
        for job, rows in spans.items():
            for (_, end, one), (begin, _, other) in zip(
                sorted(rows), sorted(rows)[1:], strict=False
            ):
                assert end <= begin or one == other, "\n".join([job, *map(str, sorted(rows))])

    def story(self) -> str:
        """The last lines of every worker."""
        tails = []
        for worker in self._all:
            lines = worker.log.read_text(errors="replace").splitlines()
            tails.append("\n".join([f"-- {worker.name}", *lines[-15:]]))
        return "\n".join(tails)

    def __enter__(self) -> Self:
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_topics([NewTopic(self._topic, 2, 1)])[self._topic].result(30)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._all:
            worker.process.kill()
