"""The output of Spark's JVM, without the lines that tell an operator nothing.

Spark, the JVM and Spark's Python workers print greetings at every start, and errors about batches
that a stop cuts off; not all of this goes through a logger. So the JVM writes into a pipe, and a
thread passes the other lines on: as they are, or as lines of muster's log if the log is JSON, since
the JVM gets its own JSON setting too late for its first lines. Under spark-submit the JVM runs
before this process and keeps its own output.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import structlog

from muster.kafka.log_filter import RecentlyLogged

_log = structlog.get_logger("spark")

_GREETINGS = (
    # Spark itself asks for the module.
    "Using incubator modules: jdk[.]incubator[.]vector",
    "Using Spark's default log4j profile",
    "(Setting default|Setting Spark) log level to",
    "To adjust logging level use sc[.]setLogLevel",
    # In local mode no executor has to reach the driver; elsewhere executors report when they fail.
    "Your hostname, .* resolves to a loopback address",
    "Set SPARK_LOCAL_IP if you need to bind to another address",
    # RocksDB and the Kafka clients bring what they need.
    "Unable to load native-hadoop library",
    # Printed for a new checkpoint: its settings, its state store, and large tasks.
    "OffsetSeqMetadata: Updating the value of conf 'spark[.]sql[.]streaming[.]internal",
    "StateStore: Loaded state store provider in loadTimeMs",
    "contains a task of very large size",
    # Printed when the query that loads groups is ended: it is idle then, and has no job to cancel.
    "DAGScheduler: Failed to cancel job group .* Cannot find active jobs for it",
    # Printed when a query is ended in the middle of a batch, which the next query repeats.
    "Lost task .* TaskKilled .*Query .* was stopped",
    # Printed by the worker that inspects the operator before the first batch.
    "Streaming TransformWithStateInPandas Python worker",
)
_GREETING = re.compile("|".join(_GREETINGS))
_TRACEBACK = "Traceback (most recent call last):"
_DAEMON = "/pyspark/daemon.py"


_AWAY = re.compile(r"(Connection to node|Bootstrap broker|Node) .*(established|disconnected)")
"""Lines that each Kafka client in Java logs several times a second while a broker is down."""
_NUMBERS = re.compile(r"-?\d+")


def news(lines: Iterable[str], clock_s: Callable[[], float] = time.monotonic) -> Iterator[str]:
    """The lines to pass on; a blank line goes with the line before it.

    A line about a broker that is down is passed on once a minute, however many clients log it.
    """
    passed, log_filter = True, RecentlyLogged(clock_s=clock_s)
    for line in _without_farewells(lines):
        if line.strip():
            away = _AWAY.search(line)
            is_repeated = away is not None and not log_filter.is_news(_NUMBERS.sub("", away[0]))
            passed = not is_repeated and _GREETING.search(line) is None
        if passed:
            yield line


def _without_farewells(lines: Iterable[str]) -> Iterator[str]:
    """The lines without the tracebacks of idle Python workers, which Spark ends after a minute.

    Such a worker finds its pipe closed when it exits: a BrokenPipeError raised in Spark's own
    ``daemon.py`` only.
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


def as_it_is(line: str) -> None:
    """Pass a line on as it is; one that cannot be written, as on a full disk, is lost."""
    with suppress(OSError, ValueError):
        sys.stderr.write(line)
        sys.stderr.flush()


def as_log(line: str) -> None:
    """Pass a line on as a line of muster's log."""
    if line.startswith("{"):
        as_it_is(line)
    elif line.strip():
        tell = _log.error if _TROUBLE.search(line) else _log.warning
        tell(line.rstrip())


_TROUBLE = re.compile(r"\b(ERROR|FATAL)\b|^Exception|^Caused by|^Traceback|^Error")


class JvmOutput(threading.Thread):
    """The pipe, and the thread that reads it until every writer has closed it.

    Attributes:
        entrance: file descriptor for the JVM's standard output and error.
        is_silent: no more lines are passed on.
    """

    def __init__(self, say: Callable[[str], object] = as_it_is) -> None:
        """Start to read; `say` is called with every line to pass on."""
        super().__init__(name="muster-jvm-output", daemon=True)
        self._out, self.entrance = os.pipe()
        self._say = say
        self.is_silent = False
        self.start()

    def shut(self) -> None:
        """Close this process's end of the pipe; the JVM has its own by now."""
        os.close(self.entrance)

    def run(self) -> None:
        """Pass lines on."""
        with open(self._out, encoding="utf-8", errors="replace") as lines:  # a file descriptor
            for line in news(lines):
                if not self.is_silent:
                    self._say(line)
