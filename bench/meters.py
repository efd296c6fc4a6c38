"""What a running deployment costs: CPU, memory, records and bytes written.

Everything is read from outside: the operating system, and the folders of broker and checkpoint.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from bench_system import BenchSystem, Coordinator, cpu_s, family
from confluent_kafka import Consumer

from muster.kafka.reader import offsets_of
from muster.protocol.topics import TOPICS

LOOK_S = 0.5
"""Between two looks at the checkpoint. Spark keeps each of its files for many batches."""


class Written(threading.Thread):
    """Adds up the sizes of all files that appear or grow under a folder; a context manager."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="written", daemon=True)
        self.total = 0
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._end = threading.Event()

    def __enter__(self) -> Written:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()

    def run(self) -> None:
        """Look again and again."""
        while not self._end.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Take in what was written since the last look."""
        sizes = dict(_files(str(self._folder)))
        self.total += sum(max(size - self._sizes.get(path, 0), 0) for path, size in sizes.items())
        self._sizes = sizes


def _files(folder: str) -> Iterator[tuple[str, int]]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    yield from _files(entry.path)
                else:
                    yield entry.path, entry.stat().st_size


def size_of(folder: Path) -> int:
    """Bytes of all files under a folder."""
    return sum(size for _, size in _files(str(folder)))


@dataclass(slots=True)
class Reading:
    """All meters at one moment: what was used or written so far, by process or topic.

    `bytes` are those on the broker's disk, `checkpoint` those written into it.
    """

    at_s: float
    cpu: Mapping[str, float]
    records: Mapping[str, int]
    bytes: Mapping[str, int]
    checkpoint: int
    batches: float


@dataclass(slots=True)
class Meters:
    """The meters of one system; a context manager."""

    system: BenchSystem
    job: Callable[[], Coordinator]
    written: Written = field(init=False)
    _asker: Consumer = field(init=False)

    def __enter__(self) -> Meters:
        self.written = Written(self.system.folder / "checkpoint").__enter__()
        self._asker = Consumer(self.system.clients.librdkafka({"group.id": "muster-bench"}))
        return self

    def __exit__(self, *_: object) -> None:
        self._asker.close()
        self.written.__exit__()

    def read(self) -> Reading:
        """Read all meters."""
        self.written.look()
        pids = {"job": self.job().process.pid, "broker": self.system.broker_pid}
        # The tool's own share: this process without its children.
        cpu = {name: cpu_s(pid) for name, pid in pids.items()} | {"tool": time.process_time()}
        logs = self.system.folder / "kafka" / "logs"
        sizes = {t.name(): 0 for t in TOPICS}
        for name in sizes:
            for segment in logs.glob(f"{name}-*/*.log"):
                with suppress(FileNotFoundError):
                    sizes[name] += segment.stat().st_size
        return Reading(
            time.monotonic(),
            cpu,
            {name: self._ends(name) for name in sizes},
            sizes,
            self.written.total,
            self.job().metrics().get("muster_batches_total", 0.0),
        )

    def _ends(self, topic: str) -> int:
        return sum(end for _, end in offsets_of(self._asker, [topic], 30).values())

    def memory(self) -> dict[str, float]:
        """Resident megabytes of the job's JVM, its Python processes, and the broker."""
        memory_mb = {"job's JVM, MB": 0.0, "job's Python, MB": 0.0}
        for process in family(self.job().process.pid):
            with suppress(psutil.NoSuchProcess):
                which = "job's JVM, MB" if process.name() == "java" else "job's Python, MB"
                memory_mb[which] += process.memory_info().rss / 1e6
        broker = psutil.Process(self.system.broker_pid).memory_info().rss / 1e6
        return memory_mb | {"broker, MB": broker}


def rates(before: Reading, after: Reading) -> dict[str, float]:
    """What was used and written between two readings: cores, and records and bytes a minute."""
    seconds = after.at_s - before.at_s
    minutes = seconds / 60
    figures = {
        f"{name}, cores": (after.cpu[name] - before.cpu[name]) / seconds for name in after.cpu
    }
    for topic, count in after.records.items():
        if count - before.records[topic]:
            short = topic.rpartition(".")[2]
            figures[f"{short}, records a minute"] = (count - before.records[topic]) / minutes
            figures[f"{short}, KB a minute"] = (
                (after.bytes[topic] - before.bytes[topic]) / 1e3 / minutes
            )
    figures["checkpoint, KB a minute"] = (after.checkpoint - before.checkpoint) / 1e3 / minutes
    figures["batches a minute"] = (after.batches - before.batches) / minutes
    return figures
