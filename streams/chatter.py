"""What Spark's JVM says, without what is no news: an operator sees lines only when they matter.

Spark, the JVM and Spark's Python workers greet at every start, and complain about batches that a
stop cuts off; not all of it goes through a logger. So the JVM writes into a pipe, and a thread here
passes on what is left over: as it is, or as log lines of ours where every line is to be JSON, for
started from Python the JVM cannot be told that early enough. Under spark-submit the JVM was there
first, and speaks for itself.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import structlog

from muster.repeats import Told

_log = structlog.get_logger("spark")

_GREETINGS = (
    # Spark asks for the module by itself.
    "Using incubator modules: jdk[.]incubator[.]vector",
    "Using Spark's default log4j profile",
    "(Setting default|Setting Spark) log level to",
    "To adjust logging level use sc[.]setLogLevel",
    # No executor has to reach a driver in local mode; executors elsewhere say so when they cannot.
    "Your hostname, .* resolves to a loopback address",
    "Set SPARK_LOCAL_IP if you need to bind to another address",
    # RocksDB and the Kafka clients bring what they need.
    "Unable to load native-hadoop library",
    # What a new checkpoint begins with, one number of partitions and another, and how it went.
    "OffsetSeqMetadata: Updating the value of conf 'spark[.]sql[.]streaming[.]internal",
    "StateStore: Loaded state store provider in loadTimeMs",
    "contains a task of very large size",
    # Printed by the worker that looks at our operator before the first batch.
    "Streaming TransformWithStateInPandas Python worker",
)
_GREETING = re.compile("|".join(_GREETINGS))
_TRACEBACK = "Traceback (most recent call last):"
_DAEMON = "/pyspark/daemon.py"


_AWAY = re.compile(r"(Connection to node|Bootstrap broker|Node) .*(established|disconnected)")
"""Kafka's Java client, several times a second for each client while a broker is away."""
_NUMBERS = re.compile(r"-?\d+")


def news(lines: Iterable[str], clock_s: Callable[[], float] = time.monotonic) -> Iterator[str]:
    """The lines that say something; a blank line belongs to the one before.

    That a broker is away is said once a minute, whichever clients of Kafka's say it.
    """
    passed, told = True, Told(clock_s=clock_s)
    for line in _without_farewells(lines):
        if line.strip():
            away = _AWAY.search(line)
            is_repeated = away is not None and not told.is_news(_NUMBERS.sub("", away[0]))
            passed = not is_repeated and _GREETING.search(line) is None
        if passed:
            yield line


def _without_farewells(lines: Iterable[str]) -> Iterator[str]:
    """Without the tracebacks of idle Python workers, which Spark ends after a minute.

    They find their pipe closed while they say good-bye, in Spark's own file and nowhere else.
    """
    held: list[str] = []
    for line in lines:
        if line.startswith(_TRACEBACK):
            yield from held
            held = [line]
        elif held and line.startswith("  "):
            held.append(line)
        elif held:
            places = [each for each in held if each.lstrip().startswith("File ")]
            if not line.startswith("BrokenPipeError") or not all(_DAEMON in p for p in places):
                yield from (*held, line)
            held = []
        else:
            yield line
    yield from held


def told(line: str) -> None:
    """Pass a line on as it is."""
    sys.stderr.write(line)
    sys.stderr.flush()


def as_log(line: str) -> None:
    """Pass a line on as one of our log."""
    if line.startswith("{"):
        told(line)
    elif line.strip():
        tell = _log.error if _TROUBLE.search(line) else _log.warning
        tell(line.rstrip())


_TROUBLE = re.compile(r"\b(ERROR|FATAL)\b|^Exception|^Caused by|^Traceback|^Error")


class Chatter:
    """The pipe, and the thread that reads it until everybody who writes into it is gone.

    Attributes:
        entrance: file descriptor for the JVM's standard output and error.
    """

    def __init__(self, say: Callable[[str], object] = told) -> None:
        """Start to read.

        Args:
            say: is called with every line that is news.
        """
        out, self.entrance = os.pipe()
        self._say = say
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._read, args=(out,), name="muster-chatter", daemon=True
        )
        self._thread.start()

    def shut(self) -> None:
        """The JVM has the entrance now; ours is not needed any more."""
        os.close(self.entrance)

    def silence(self) -> None:
        """From now on nothing is news: a stop cuts the batch off that runs."""
        self._is_over.set()

    def join(self, timeout_s: float) -> None:
        """Wait until all has been passed on."""
        self._thread.join(timeout_s)

    def _read(self, out: int) -> None:
        with open(out, encoding="utf-8", errors="replace") as lines:  # a descriptor
            for line in news(lines):
                if not self._is_over.is_set():
                    self._say(line)
