"""What a local cluster says of its processes; none of them is started."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from muster.broker.embedded_kafka import free_port
from muster.demo.local_cluster import LocalCluster


class Ready(BaseHTTPRequestHandler):
    """The job's port: it is ready."""

    def do_GET(self) -> None:
        """Answer 200."""
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a job that is ready."""
    server = HTTPServer(("127.0.0.1", 0), Ready)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_the_job_is_asked_without_a_proxy(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names a proxy, and does not except this machine."""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port(besides=port)}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with LocalCluster() as local:
        local._metrics_port = port
        assert local.job_is_ready()


def test_a_kafka_that_has_ended_shows_its_log() -> None:
    """The last lines of its log may say why."""
    with LocalCluster() as local:
        local.kafka.log_file.write_text("java.io.IOException: No space left on device\n")
        ended = local.ended()
    assert ended is not None
    assert "No space left on device" in ended
