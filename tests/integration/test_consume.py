"""The commands of `docs/consume.md`, run as the page gives them, in an empty folder.

Only the port differs, and `muster` gets its address: another Kafka may use the usual port.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from support.suite.leftovers import MARK
from support.suite.waiting import until

from muster.broker import jars
from muster.broker.embedded_kafka import free_port

pytestmark = [pytest.mark.broker, pytest.mark.spark]
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "consume.md").read_text(encoding="utf-8")
PARTITIONS = 8
START_S = 240.0
OFFSETS = "__consumer_offsets"

MUSTER = """#!/bin/sh
case "$1" in broker) ;; *) set -- "$@" --bootstrap-server localhost:{port};; esac
exec {python} -c 'import sys; from muster.cli.main import main; sys.exit(main())' "$@"
"""


class Newcomer:
    """A shell in an empty folder, with only `muster`, `python` and the page's files.

    Attributes:
        folder: its working folder.
        port: the port of its Kafka.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        tools = folder / "bin"
        tools.mkdir()
        (tools / "muster").write_text(MUSTER.format(port=self.port, python=sys.executable))
        # Not a link: Python finds its virtual environment by the path it is called by.
        (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        for tool in tools.iterdir():
            tool.chmod(0o755)
        self._screen: list[bytes] = []
        environment = {
            "PATH": f"{tools}{os.pathsep}{os.defpath}",
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(jars.cache_dir().parent),  # jars are fetched once per machine
            "PYTHONPATH": str(ROOT),
            MARK: os.environ.get(MARK, ""),
        }
        # A terminal, because programs write to it line by line.
        self._terminal, out = pty.openpty()
        self._shell = subprocess.Popen(
            ["bash"], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=out
        )
        os.close(out)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # no process has the terminal any more
            while said := os.read(self._terminal, 65_536):
                self._screen.append(said)

    def types(self, block: str) -> None:
        """Paste a block of the page into the shell."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(block.replace("9092", str(self.port)).encode())
        self._shell.stdin.flush()

    def said(self) -> str:
        """All text that was on the screen."""
        return b"".join(self._screen).decode(errors="replace").replace("\r", "")

    def story(self) -> str:
        """The end of the text on the screen."""
        return self.said()[-6_000:]

    def asks(self, *words: str) -> dict:
        """Run a `muster` command in another process; its JSON, or an empty object if it fails."""
        command = [str(self.folder / "bin" / "muster"), *words, "--format", "json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def shares(self) -> list[int]:
        """Number of partitions of each member; empty unless the group is stable."""
        group = self.asks("groups", "describe", "--group", "orders")
        if group.get("state") != "Stable":
            return []
        return sorted(len(member["active"]) for member in group["members"])

    def close(self) -> None:
        """End all started processes: first SIGTERM, then SIGKILL."""
        there = psutil.Process(self._shell.pid).children(recursive=True)
        for each in there:
            with suppress(psutil.NoSuchProcess):
                each.terminate()
        self._shell.kill()
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        _, left = psutil.wait_procs(there, timeout=60)
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._shell.wait(30)
        self._reader.join(30)
        os.close(self._terminal)


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    """A shell with the two files that the page asks for."""
    process = Newcomer(tmp_path)
    shutil.copy(ROOT / "examples" / "consume_topic.py", tmp_path)
    (made,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "orders.py").write_text(made.replace("9092", str(process.port)))
    yield process
    process.close()


def committed(address: str) -> list[int]:
    """The committed offsets of the group, by partition."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "orders"})
    try:
        asked = [TopicPartition("orders", each) for each in range(PARTITIONS)]
        return [each.offset for each in consumer.committed(asked, timeout=30)]
    except KafkaException:
        return []  # the broker is starting
    finally:
        consumer.close()


def commits(address: str) -> dict[int, list[int]]:
    """Every offset that was ever committed for `orders`, by partition and in order."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "looks", "enable.partition.eof": True}
    )
    parts = consumer.list_topics(OFFSETS, timeout=30).topics[OFFSETS].partitions
    consumer.assign([TopicPartition(OFFSETS, part, 0) for part in parts])
    offsets: dict[int, list[int]] = {}
    ends = 0
    while ends < len(parts):
        message = consumer.poll(30)
        assert message is not None, "the offsets are not read to their end"
        if message.error() is not None:
            ends += 1
            continue
        key, value = message.key() or b"", message.value()
        # Kafka's format. Key: version, group, topic, partition. Value: version, offset.
        if value is None or not key.startswith((b"\0\1\0\6orders\0\6orders", b"\0\0\0\6orders")):
            continue
        (partition,) = struct.unpack(">i", key[-4:])
        offsets.setdefault(partition, []).append(*struct.unpack_from(">q", value, 2))
    consumer.close()
    return offsets


def produce(address: str, numbers: range) -> None:
    """Write messages to all partitions in turn, as `orders.py` does."""
    producer = Producer({"bootstrap.servers": address})
    for number in numbers:
        producer.produce("orders", f"order {number}", partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def test_from_nothing_to_four_processes(newcomer: Newcomer) -> None:
    """Four processes share eight partitions; one is killed and one joins while messages arrive.

    Every message is processed, no committed offset decreases, and for each partition no process
    prints a line after another process has started on it.
    """
    broker, first, dies, comes = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    address = f"localhost:{newcomer.port}"
    newcomer.types(broker)
    until(lambda: "Kafka 4" in newcomer.said(), "Kafka is there", story=newcomer.story)
    newcomer.types(first)
    until(
        lambda: newcomer.shares() == [2, 2, 2, 2],
        "four have two each",
        timeout_s=START_S,
        pause_s=1,
        story=newcomer.story,
    )
    until(lambda: committed(address) == [100] * PARTITIONS, "all is committed")
    newcomer.types(dies)
    produce(address, range(800, 1_600))
    until(lambda: newcomer.shares() == [2, 3, 3], "three have all", pause_s=1, story=newcomer.story)
    until(lambda: committed(address) == [200] * PARTITIONS, "all is committed again")
    newcomer.types(comes)
    produce(address, range(1_600, 2_400))
    until(lambda: newcomer.shares() == [2, 2, 2, 2], "four again", pause_s=1, story=newcomer.story)
    until(lambda: committed(address) == [300] * PARTITIONS, "all is committed in the end")
    processed: dict[int, list[tuple[str, int]]] = {}
    line = r"^(\S+) orders_(\d) (\d+) order \d+$"
    for member, partition, offset in re.findall(line, newcomer.said(), re.MULTILINE):
        processed.setdefault(int(partition), []).append((member, int(offset)))
    assert sorted(processed) == list(range(PARTITIONS))
    for lines in processed.values():
        assert {offset for _, offset in lines} == set(range(300))
        owners = [member for member, _ in lines]
        changes = sum(one != other for one, other in pairwise(owners))
        assert changes == len(set(owners)) - 1
    for offsets in commits(address).values():
        assert offsets == sorted(offsets)
