"""A Kafka and the Spark job on this machine, in one temporary folder.

Every process is tethered (`muster.broker.ends_with_parent`): it ends even if this process
is killed. Logs and the checkpoint are in the folder, which is deleted at the end.
"""

from __future__ import annotations

import http.client
import shutil
import sys
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from muster.broker.embedded_kafka import EmbeddedKafka, free_port, temporary_folder
from muster.broker.ends_with_parent import Tethered
from muster.kafka.client_settings import ClientSettings, client_settings
from muster.kafka.partition_counts import PartitionCounts
from muster.kafka.topic_creation import create
from muster.protocol.topics import DEFAULT_PREFIX

PARTITIONS = 2
LOG_TAIL = 15
JOB = "the Spark job"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks this machine itself, also where the environment names a proxy."""


class LocalCluster:
    """The processes; entering the context manager starts none of them.

    Args:
        address: a Kafka that runs already; None = an embedded one is used.

    Raises:
        BrokerFailed: no temporary folder can be made.

    Attributes:
        folder: where logs and the checkpoint are.
        console_url: where the console is; empty = there is none.
    """

    def __init__(self, address: str | None = None) -> None:
        self.folder = temporary_folder("muster-local-")
        self.kafka = EmbeddedKafka()
        self._address = address
        self._job: Tethered | None = None
        self._console: Tethered | None = None
        self.console_url = ""
        self._metrics_port = free_port()

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect."""
        return self._address or self.kafka.bootstrap_server

    @property
    def clients(self) -> ClientSettings:
        """How to reach the broker."""
        return client_settings(self.bootstrap_servers)

    def start_kafka(self) -> None:
        """Start the embedded Kafka, unless another one is used; returns when it answers."""
        if self._address is None:
            self.kafka.start()

    def create_topics(self) -> None:
        """Create muster's topics, all with broker timestamps, also those the coordinator writes."""
        more = {"message.timestamp.type": "LogAppendTime"}
        create(self.clients, DEFAULT_PREFIX, PartitionCounts(PARTITIONS), more=more)

    def start_job(self) -> None:
        """Start the Spark job and return at once; see `job_answers` and `job_is_ready`."""
        conf = (f"muster.metrics.port={self._metrics_port}", "muster.metrics.host=127.0.0.1")
        command = [
            *(sys.executable, "-m", "muster.cli.main", "run"),
            *("--bootstrap-server", self.bootstrap_servers),
            *("--checkpoint", str(self.folder / "checkpoint")),
            *(word for setting in conf for word in ("--conf", setting)),
        ]
        # The job gets its own folder, because Spark's workers import from the one they start in.
        self._job = self._run("job", command, sweep=self.folder)

    def start_console(self) -> None:
        """Start the console, if its packages are installed, and return at once."""
        if find_spec("starlette") is None or find_spec("bcrypt") is None:
            return
        port = free_port(besides=self._metrics_port)
        command = [
            *(sys.executable, "-m", "muster.cli.main", "console", "--port", str(port)),
            *("--bootstrap-server", self.bootstrap_servers),
            *("--metrics", f"http://127.0.0.1:{self._metrics_port}"),
        ]
        self._console = self._run("console", command)
        self.console_url = f"http://127.0.0.1:{port}/"

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
            with _DIRECT.open(page, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refusal:
            return refusal.code
        except (OSError, http.client.HTTPException):
            return None

    def ended(self) -> str | None:
        """Which of Kafka and the job has ended by itself, with its last lines; None = none has."""
        if self._job is not None and self._job.poll() is not None:
            return f"{JOB} ended with exit code {self._job.poll()}\n{self.tail(JOB)}"
        if self._address is None and not self.kafka.running:
            return str(self.kafka.wait())
        return None

    def tail(self, name: str) -> str:
        """The last lines of a process's log, indented."""
        file = self.folder / ("job.log" if name == JOB else f"{name}.log")
        lines = file.read_text(errors="replace").splitlines() if file.exists() else []
        return "\n".join(f"  {line}" for line in lines[-LOG_TAIL:])

    def close(self) -> None:
        """End the job, then Kafka, and remove the folder. Idempotent."""
        try:
            for process in (self._console, self._job):
                if process is not None:
                    process.stop()
        finally:
            self.kafka.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, name: str, command: list[str], sweep: Path | None = None) -> Tethered:
        with (self.folder / f"{name}.log").open("ab") as log:
            return Tethered(command, output=log, cwd=self.folder, sweep=sweep)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
