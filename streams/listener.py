"""Progress of the query → metrics, and the port they are read from.

Spark reports every micro-batch once, as JSON, to `ProgressListener`, in the driver's Python beside
the query. `Metrics` turns a report into Prometheus values; `Port` serves them with two probes:

==========  ==================================================================================
/metrics    everything, in Prometheus' text format
/healthz    200 while the process has not failed; a supervisor restarts it on anything else
/readyz     200 while the query runs, 503 while it starts or recovers
==========  ==================================================================================

A listener must never raise (Spark would only log it, far away): a field that a Spark version does
not report is left out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

_log = structlog.get_logger("muster.streams")
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library left it out

_BATCH_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 30.0)


class Metrics:
    """What an operator watches. All names begin with ``muster_``.

    Attributes:
        registry: where the values live.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._batches = self._counter("batches", "micro-batches done")
        self._rows = self._counter("rows", "rows read from the input topics")
        self._records = self._counter("records", "records written, by kind", "kind")
        self._seconds = Histogram(
            "muster_batch_seconds",
            "how long a micro-batch took",
            buckets=_BATCH_SECONDS,
            registry=self.registry,
        )
        self._phase = self._gauge("batch_phase_seconds", "newest micro-batch, by phase", "phase")
        self._behind = self._gauge("rows_behind", "rows that are waiting, in the fullest partition")
        self._state_rows = self._gauge(
            "state_rows", "values in the state store, two for each group"
        )
        self._state_bytes = self._gauge("state_bytes", "memory the state store takes")
        self._epoch = self._gauge("coordinator_epoch", "offset of this job's claim", "prefix")
        self._ready = self._gauge("ready", "1 while the query runs, else 0")
        self.ticks = self._gauge("ticks", "ticks written by this process' clock")
        self.asleep = self._gauge("groups_asleep", "groups that have a wake-up")

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"muster_{name}", meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"muster_{name}", meaning, labels, registry=self.registry)

    def claimed(self, epochs: Mapping[str, int]) -> None:
        """The coordinator epochs of this job, by prefix."""
        for prefix, epoch in epochs.items():
            self._epoch.labels(prefix).set(epoch)

    def running(self, ready: bool) -> None:
        """Whether the query runs."""
        self._ready.set(int(ready))

    def progress(self, report: Mapping[str, Any]) -> None:
        """Take in one of Spark's reports of a micro-batch."""
        phases: Mapping[str, float] = report.get("durationMs", {})
        self._batches.inc()
        self._rows.inc(max(report.get("numInputRows", 0), 0))
        self._seconds.observe(phases.get("triggerExecution", 0) / 1000)
        for phase, spent_ms in phases.items():
            self._phase.labels(phase).set(spent_ms / 1000)
        for source in report.get("sources", ()):
            self._behind.set(float(source.get("metrics", {}).get("maxOffsetsBehindLatest", 0)))
        for operator in report.get("stateOperators", ()):
            self._state_rows.set(operator.get("numRowsTotal", 0))
            self._state_bytes.set(operator.get("memoryUsedBytes", 0))
        written = (report.get("observedMetrics") or {}).get(OBSERVED, {})
        for kind, count in written.items():
            self._records.labels(kind).inc(count or 0)


OBSERVED = "muster"
"""Name of the counts the query takes of its own output (`job`)."""


class ProgressListener(StreamingQueryListener):
    """Hands Spark's reports to `Metrics`.

    Args:
        metrics: where they go.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to count."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """One micro-batch is done."""
        try:
            self._metrics.progress(json.loads(event.progress.json))
        except (ValueError, TypeError, KeyError, AttributeError):
            _log.warning("a progress report could not be read", exc_info=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to count."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The main loop sees that itself."""


class Port:
    """Answers ``/metrics``, ``/healthz`` and ``/readyz`` between enter and exit.

    Args:
        metrics: what to show.
        host: interface to listen on.
        port: port to listen on; 0 = any free one.

    Attributes:
        ready: whether the query runs; the main loop sets it.
        number: the port in use.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        self.ready = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = owner._answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes come every few seconds; they are not news."""

        self._metrics = metrics
        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.number: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="muster-metrics", daemon=True
        )

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        match path.partition("?")[0]:
            case "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest(self._metrics.registry)
            case "/healthz":
                return 200, "text/plain", b"ok\n"
            case "/readyz" if self.ready.is_set():
                return 200, "text/plain", b"ready\n"
            case "/readyz":
                return 503, "text/plain", b"starting\n"
            case _:
                return 404, "text/plain", b"/metrics, /healthz or /readyz\n"

    def __enter__(self) -> Port:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
