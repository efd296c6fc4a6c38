"""A real Connect cluster of the released jars, whose workers know nothing of muster."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
import uuid
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

from confluent_kafka.admin import AdminClient, NewTopic
from support.suite.ended import ends
from support.suite.waiting import until

from muster.broker import jars
from muster.broker.embedded_kafka import HOST, free_port
from muster.broker.ends_with_parent import Tethered
from muster.broker.java import java

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
logger.member.name = org.apache.kafka.connect.runtime.distributed.WorkerCoordinator
logger.member.level = INFO
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
consumer.session.timeout.ms=6000
consumer.heartbeat.interval.ms=500
plugin.discovery=service_load
"""
JOINING = re.compile(r"^(\d+) .*\(Re-\)joining group")
JOINED = re.compile(r"^(\d+) .*Joined group at generation (\d+) with")
STARTED = re.compile(r"^(\d+) \w+ Creating (?:task|connector) (\S+?)(?: of type .*)?$")
STOPPED = re.compile(r"^(\d+) \w+ Graceful stop of (?:task|connector) (\S+) (?:succeeded|failed)\.")


RUNS = 2**62
"""End of a span that has none yet."""


class Span(NamedTuple):
    """How long a worker ran a job."""

    begin_ms: int
    end_ms: int
    worker: str


class Worker:
    """One worker process; `start` it once.

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
            + cluster.settings
        )
        logging = cluster.folder / "log4j2.properties"
        logging.write_text(LOGGING)
        self._command = [
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
        self._folder = cluster.folder

    def start(self) -> None:
        """Start the process; returns at once."""
        with self.log.open("wb") as output:
            self.process = Tethered(self._command, output=output, cwd=self._folder)

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
    """Workers of one group; a context manager.

    Args:
        address: of Kafka.
        folder: for settings and logs.
        settings: further lines of each worker's settings.
    """

    def __init__(self, address: str, folder: Path, settings: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.address, self.folder, self.settings = address, folder, settings
        self.group = f"connect-{uuid.uuid4().hex[:6]}"
        self.workers: list[Worker] = []
        self._all: list[Worker] = []
        self._count = 0
        self._topic = f"{self.group}-input"

    @property
    def config_topic(self) -> str:
        """Where its connectors are."""
        return f"{self.group}-configs"

    def start(self, protocol: str = "sessioned") -> Worker:
        """Start a worker; returns at once."""
        worker = self.planned(protocol)
        self.begin(worker)
        return worker

    def planned(self, protocol: str = "sessioned") -> Worker:
        """A worker that is to be started later; its name is known."""
        self._count += 1
        return Worker(self, self._count, protocol)

    def begin(self, worker: Worker) -> None:
        """Start a planned worker; returns at once."""
        worker.start()
        self.workers.append(worker)
        self._all.append(worker)

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
        """Make a connector with so many tasks, that writes a topic's records to a file.

        Its tasks' consumers have a group of their own on the broker. If killed workers of another
        cluster are still in it, a task waits for them when it joins, and cannot stop meanwhile.
        """
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "tasks.max": str(tasks),
            "topics": self._topic,
            "file": str(self.folder / f"{name}.txt"),
            "consumer.override.group.id": f"{self.group}-{name}",
        }
        until(
            lambda: self.workers[0].ask("PUT", f"/connectors/{name}/config", config),
            f"connector {name} is made",
            pause_s=0.5,
            story=self.story,
        )

    def places(self) -> dict[str, str]:
        """Connector or task → worker that runs it, as REST says; only those that run."""
        workers_by_task: dict[str, str] = {}
        there = self.workers[0].get("/connectors?expand=status") or {}
        for name, row in there.items():
            status = row["status"]
            if status["connector"]["state"] == "RUNNING":
                workers_by_task[name] = status["connector"]["worker_id"]
            for task in status["tasks"]:
                if task["state"] == "RUNNING":
                    workers_by_task[f"{name}-{task['id']}"] = task["worker_id"]
        return workers_by_task

    def stop(self, worker: Worker) -> None:
        """Stop a worker in order."""
        self.workers.remove(worker)
        worker.process.send(signal.SIGTERM)
        ends(worker.process, worker.log, signal.SIGQUIT)

    def kill(self, worker: Worker) -> None:
        """Kill a worker."""
        self.workers.remove(worker)
        worker.process.kill()

    def starts(self, since_ms: int) -> list[tuple[str, str]]:
        """(job, worker) of every start since then, by the workers' own logs."""
        return sorted(
            (job, span.worker)
            for job, spans in self.spans().items()
            for span in spans
            if span.begin_ms >= since_ms
        )

    def first_join_ms(self, worker: Worker) -> int:
        """When a worker asked for the first time to be in the group."""
        return int(next(filter(None, map(JOINING.match, _lines(worker))))[1])

    def rounds(self, since_ms: int) -> set[int]:
        """Kafka's generations that began since then."""
        matches = (JOINED.match(line) for worker in self._all for line in _lines(worker))
        return {int(each[2]) for each in matches if each is not None and int(each[1]) >= since_ms}

    def running(self) -> dict[str, str]:
        """Job → worker that runs it, by the workers' own logs."""
        there = {worker.name for worker in self.workers}
        return {
            job: span.worker
            for job, spans in self.spans().items()
            for span in spans
            if span.end_ms == RUNS and span.worker in there
        }

    def check_alone(self) -> None:
        """No job ran on two workers at once, by the workers' own logs."""
        all_spans = self.spans()
        assert all_spans, "the workers log what they start"
        for job, spans in all_spans.items():
            for one, other in pairwise(sorted(spans)):
                fine = one.end_ms <= other.begin_ms or one.worker == other.worker
                assert fine, "\n".join([job, *map(str, sorted(spans))])

    def spans(self) -> dict[str, list[Span]]:
        """When each job ran where.

        A task that a killed worker ran has no end there: it counts as ended with the log. One that
        does not stop within `task.shutdown.graceful.timeout.ms` is cancelled by its worker, which
        then tells the cluster that it does not run it any more: that counts as its end.
        """
        spans: defaultdict[str, list[Span]] = defaultdict(list)
        for worker in self._all:
            since: dict[str, int] = {}
            at = 0
            for line in _lines(worker):
                stamp = line.partition(" ")[0]
                at = int(stamp) if stamp.isdigit() else at
                if (begun := STARTED.match(line)) is not None:
                    since[begun[2]] = int(begun[1])
                elif (ended := STOPPED.match(line)) is not None and ended[2] in since:
                    spans[ended[2]].append(Span(since.pop(ended[2]), int(ended[1]), worker.name))
            last = RUNS if worker in self.workers else at
            for job, begun_ms in since.items():
                spans[job].append(Span(begun_ms, last, worker.name))
        return spans

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


def _lines(worker: Worker) -> list[str]:
    return worker.log.read_text(errors="replace").splitlines()
