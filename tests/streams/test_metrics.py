"""Spark's reports → metrics, and the port that shows them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from muster.streams.listener import Metrics, Port, ProgressListener

REPORT = {
    "batchId": 3,
    "numInputRows": 7,
    "durationMs": {"triggerExecution": 90, "addBatch": 60},
    "stateOperators": [{"numRowsTotal": 4, "memoryUsedBytes": 1000}],
    "sources": [{"metrics": {"maxOffsetsBehindLatest": "12"}}],
    "observedMetrics": {"muster": {"assignments": 2, "rejected": 0}},
}
"""The fields we read of a report, as Spark 4.2 writes them."""


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """A sample's value."""
    return registry.get_sample_value(name, labels)


def test_a_report_becomes_values() -> None:
    """Counts add up over reports, gauges show the newest."""
    metrics = Metrics()
    listener = ProgressListener(metrics)
    for _ in range(2):
        progress = SimpleNamespace(json=json.dumps(REPORT))
        listener.onQueryProgress(SimpleNamespace(progress=progress))
    registry = metrics.registry
    assert value(registry, "muster_batches_total") == 2
    assert value(registry, "muster_rows_total") == 14
    assert value(registry, "muster_records_total", kind="assignments") == 4
    assert value(registry, "muster_batch_phase_seconds", phase="addBatch") == 0.06
    assert value(registry, "muster_rows_behind") == 12
    assert value(registry, "muster_state_rows") == 4


@pytest.mark.parametrize("report", ["{}", "[]", "no json", '{"sources": [{}], "durationMs": {}}'])
def test_no_report_raises(report: str) -> None:
    """Whatever another Spark version reports, the query is not disturbed."""
    progress = SimpleNamespace(json=report)
    ProgressListener(Metrics()).onQueryProgress(SimpleNamespace(progress=progress))


def get(port: Port, path: str) -> tuple[int, str]:
    """Status and body of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port.number}{path}", timeout=10) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_probes() -> None:
    """Healthy from the start, ready once the query runs, 404 for anything else."""
    metrics = Metrics()
    metrics.claimed({"muster": 5})
    with Port(metrics, "127.0.0.1", 0) as port:
        assert get(port, "/healthz")[0] == 200
        assert get(port, "/readyz") == (503, "starting\n")
        port.ready.set()
        assert get(port, "/readyz?verbose") == (200, "ready\n")
        assert get(port, "/other")[0] == 404
        status, text = get(port, "/metrics")
        assert (status, 'muster_coordinator_epoch{prefix="muster"} 5.0' in text) == (200, True)
