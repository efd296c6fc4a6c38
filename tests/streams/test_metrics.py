"""Spark's reports become metrics, and a port serves the metrics and the probes."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from muster.protocol.errors import ConfigError
from muster.streams.job_settings import job_config
from muster.streams.monitoring import Seen
from muster.streams.observability import http
from muster.streams.observability.health import Answer, Health
from muster.streams.observability.http import Port
from muster.streams.observability.metrics import Metrics
from muster.streams.observability.spark_reports import KEPT, Progress

ENDS = {"muster.membership": {"0": 5, "1": 9}}
REPORT = {
    "batchId": 3,
    "numInputRows": 7,
    "durationMs": {"triggerExecution": 90, "addBatch": 60},
    "stateOperators": [{"numRowsTotal": 4, "memoryUsedBytes": 1000}],
    "sources": [{"endOffset": ENDS, "latestOffset": ENDS}],
}
"""The fields that muster reads from a report, as Spark 4.2 writes them."""


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """A sample's value."""
    return registry.get_sample_value(name, labels)


def health(stall_s: float = 60, held: bool = True) -> Health:
    """Health of a job that holds its claim, or not."""
    return Health(stall_s, lambda: held)


BUSY = {"isTriggerActive": True, "isDataAvailable": True, "message": "Processing new data"}
IDLE = {"isTriggerActive": False, "isDataAvailable": False, "message": "Waiting for data to arrive"}


class Query:
    """A query's status and its newest reports, as many as Spark keeps."""

    def __init__(self) -> None:
        self.status = BUSY
        self.recentProgress: list[SimpleNamespace] = []
        self._batches = 0

    @property
    def lastProgress(self) -> SimpleNamespace | None:
        """The newest report."""
        return self.recentProgress[-1] if self.recentProgress else None

    def report(self, details: object) -> None:
        """Add the report of a batch."""
        self._add(details)
        self._batches += 1

    def report_idle(self, details: object) -> None:
        """Add a report that the query is idle; it has the number of the next batch."""
        self._add(details)

    def _add(self, details: object) -> None:
        text = details if isinstance(details, str) else json.dumps(details)
        done = SimpleNamespace(batchId=self._batches, json=text)
        self.recentProgress = [*self.recentProgress, done][-KEPT:]


def test_a_report_becomes_values() -> None:
    """Counters add up over reports, gauges show the newest report, `read` gives the offsets."""
    metrics, query = Metrics(), Query()
    progress = Progress(metrics, health())
    progress.look(query)
    assert progress.read is None
    query.report(REPORT)
    progress.look(query)
    progress.look(query)  # no new report: nothing is counted
    query.report(REPORT)
    progress.look(query)
    registry = metrics.registry
    assert value(registry, "muster_batches_total") == 2
    assert value(registry, "muster_rows_total") == 14
    assert value(registry, "muster_batch_phase_seconds", phase="addBatch") == 0.06
    assert value(registry, "muster_batch_seconds_sum") == pytest.approx(0.18)
    assert value(registry, "muster_state_rows") == 4
    assert progress.read == {("muster.membership", 0): 5, ("muster.membership", 1): 9}


@pytest.mark.parametrize("details", ["{}", "[]", "no json", '{"sources": [{}], "durationMs": {}}'])
def test_no_report_raises(details: str) -> None:
    """A report in an unexpected form does not raise."""
    query = Query()
    query.report(details)
    Progress(Metrics(), health()).look(query)


def test_a_batch_that_is_replayed_does_not_know_the_end() -> None:
    """A replayed batch reports no latest offsets: its rows are read, but it is not caught up."""
    query, probe = Query(), health()
    progress = Progress(Metrics(), probe)
    probe.running(10)
    query.report(REPORT | {"sources": [{"endOffset": ENDS, "latestOffset": None}]})
    progress.look(query)
    assert progress.read == {("muster.membership", 0): 5, ("muster.membership", 1): 9}
    assert probe.ready().why.startswith("catching up")


def test_every_batch_between_two_looks_counts() -> None:
    """Between two looks every report is counted once, up to as many as Spark keeps."""
    metrics, query = Metrics(), Query()
    progress = Progress(metrics, health())
    for rounds in (1, 2):
        for _ in range(KEPT):
            query.report(REPORT)
        progress.look(query)
        assert value(metrics.registry, "muster_batches_total") == rounds * KEPT


