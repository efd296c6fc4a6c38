"""Spark's reports of micro-batches → metrics, health, and how far the query has read.

Spark reports every micro-batch once, as JSON, in the driver's Python beside the query. A listener
must never raise (Spark would only log it, far away): a field that a Spark version does not report
is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import structlog
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from muster.streams.health import Health
from muster.streams.metrics import Metrics

_log = structlog.get_logger("muster.streams")


class ProgressListener(StreamingQueryListener):
    """Hands Spark's reports on.

    Args:
        metrics: where their figures go.
        health: is told that the query gets on.

    Attributes:
        read: topic → partition → offset up to which the query has read; None before its first
            report.
    """

    def __init__(self, metrics: Metrics, health: Health) -> None:
        self._metrics = metrics
        self._health = health
        self.read: Mapping[str, Mapping[int, int]] | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to count."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """One micro-batch is done."""
        self._health.moved(time.monotonic())
        try:
            report = json.loads(event.progress.json)
            self._metrics.progress(report, time.time())
            self.read = _offsets(report, "endOffset")
            if self.read == _offsets(report, "latestOffset"):
                self._health.caught_up(time.monotonic())
        except (ValueError, TypeError, KeyError, AttributeError):
            _log.warning("a progress report could not be read", exc_info=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """The main loop sees that itself, and sooner."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The main loop sees that itself."""


def _offsets(report: Mapping[str, Any], which: str) -> dict[str, dict[int, int]]:
    return {
        topic: {int(partition): offset for partition, offset in offsets.items()}
        for source in report.get("sources", ())
        for topic, offsets in source.get(which, {}).items()
    }
