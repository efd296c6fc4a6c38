"""The stage of the chaos tests: three brokers, a Spark cluster, the coordinator, three crews.

All of it is what an operator would run: a Kafka of three nodes with replication 3, a standalone
Spark master with two workers, ``muster run`` submitted to it, ``muster worker --exec`` processes.
One worker of each crew, the islander, reaches Kafka through a proxy of its own; everybody else,
the coordinator included, through another. The checkpoint is on a small file system of its own where
that can be mounted, so that it can be full.
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
from chaos.crew import Crew
from support.cluster import KafkaCluster
from support.proxy import Proxy
from support.spark import Job
from support.spark_cluster import CONF, SparkCluster, environment
from support.waiting import until

from muster.protocol.tasks import Connector, Subtopology, Unit

ISLAND, MAINLAND = "ISLAND", "MAINLAND"
SESSION_S, HEARTBEAT_S = 10.0, 1.0
SETTINGS = {
    "session.timeout.ms": str(int(SESSION_S * 1000)),
    "heartbeat.interval.ms": str(int(HEARTBEAT_S * 1000)),
}
CONNECT = {**SETTINGS, "scheduled.rebalance.max.delay.ms": "2000"}
LIMIT_S = 150.0
"""Far more than anything takes; a hang, not slowness, is what it finds."""
CHECKPOINT_BYTES = 96 << 20
ISLANDER = "W3"
NAMES = ("W1", "W2", ISLANDER)
PINS = {"W1": ("p", "p-0", "p-1"), "W2": ("p", "p-1", "p-2"), ISLANDER: ("p-0", "p-2")}
"""Two workers name each job of the static group, so any one of the three can be lost."""


class Stage:
    """Everything that runs; a context manager that leaves nothing behind.

    Args:
        folder: logs and checkpoint.
        chance: where choices come from.

    Attributes:
        kafka, spark, job, crews: what runs.
        is_small: whether the checkpoint is on a file system that can be filled.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.checkpoint = folder / "checkpoint"
        self.is_small = False
        self.victims: set[tuple[str, str]] = set()
        self._stack = ExitStack()
        self._jobs: list[Job] = []

    def __enter__(self) -> Stage:
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
        self.crews = [
            self._crew("rows", "sticky", Subtopology("0", 6), SETTINGS),
            self._crew("connectors", "cooperative", Connector("c", 5), CONNECT),
            self._crew("pinned", "static", Connector("p", 3), CONNECT, PINS),
        ]
        for crew in self.crews:
            crew.declare()
            for name in NAMES:
                crew.start(name)
        self.settle()

    def new_job(self) -> Job:
        """One more coordinator, on the same checkpoint; not started."""
        job = Job(
            self.topics,
            self.folder / f"job-{len(self._jobs) + 1}",
            checkpoint=self.checkpoint / "muster",
            conf=CONF,
            command=(sys.executable, "-m", "muster.cli.main", "run", "--master", self.spark.master),
            env=environment(),
        )
        self._jobs.append(self._stack.enter_context(job))
        return job

    def _crew(
        self,
        group: str,
        assignor: str,
        unit: Unit,
        config: dict[str, str],
        pins: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> Crew:
        addresses = {
            name: self.kafka.address(ISLAND if name == ISLANDER else MAINLAND) for name in NAMES
        }
        observer = type(self.topics)(self.kafka.address(), self.topics.prefix)
        self._stack.callback(observer.close)
        return self._stack.enter_context(
            Crew(observer, self.folder, group, assignor, unit, config, addresses, pins)
        )

    # ---- what faults are made of

    @property
    def island(self) -> Proxy:
        """Between the islanders and Kafka."""
        return self.kafka.proxies[ISLAND]

    @property
    def mainland(self) -> Proxy:
        """Between everybody else and Kafka."""
        return self.kafka.proxies[MAINLAND]

    def driver(self) -> list[psutil.Process]:
        """The coordinator's processes: Python, its JVM, their Python workers. Not the executors."""
        first = psutil.Process(self.job.pid)
        return [first, *first.children(recursive=True)]

    def pick(self, *, islander: bool = False) -> tuple[Crew, str]:
        """A worker nothing is being done to."""
        free = [
            (crew, name)
            for crew in self.crews
            for name in crew.members
            if (crew.group, name) not in self.victims and (name == ISLANDER) == islander
        ]
        return self.chance.choice(free)

    @contextmanager
    def spared(self, crew: Crew, name: str) -> Iterator[None]:
        """Keep a worker from being picked again meanwhile."""
        self.victims.add((crew.group, name))
        try:
            yield
        finally:
            self.victims.discard((crew.group, name))

    # ---- what must hold

    def settle(self) -> None:
        """Wait until all groups are stable, every task runs once, and the logs say the same."""
        for crew in self.crews:
            until(crew.is_settled, f"{crew.group} has settled", timeout_s=LIMIT_S, story=self.story)

    def await_moved(self, crew: Crew, name: str) -> None:
        """Wait until every task runs once, and none at the worker named."""
        what = f"the tasks of {name} run elsewhere"
        until(lambda: crew.is_whole(without=name), what, timeout_s=LIMIT_S, story=self.story)

    def story(self) -> str:
        """What everybody says, for a failure."""
        return "\n\n".join([*(crew.story() for crew in self.crews), self.job.tail()])

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@contextmanager
def _small_disk(folder: Path) -> Iterator[bool]:
    """A small file system at `folder`, where we may mount one; whether we did."""
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
    """A signal for all of them; those that have ended have nothing to hear."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
