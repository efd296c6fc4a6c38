"""The HTTP port of the metrics and the probes.

==========  ==================================================================================
/metrics    all metrics, in Prometheus' text format
/healthz    200 while the process is well (or starts); a supervisor restarts it on 503
/readyz     200 while this process answers members; 503 if it starts, is behind, not well or
            superseded
==========  ==================================================================================

`health` has the rules.
"""

from __future__ import annotations

import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

import structlog
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from muster.streams.background_thread import Loop
from muster.streams.observability.health import Answer, Health
from muster.streams.observability.metrics import Metrics

_log = structlog.get_logger("muster.streams")

SILENT_S = 10.0
"""A connection on which nothing moves for this long is closed, so that none keeps a thread."""
PAUSE_S = 0.1
"""Pause after a connection that could not be accepted."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        """Listen on the host's IPv4 address; if it has none, on its IPv6 address."""
        found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)  # noqa: S104
        families = {family for family, *_ in found}
        self.address_family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        """Bind; ``::`` takes IPv4 as well, also where the machine's default is IPv6 alone."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer's own would ask a name server for a host name that we do not need.
        TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Without a free file the next try would fail at once, and so on."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(PAUSE_S)
            raise

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the error, unless the client has closed the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            _log.warning("a page could not be shown", exc_info=True)


class Port(Loop):
    """Answers ``/metrics``, ``/healthz`` and ``/readyz`` between enter and exit.

    With `port` 0 it listens on any free one; `number` is the port in use.

    Raises:
        OSError: the port is taken; a `socket.gaierror`: there is no such address.
    """

    def __init__(self, metrics: Metrics, health: Health, host: str, port: int) -> None:
        super().__init__("muster-metrics")
        owner = self

        class Handler(BaseHTTPRequestHandler):
            timeout = SILENT_S

            def do_GET(self) -> None:
                status, kind, body = owner._answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: probes come every few seconds."""

        self._metrics = metrics
        self._health = health
        self._server = _Server(host, port, Handler)
        self.number: int = self._server.server_address[1]

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        match path.partition("?")[0]:
            case "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest(self._metrics.registry)
            case "/healthz":
                return _probe(self._health.well(time.monotonic()))
            case "/readyz":
                return _probe(self._health.ready(time.monotonic()))
            case _:
                return 404, "text/plain", b"/metrics, /healthz or /readyz\n"

    def _run(self) -> None:
        self._server.serve_forever()

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        super().__exit__()


def _probe(answer: Answer) -> tuple[int, str, bytes]:
    return 200 if answer.fine else 503, "text/plain", f"{answer.why}\n".encode()
