"""What the benchmarks of the running system use: a broker, topics and the coordinator."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from muster.broker.embedded_kafka import EmbeddedKafka, free_port
from muster.broker.ends_with_parent import Tethered
from muster.kafka.client_settings import ClientSettings, client_settings
from muster.kafka.reader import offsets_of
from muster.protocol import codec
from muster.protocol.events import Event, GroupConfig
from muster.protocol.ids import GroupId
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TOPICS, TopicKind, topic_name

READY_TIMEOUT_S = 180.0
READ_TIMEOUT_S = 60.0


class BenchSystem:
    """A broker with more `properties`, muster's topics, and processes that end with the system.

    `apart`: there is a topic on which members heartbeat apart.
    """

    def __init__(
        self,
        partitions: int = 2,
        properties: Mapping[str, str] | None = None,
        *,
        apart: bool = True,
    ) -> None:
        self._partitions = partitions
        self._topics = [t for t in TOPICS if apart or t.kind is not TopicKind.HEARTBEATS]
        self._properties = properties
        self._stack = ExitStack()

    def __enter__(self) -> BenchSystem:
        self.folder = Path(tempfile.mkdtemp(prefix="muster-bench-"))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        broker = self._stack.enter_context(
            EmbeddedKafka(self.folder / "kafka", properties=self._properties)
        )
        self._broker = broker
        self.address = broker.bootstrap_server
        self.clients = client_settings(self.address)
        self._admin = AdminClient(self.clients.librdkafka())
        self.create(
            *(
                NewTopic(t.name(), t.partitions or self._partitions, 1, config=dict(t.settings))
                for t in self._topics
            )
        )
        self.producer = Producer(self.clients.producer())
        return self

    def __exit__(self, *_: object) -> None:
        del self.producer  # otherwise it would reconnect to a stopped broker
        self._stack.close()

    @property
    def broker_pid(self) -> int:
        """Process id of the broker."""
        assert self._broker.pid is not None
        return self._broker.pid

    def create(self, *topics: NewTopic) -> None:
        """Create topics and wait until they exist."""
        for future in self._admin.create_topics(list(topics)).values():
            future.result(60)

    def run(self, name: str, *command: str) -> Tethered:
        """Start a Python program in the system's folder; it is killed when the system closes."""
        log = self._stack.enter_context((self.folder / f"{name}.log").open("ab"))
        process = Tethered([sys.executable, *command], output=log, cwd=self.folder)
        self._stack.callback(process.kill)
        return process

    def coordinate(
        self,
        *conf: str,
        master: str = "local[2]",
        page: str = "/readyz",
        signing_keys: str | None = None,
        name: str = "job",
        checkpoint: str = "checkpoint",
        standby: bool = False,
    ) -> Coordinator:
        """Start the coordinator with settings, and wait until a page answers; empty = do not wait.

        /readyz answers when the job has caught up.
        """
        port = free_port()
        settings = [f"muster.metrics.port={port}", "muster.metrics.host=127.0.0.1", *conf]
        process = self.run(
            name,
            *("-m", "muster.streams.job", "--bootstrap-server", self.address, "--master", master),
            *("--checkpoint", str(self.folder / checkpoint)),
            *(("--standby",) if standby else ()),
            *(word for setting in settings for word in ("--conf", setting)),
            *(("--signing-keys", signing_keys) if signing_keys else ()),
        )
        coordinator = Coordinator(process, port, self.folder / f"{name}.log")
        if page:
            coordinator.await_page(page)
        return coordinator

    def write(self, kind: TopicKind, *events: Event) -> None:
        """Write events and wait until Kafka has them."""
        for event in events:
            encoded = codec.encode(event)
            self.producer.produce(topic_name(kind), key=encoded.key, value=encoded.value)
        self.producer.flush()

    def tail(self, topic: str) -> Consumer:
        """A consumer at the end of every partition of a topic; closed with the system."""
        consumer = tail(self.clients, topic)
        self._stack.callback(consumer.close)
        return consumer


class Coordinator:
    """A running job and its metrics port."""

    def __init__(self, process: Tethered, port: int, log: Path) -> None:
        self.process = process
        self._port = port
        self._log = log

    def await_page(self, page: str) -> None:
        """Wait until a page of the metrics port answers."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if self.answers(page):
                return
            time.sleep(0.1)
        raise RuntimeError(f"the coordinator did not start:\n{self._log.read_text()[-3000:]}")

    def answers(self, page: str) -> bool:
        """Whether a page of the metrics port answers 200 now."""
        try:
            self._page(page)
        except OSError:
            return False
        return True

    def _page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as page:
            return page.read().decode()

    def metrics(self) -> dict[str, float]:
        """The Prometheus values, by name and labels."""
        lines = [line for line in self._page("/metrics").splitlines() if line[0] != "#"]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def configured(group: str, tasks: int, values: dict[str, object] | None = None) -> GroupConfig:
    """The config of a group of one subtopology; `values` are settings by Kafka's names."""
    return GroupConfig(
        group=GroupId(group),
        assignor="sticky",
        settings=parse_settings(values or {}, "sticky"),
        tasks=(Subtopology("0", tasks),),
    )


def configure(
    system: BenchSystem, group: str, tasks: int, values: dict[str, object] | None = None
) -> None:
    """Write that config."""
    system.write(TopicKind.CONFIG, configured(group, tasks, values))


def tail(clients: ClientSettings, topic: str) -> Consumer:
    """A consumer at the end of every partition of a topic."""
    settings = {"group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 10, "enable.auto.commit": False}
    consumer = Consumer(clients.librdkafka(settings))
    offsets = offsets_of(consumer, [topic], 30)
    consumer.assign([TopicPartition(*place, end) for place, (_, end) in offsets.items()])
    return consumer


def cpu_s(pid: int) -> float:
    """CPU seconds used by a process and its children, with those that have ended."""
    total = 0.0
    for process in family(pid):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user and system, its own and its children's
    return total


def family(pid: int) -> list[psutil.Process]:
    """A process and its children."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def until(condition: Callable[[], bool], timeout_s: float = 240) -> float:
    """Wait for a condition; the time at which it was true, in s.

    Raises:
        TimeoutError: it did not come true.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {timeout_s:.0f} s")
        time.sleep(0.005)
    return time.monotonic()


def next_message(consumer: Consumer) -> Message:
    """The next message.

    Raises:
        TimeoutError: no message arrived within `READ_TIMEOUT_S`.
    """
    deadline = time.monotonic() + READ_TIMEOUT_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            return message
    raise TimeoutError("nothing was published")


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def options(doc: str | None) -> argparse.ArgumentParser:
    """The command line of a benchmark, which the first line of its docstring describes."""
    return argparse.ArgumentParser(description=str(doc).partition("\n")[0], allow_abbrev=False)