IDLE_REPORT = {
    "numInputRows": 0,
    "durationMs": {"triggerExecution": 2, "latestOffset": 2},
    "sources": [{"endOffset": ENDS, "latestOffset": ENDS}],
}


def test_a_report_that_the_query_is_idle_is_of_no_batch() -> None:
    """The batch that has the number of an idle report counts, however often the query is idle."""
    metrics, query = Metrics(), Query()
    progress = Progress(metrics, health())
    rows = REPORT | {"numInputRows": 3}
    query.report(rows)
    progress.look(query)
    for second in (10, 20):
        query.report_idle(IDLE_REPORT | {"timestamp": second})
        progress.look(query)
        progress.look(query)
    query.report(rows)
    progress.look(query)
    assert value(metrics.registry, "muster_rows_total") == 6
    assert value(metrics.registry, "muster_batches_total") == 2


def test_an_idle_report_that_is_the_newest_is_no_progress() -> None:
    """A query that hangs after a report that it is idle stalls: each report counts once."""
    probe, query = health(stall_s=60), Query()
    progress = Progress(Metrics(), probe)
    probe.running(0)
    query.report_idle(IDLE_REPORT | {"timestamp": 10})
    query.report_idle(IDLE_REPORT | {"timestamp": 20})
    progress.look(query)
    assert probe.ready().fine
    assert progress.read == {("muster.membership", 0): 5, ("muster.membership", 1): 9}
    probe.running(0)
    progress.look(query)
    assert probe.ready().why.startswith("catching up")
    assert probe.well(61).why.startswith("stalled")
    for rows in (2, 2):  # Kafka has rows that the query does not find
        probe.waiting(rows, 14)
    query.report_idle(IDLE_REPORT | {"timestamp": 30})
    progress.look(query)
    assert probe.well(61).why.startswith("stalled")


def test_an_idle_query_has_caught_up() -> None:
    """A query without batches is ready once Spark reports that it is idle."""
    probe, query = health(), Query()
    progress = Progress(Metrics(), probe)
    probe.running(0)
    progress.look(query)
    assert not probe.ready().fine
    query.status = IDLE
    progress.look(query)
    assert probe.ready().fine


def test_a_deaf_query_is_not_idle() -> None:
    """A query that says it is idle while Kafka has rows for it stalls after the stated time.

    Rows that arrived since its last read do not count, and neither do rows while it reads on.
    """
    probe, query = health(stall_s=60), Query()
    progress = Progress(Metrics(), probe)
    probe.running(0)
    for rows, read in ((0, 10), (3, 10), (3, 13), (0, 16)):
        probe.waiting(rows, read)
    probe.caught_up(50)
    assert probe.well(110).fine
    probe.waiting(1, 16)
    probe.waiting(2, 16)
    probe.caught_up(100)
    assert probe.well(110).fine
    assert probe.well(111).why.startswith("stalled")
    query.report(REPORT)
    progress.look(query)  # a batch is done
    probe.caught_up(120)
    assert probe.well(180).fine


def test_ready_when_caught_up_and_while_the_claim_is_held() -> None:
    """A job is ready when it has loaded its groups, has caught up and holds its claim."""
    held = [True]
    probe = Health(60, lambda: held[0])
    query, progress = Query(), Progress(Metrics(), probe)

    def report(details: object) -> None:
        query.report(details)
        progress.look(query)

    assert probe.ready() == Answer(False, "starting")
    report(REPORT)  # of the run that loads groups
    probe.running(10)
    assert probe.ready().why.startswith("catching up")
    behind = {"sources": [{"endOffset": ENDS, "latestOffset": {"muster.membership": {"0": 6}}}]}
    report(REPORT | behind)
    assert probe.ready().why.startswith("catching up")
    report(REPORT)
    assert probe.ready() == Answer(True, "ready")
    held[0] = False
    assert probe.ready().why.startswith("superseded")


def test_healthy_while_it_makes_progress() -> None:
    """A start is no stall; batches, idleness and a Kafka without answers postpone a stall."""
    probe = health(stall_s=60)
    assert probe.well(1_000_000).fine
    probe.running(0)
    assert probe.well(60).fine
    assert probe.well(61) == Answer(False, "stalled: no progress for 61 s, and Kafka answers")
    for tell, at_s in ((probe.moved, 61), (probe.caught_up, 100), (probe.silent, 150)):
        tell(at_s)
        assert (probe.well(at_s + 60).fine, probe.well(at_s + 61).fine) == (True, False)


