"""Every metric of the job with its name, unit and labels (gauges about groups: `group_gauges`).

Names begin with ``muster_``, units are base units. Labels are ``prefix`` (of the topics), ``group``
(at most `groups_max` groups have their own; the others share the empty one), and words of fixed
sets. docs/operations.md explains each metric; a test checks dashboards and alert rules.

=====================  ===========================================================================
source                 metrics
=====================  ===========================================================================
Spark (`progress`)     batches, their phases, the state store
published records      groups, generations, moves, latency, dead letters (`group_stats`, `observer`)
this process           its claim, its clock, whether it is ready and well (`health`)
=====================  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

disable_created_metrics()  # type: ignore[no-untyped-call]  # the library left it out

_BATCH_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 30.0)
_LATENCY_SECONDS = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 30.0, 60.0, 300.0)
_OWNERLESS_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 45.0, 60.0, 120.0, 300.0, 900.0)
_RECORD_BYTES = (64, 128, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576)


class Metrics:
    """Every metric of the coordinator's process; `registry` holds the values."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        build = self._gauge("build_info", "1; the version is a label", "version")
        build.labels(version("muster-kafka")).set(1)
        # ---- the process
        self.ready = self._gauge("ready", "1 while /readyz answers 200, else 0")
        self.healthy = self._gauge("healthy", "1 while /healthz answers 200, else 0")
        self.standby = self._gauge("standby", "1 while the process waits as a standby, else 0")
        self._epoch = self._gauge("coordinator_epoch", "offset of this job's claim", "prefix")
        # ---- the query
        self._batches = self._counter("batches", "micro-batches done")
        self._rows = self._counter("rows", "rows read from the input topics")
        self._seconds = self._histogram(
            "batch_seconds", "how long a micro-batch took", _BATCH_SECONDS
        )
        self._phase = self._gauge("batch_phase_seconds", "newest micro-batch, by phase", "phase")
        self._batch_at = self._gauge(
            "last_batch_timestamp_seconds", "when the newest micro-batch was done (Unix time)"
        )
        self.behind = self._gauge("rows_behind", "rows on the input topics that wait to be read")
        self._state_rows = self._gauge(
            "state_rows", "values in the state store, two for each group"
        )
        self._state_bytes = self._gauge("state_bytes", "memory the state store takes")
        # ---- the clock
        self.ticks = self._counter("ticks", "ticks written by this process' clock")
        self.asleep = self._gauge("groups_asleep", "groups that have a wake-up")
        self.overdue = self._gauge(
            "clock_overdue_seconds", "how long the wake-up that waits longest is past"
        )
        # ---- what was published
        self.records = self._counter("records", "records written, by kind", "prefix", "kind")
        self.generations = self._counter("generations", "published", "prefix", "group", "cause")
        self.moved = self._counter(
            "tasks_moved", "moves of generations", "prefix", "group", "role", "cause"
        )
        self.rejected = self._counter(
            "rejected_events", "dead letters, by reason", "prefix", "reason"
        )
        self.latency = self._histogram(
            "event_to_assignment_seconds",
            "from the broker's time of the oldest event that a decision took in to its record's",
            _LATENCY_SECONDS,
            "prefix",
        )
        self.canary = self._histogram(
            "canary_seconds",
            "from the broker's time of an event of the job's own to its answer's",
            _LATENCY_SECONDS,
            "prefix",
        )
        self.ownerless = self._histogram(
            "task_ownerless_seconds",
            "from when a task's owner gave it up, or was last sure to have it, to the next grant",
            _OWNERLESS_SECONDS,
            "prefix",
        )
        self.record_bytes = self._histogram(
            "assignment_bytes", "size of members' assignment records", _RECORD_BYTES, "prefix"
        )
        self.unreadable = self._counter(
            "unreadable_records", "records on our output topics that are not ours", "prefix"
        )

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"muster_{name}", meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"muster_{name}", meaning, labels, registry=self.registry)

    def _histogram(
        self, name: str, meaning: str, buckets: Iterable[float], *labels: str
    ) -> Histogram:
        return Histogram(
            f"muster_{name}", meaning, labels, buckets=tuple(buckets), registry=self.registry
        )

    def claimed(self, epochs: Mapping[str, int]) -> None:
        """Set the coordinator epochs of this job, by prefix."""
        for prefix, epoch in epochs.items():
            self._epoch.labels(prefix).set(epoch)

    def progress(self, report: Mapping[str, Any], now_s: float) -> None:
        """Take in one of Spark's reports of a micro-batch at this Unix time.

        A field that is missing counts as 0 or is left out.
        """
        phases: Mapping[str, float] = report.get("durationMs", {})
        self._batches.inc()
        self._rows.inc(max(report.get("numInputRows", 0), 0))
        self._seconds.observe(phases.get("triggerExecution", 0) / 1000)
        self._batch_at.set(now_s)
        for phase, spent_ms in phases.items():
            self._phase.labels(phase).set(spent_ms / 1000)
        for operator in report.get("stateOperators", ()):
            self._state_rows.set(operator.get("numRowsTotal", 0))
            self._state_bytes.set(operator.get("memoryUsedBytes", 0))
