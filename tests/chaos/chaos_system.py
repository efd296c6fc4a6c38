"""The system of the chaos tests: three brokers, a Spark cluster, the coordinator, three fleets.

It is what an operator would run: three Kafka nodes with replication 3, a standalone Spark master
with two workers, ``muster run`` submitted to it, and ``muster worker --exec`` processes. One worker
of each fleet, the islander, reaches Kafka through a proxy of its own; all other processes use
another proxy. If mounting is allowed, the checkpoint is on a small file system that a fault can
fill.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import psutil
from support.kafka.cluster import KafkaCluster
from support.kafka.proxy import Proxy
from support.streams.job import Job
from support.streams.spark_cluster import CONF, SparkCluster, environment
from support.suite.waiting import until
from support.worker.command_fleet import CommandFleet

from muster.protocol.tasks import Connector, Subtopology, Unit

ISLAND, MAINLAND = "ISLAND", "MAINLAND"
SESSION_S, HEARTBEAT_S = 10.0, 1.0
SETTINGS = {
    "session.timeout.ms": str(int(SESSION_S * 1000)),
    "heartbeat.interval.ms": str(int(HEARTBEAT_S * 1000)),
}
CONNECT = {**SETTINGS, "scheduled.rebalance.max.delay.ms": "2000"}
LIMIT_S = 150.0
"""Much longer than anything takes, so that it finds hangs and not slowness."""
CHECKPOINT_BYTES = 96 << 20
ISLANDER = "W3"
NAMES = ("W1", "W2", ISLANDER)
PINS = {"W1": ("p", "p-0", "p-1"), "W2": ("p", "p-1", "p-2"), ISLANDER: ("p-0", "p-2")}
"""Two workers name each job of the static group, so any one worker can be lost."""


class ChaosSystem:
    """Everything that runs; a context manager that leaves nothing behind.

    Args:
        folder: for logs and checkpoint.
        rng: makes all choices.

    Attributes:
        kafka, spark, job, fleets: what runs.
        is_small: whether the checkpoint is on a file system that can be filled.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self.rng = rng
        self.checkpoint = folder / "checkpoint"
        self.is_small = False
        self.victims: set[tuple[str, str]] = set()
        self._stack = ExitStack()
        self._jobs: list[Job] = []

    def __enter__(self) -> ChaosSystem:
        try:
            self._set_up()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _set_up(self) -> None:
        self.is_small = self._stack.enter_context(_small_disk(self.checkpoint))
        self.kafka = self._stack.enter_context(KafkaCluster([ISLAND, MAINLAND]))
        self.spark = self._stack.enter_context(SparkCluster(self.folder / "spark", cores=2))
        self.topics = self.kafka.topics(MAINLAND)
        self._stack.callback(self.topics.close)
        self.job = self.new_job().start()
        self.fleets = [
            self._fleet("rows", "sticky", Subtopology("0", 6), SETTINGS),
            self._fleet("connectors", "cooperative", Connector("c", 5), CONNECT),
            self._fleet("pinned", "static", Connector("p", 3), CONNECT, PINS),
        ]
        for fleet in self.fleets:
            fleet.declare()
            for name in NAMES:
                fleet.start(name)
        self.settle()

    def new_job(self, checkpoint: str = "muster", *options: str) -> Job:
        """Another coordinator, on the same checkpoint or another one; not started yet."""
        job = Job(
            self.topics,
            self.folder / f"job-{len(self._jobs) + 1}",
            checkpoint=self.checkpoint / checkpoint,
            conf=CONF,
            command=(
                *(sys.executable, "-m", "muster.cli.main", "run", *options),
                *("--master", self.spark.master),
            ),
            env=environment(),
        )
        self._jobs.append(self._stack.enter_context(job))
        return job

    def _fleet(
        self,
        group: str,
        assignor: str,
        unit: Unit,
        config: dict[str, str],
        pins: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> CommandFleet:
        addresses = {
            name: self.kafka.address(ISLAND if name == ISLANDER else MAINLAND) for name in NAMES
        }
        observer = type(self.topics)(self.kafka.address(), self.topics.prefix)
        self._stack.callback(observer.close)
        return self._stack.enter_context(
            CommandFleet(
                *(observer, self.folder, group, assignor, unit),
                config=config,
                addresses=addresses,
                pins=pins,
            )
        )

    # ---- what faults are made of

    @property
    def island(self) -> Proxy:
        """Between the islanders and Kafka."""
        return self.kafka.proxies[ISLAND]

    @property
    def mainland(self) -> Proxy:
        """Between all other clients and Kafka."""
        return self.kafka.proxies[MAINLAND]

    def driver(self) -> list[psutil.Process]:
        """The coordinator's processes: Python, its JVM, their Python workers. Not the executors."""
        first = psutil.Process(self.job.pid)
        return [first, *first.children(recursive=True)]

    def pick(self, *, islander: bool = False) -> tuple[CommandFleet, str]:
        """A worker that no fault hits now."""
        free = [
            (fleet, name)
            for fleet in self.fleets
            for name in fleet.members
            if (fleet.group, name) not in self.victims and (name == ISLANDER) == islander
        ]
        return self.rng.choice(free)

    @contextmanager
    def spared(self, fleet: CommandFleet, name: str) -> Iterator[None]:
        """Mark a worker as hit, so that it is not picked again meanwhile."""
        self.victims.add((fleet.group, name))
        try:
            yield
        finally:
            self.victims.discard((fleet.group, name))

    # ---- conditions

    def settle(self) -> None:
        """Wait until all groups are stable, every task runs once, and the logs agree."""
        for fleet in self.fleets:
            until(
                fleet.is_settled, f"{fleet.group} has settled", timeout_s=LIMIT_S, story=self.story
            )

    def await_moved(self, fleet: CommandFleet, name: str) -> None:
        """Wait until every task runs once, and none on this worker."""
        condition = f"the tasks of {name} run elsewhere"
        until(lambda: fleet.is_whole(without=name), condition, timeout_s=LIMIT_S, story=self.story)

    def story(self) -> str:
        """All fleets and the job's log, for the message of a failure."""
        return "\n\n".join([*(fleet.story() for fleet in self.fleets), self.job.tail()])

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@contextmanager
def _small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system at `folder` if this process may; yield whether it did."""
    folder.mkdir(parents=True)
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if mount is None or unmount is None or os.geteuid() != 0:
        yield False
        return
    options = f"size={CHECKPOINT_BYTES}"
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", options, "muster-chaos", str(folder)],
        check=False,
        capture_output=True,
    )
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run([unmount, "--lazy", str(folder)], check=False)


def send(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to all of them, except those that have ended."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