def test_unhealthy_without_its_threads() -> None:
    """A process whose clock thread has died is not healthy."""
    probe, alive = health(), [True]
    probe.depends_on("clock", lambda: alive[0])
    probe.running(0)
    assert probe.well(1).fine
    alive[0] = False
    assert probe.well(1) == Answer(False, "the clock has died")


def get(port: Port, path: str) -> tuple[int, str]:
    """Status and body of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port.number}{path}", timeout=10) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_client_that_closes_early_does_no_harm(capfd: pytest.CaptureFixture[str]) -> None:
    """A client that closes its connection early causes no traceback, and the port goes on."""
    metrics, probe = Metrics(), health(stall_s=60)
    asked, hung_up = threading.Event(), threading.Event()

    def slowly() -> float:
        asked.set()
        hung_up.wait(30)
        return 1.0

    metrics.ready.set_function(slowly)
    with Port(metrics, probe, "127.0.0.1", 0) as port:
        with socket.create_connection(("127.0.0.1", port.number)) as client:
            reset = struct.pack("ii", 1, 0)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert asked.wait(30)
        hung_up.set()
        assert get(port, "/healthz") == (200, "starting\n")
    assert "Traceback" not in capfd.readouterr().err


def test_the_port_shows_what_health_says() -> None:
    """Both probes give their reason, /metrics shows the metrics, and other paths are 404."""
    metrics, probe = Metrics(), health(stall_s=60)
    metrics.claimed({"muster": 5})
    metrics.ready.set_function(lambda: probe.ready().fine)
    metrics.healthy.set_function(lambda: probe.well(0).fine)
    with Port(metrics, probe, "127.0.0.1", 0) as port:
        assert get(port, "/healthz") == (200, "starting\n")
        assert get(port, "/readyz") == (503, "starting\n")
        probe.running(time.monotonic())
        probe.caught_up(time.monotonic())
        assert get(port, "/readyz?verbose") == (200, "ready\n")
        probe.moved(time.monotonic() - 100)
        assert get(port, "/healthz")[0] == 503
        assert get(port, "/other")[0] == 404
        status, text = get(port, "/metrics")
        assert status == 200
        assert 'muster_coordinator_epoch{prefix="muster"} 5.0' in text
        assert "muster_ready 1.0" in text


def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that connects and sends nothing, or half a request, keeps no thread for ever."""
    monkeypatch.setattr(http, "SILENT_S", 0.1)
    with Port(Metrics(), health(), "127.0.0.1", 0) as port:
        for sent in (b"", b"GET /metr", b"GET /healthz HTTP/1.1\r\n"):
            with socket.create_connection(("127.0.0.1", port.number), timeout=30) as client:
                client.sendall(sent)
                assert client.recv(1) == b""
        assert get(port, "/healthz") == (200, "starting\n")


def test_a_port_that_can_accept_nothing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a free file would try again at once, and keep a core busy."""
    pauses: list[float] = []
    monkeypatch.setattr(http, "time", SimpleNamespace(sleep=pauses.append))
    server = http._Server("127.0.0.1", 0, BaseHTTPRequestHandler)
    server.server_close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        server.get_request()
    assert pauses == [http.PAUSE_S]


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("::1", "[::1]"),
        ("::", "[::1]"),
        ("::", "127.0.0.1"),
    ],
)
def test_the_port_listens_on_addresses_of_both_kinds(
    host: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers on IPv4 and IPv6, and asks no name server for the machine's own name."""
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("a name server is asked"))
    with Port(Metrics(), health(), host, 0) as port:
        url = f"http://{asked}:{port.number}/healthz"
        with urllib.request.urlopen(url, timeout=10) as page:
            assert page.read() == b"starting\n"


@pytest.mark.parametrize(
    ("host", "named"),
    [("127.0.0.1", "muster.metrics.port"), ("192.0.2.1", "muster.metrics.host")],
)
def test_an_address_that_cannot_be_used_is_named(host: str, named: str) -> None:
    """A port that is taken, or an address of another machine: the error has the right setting."""
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        conf = [f"muster.metrics.host={host}", f"muster.metrics.port={number}"]
        with pytest.raises(ConfigError, match=named):
            Seen(job_config(checkpoint="/c", conf=conf), stack)
