"""Spark's reports of micro-batches → metrics, health, and the offsets that the query has read.

Spark keeps the newest reports of a query, and the main loop fetches them. A listener would get each
report at once, but PySpark makes hundreds of calls into the JVM for such a report: a fifth of the
driver's CPU time, for figures that are rarely read.

After ten idle seconds Spark reports that it is idle, under the number of the *next* batch. Such a
report is of no batch, and the report of the batch with its number is still to come.

A report never stops the query: a field that a Spark version does not report is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from muster.streams.observability.health import Health
from muster.streams.observability.metrics import Metrics

_log = structlog.get_logger("muster.streams")

Ends: TypeAlias = Mapping[tuple[str, int], int]
"""(topic, partition) → offset."""

KEPT = 8
"""Reports that Spark keeps: as many as may come between two looks if a batch takes 30 ms."""


class Progress:
    """Passes Spark's reports on. A process has one, for all runs of the query.

    Attributes:
        health: gets the query's progress; the main loop asks it whether a thread has died.
        looked_s: when the JVM last answered a look, by the monotonic clock.
        read: the offsets up to which the query has read; None before the first report, and after
            one that could not be read.
    """

    def __init__(self, metrics: Metrics, health: Health) -> None:
        self._metrics = metrics
        self.health = health
        self._seen = -1
        self._idle = ""
        self.looked_s = time.monotonic()
        self.read: Ends | None = None

    def look(self, query: StreamingQuery) -> None:
        """Take in the batches that are done since the last look, and whether the query is idle."""
        newest = query.lastProgress
        if newest is not None and newest.batchId > self._seen and newest.json != self._idle:
            for report in query.recentProgress:
                if report.batchId > self._seen:
                    self._take(report.batchId, report.json)
        if is_idle(query.status):
            self.health.caught_up(time.monotonic())
        self.looked_s = time.monotonic()

    def _take(self, batch: int, text: str) -> None:
        """Take in a report: of one micro-batch, or that the query is idle."""
        try:
            report = json.loads(text)
            if "addBatch" in report.get("durationMs", ()):
                self._seen = batch
                self.health.moved(time.monotonic())
                self._metrics.progress(report, time.time())
            else:
                self._idle = text  # no batch has moved the query: only `caught_up` may count
                if not _offsets(report, "endOffset"):
                    return
            self.read = _offsets(report, "endOffset")
            if self.read == _offsets(report, "latestOffset"):
                self.health.caught_up(time.monotonic())
        except (ValueError, TypeError, KeyError, AttributeError):
            if text != self._idle:
                self._seen = batch
            self.read = None  # unknown offsets do less harm than old ones
            _log.warning("a progress report could not be read", exc_info=True)


def is_idle(status: Mapping[str, Any]) -> bool:
    """Whether the query has looked for rows and found none."""
    busy = status["isTriggerActive"] or status["isDataAvailable"]
    return not busy and str(status["message"]).startswith("Waiting for")


def _offsets(report: Mapping[str, Any], which: str) -> Ends:
    return {
        (topic, int(partition)): offset
        for source in report.get("sources", ())
        for topic, offsets in (source.get(which) or {}).items()
        for partition, offset in offsets.items()
    }
