"""A standalone Spark cluster from the pip package: a master and workers, each its own process.

As on real machines, executors are children of the workers and outlive the driver's trouble, find
their Python by ``PYSPARK_PYTHON``, and share nothing with the driver but the network and the file
system the checkpoint is on. Everything listens on loopback.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark
from support.suite.jvms import SMALL
from support.suite.waiting import until

from muster.broker.embedded_kafka import HOST, free_port
from muster.broker.ends_with_parent import Tethered
from muster.broker.java import java_home

SPARK_HOME = Path(pyspark.__file__).parent
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
CONF = (
    "spark.driver.host=127.0.0.1",
    "spark.executor.cores=1",
    "spark.executor.memory=600m",
    "spark.cores.max=2",
    "spark.sql.shuffle.partitions=2",
    f"spark.executor.extraJavaOptions={SMALL}",
)
"""Settings of a job: one core each, so that both workers get a part of every batch."""


def environment() -> dict[str, str]:
    """Environment of master, workers and drivers: the tests' interpreter, loopback only."""
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "JAVA_HOME": str(java_home()),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SMALL,
        "SPARK_NO_DAEMONIZE": "1",
    }


class SparkCluster:
    """One master, some workers; a context manager.

    Attributes:
        folder: logs, and the workers' own folders.
        master: ``spark://HOST:PORT``.
    """

    def __init__(self, folder: Path, workers: int = 2, cores: int = 1) -> None:
        self.folder = folder
        self.port = free_port()
        self.master = f"spark://{HOST}:{self.port}"
        self._count, self._cores = workers, cores
        self._daemons: list[Tethered] = []

    def start(self) -> SparkCluster:
        """Start all; return when the master listens (workers register by themselves)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = ["--port", str(self.port), "--webui-port", "0"]
        self._launch("master", "master.Master", "--host", HOST, *ports)
        until(self._listens, "the master listens", story=lambda: self.log("master"))
        for number in range(1, self._count + 1):
            place = self.folder / f"worker-{number}"
            size = ["-c", str(self._cores), "-m", f"{self._cores}g"]
            what = [*size, "-d", str(place), "--webui-port", "0", self.master]
            self._launch(place.name, "worker.Worker", "--host", HOST, *what)
        return self

    def _launch(self, name: str, main: str, *arguments: str) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons.append(
                Tethered([*command, *arguments], output=log, env=environment(), cwd=self.folder)
            )

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
            return True
        return False

    def log(self, name: str) -> str:
        """The end of a daemon's log."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def executors(self) -> list[psutil.Process]:
        """The running executors, oldest first; each is a JVM below a worker."""
        executors = []
        for daemon in self._daemons[1:]:
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(daemon.pid).children(recursive=True)
                executors += [child for child in children if _is_executor(child)]
        return sorted(executors, key=lambda process: process.create_time())

    def close(self) -> None:
        """End everything, executors first: a killed worker would leave them running."""
        lost = [p for e in self.executors() for p in (e, *_children(e))]
        for process in lost:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for daemon in reversed(self._daemons):
            daemon.kill()
        psutil.wait_procs(lost, timeout=10)
        self._daemons.clear()

    def __enter__(self) -> SparkCluster:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_executor(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return EXECUTOR in process.cmdline()
    return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []
