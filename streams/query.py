"""The query (rows of the source, by lane, through the operator), and the wait for its end."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from muster.streams import sink, source, spark_session
from muster.streams.checkpoint.files import Offsets
from muster.streams.errors import QueryFailed, ThreadDied
from muster.streams.job_settings import JobConfig
from muster.streams.observability.spark_reports import Progress, is_idle
from muster.streams.operator_envelope import Operator
from muster.streams.processor import GroupProcessor

_log = structlog.get_logger("muster.streams")

LOOK_S = 0.25
"""Seconds between two looks of the main loop at its signals and at Spark's reports."""
CALM_S = 0.5
"""A query that reads no rows for so long is calm: it has answered the members that waited."""
CALM_S_MAX = 10.0
"""So long after its start a query counts as calm, because a large fleet never stops writing."""
STARTS_MAX = 3
_PYTHON_IS_LATE = "Python worker failed to connect back"
"""Spark's words for it: before the first batch of a query it starts a Python process and waits ten
seconds for it, which no setting changes. On an overloaded machine that is too short."""
_CALLED = "An error occurred while calling"
"""The line that Py4J puts before Java's message."""
_CAUSED = "Caused by: "
_OURS = re.compile(r"muster\.[\w.]+: (.+)")
"""The last line of a Python traceback of a muster error."""


def frame(
    spark: SparkSession,
    config: JobConfig,
    processor: GroupProcessor,
    starting: Offsets | None = None,
    initial: DataFrame | None = None,
) -> DataFrame:
    """The rows that the sink is to write; `initial`: groups to load (`read_back.initial_state`)."""
    groups = source.read(spark, config, starting).groupBy("lane")
    return groups.transformWithState(
        Operator(processor),
        outputStructType=sink.OUTPUT,
        outputMode="Append",
        timeMode="None",
        initialState=None if initial is None else initial.groupBy("lane"),
    )


def wait_with_restarts(
    running: StreamingQuery,
    start_again: Callable[[], StreamingQuery],
    wait: Callable[[StreamingQuery], None],
) -> None:
    """`wait` for the end of a query; start it again if Spark's Python process was late.

    No batch has been processed then, so the query begins where it would have begun.

    Raises:
        QueryFailed: the query ended with another error, or `STARTS_MAX` times with this one.
    """
    for more_starts in reversed(range(STARTS_MAX)):
        try:
            wait(running)
            return
        except QueryFailed as error:
            if not more_starts or _PYTHON_IS_LATE not in f"{error} {error.__cause__}":
                raise
        _log.warning("the query starts again: Spark's Python process did not start within 10 s")
        running = start_again()


def await_trial(running: StreamingQuery, is_over: Callable[[], bool]) -> None:
    """Wait until a rehearsed query ends, or end it when `is_over`: it may wait for executors.

    Raises:
        QueryFailed: the query ended with an error.
    """
    try:
        while not running.awaitTermination(LOOK_S):  # type: ignore[arg-type]  # takes fractions
            if is_over():
                running.stop()
                return
    except (PySparkException, Py4JError, OSError) as error:
        if not is_over():
            raise QueryFailed(cause(error)) from error


def await_end(
    running: StreamingQuery,
    stop: threading.Event,
    progress: Progress,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until the query ends, and end it on `stop` or `is_over`; record its progress meanwhile.

    Raises:
        QueryFailed: the query ended with an error.
        ThreadDied: a thread of the process has died. So the process ends, and its supervisor can
            start it again, also where no probe asks.
    """
    try:
        # Short waits, because Python runs signal handlers only between them.
        while not running.awaitTermination(LOOK_S):  # type: ignore[arg-type]  # takes fractions
            if stop.is_set():
                spark_session.fall_silent(SparkSession.active())
                running.stop()
                return
            progress.look(running)
            if part := progress.health.dead_part:
                spark_session.fall_silent(SparkSession.active())
                running.stop()
                raise ThreadDied(part)
            if is_over():
                with spark_session.quietly(SparkSession.active()):
                    running.stop()
                return
    except (PySparkException, Py4JError, OSError) as error:  # the latter two: the JVM is gone
        if not stop.is_set():
            raise QueryFailed(cause(error)) from error


class Calm:
    """Whether a query has stored its first batch and then had no rows for `CALM_S`.

    After `CALM_S_MAX` the first batch is enough.
    """

    def __init__(
        self, running: StreamingQuery, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._running = running
        self._now_s = now_s
        self._busy_s = self._begun_s = now_s()

    def __call__(self) -> bool:
        """Look at the query."""
        if not is_idle(self._running.status):
            self._busy_s = self._now_s()
        if self._running.lastProgress is None:
            return False
        calm_s, spent_s = self._now_s() - self._busy_s, self._now_s() - self._begun_s
        return calm_s >= CALM_S or spent_s >= CALM_S_MAX


def cause(error: Exception) -> str:
    """The line of Spark's error text that says what happened.

    It is the last line of an executor's Python traceback that names a muster error; without one,
    Java's last ``Caused by``; without that, the first line.
    """
    lines = [line.strip(" \t:") for line in str(error).splitlines() if line.strip(" \t:")]
    if lines and lines[0].startswith(_CALLED):
        del lines[0]
    ours = [match[1] for line in lines if (match := _OURS.match(line))]
    caused = [line.removeprefix(_CAUSED) for line in lines if line.startswith(_CAUSED)]
    causes = ours or caused or lines[:1] or [type(error).__name__]
    return causes[-1][:1000]
