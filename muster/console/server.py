"""Runs the console: the reader's thread, and uvicorn in the calling thread."""

from __future__ import annotations

import socket
import ssl
from contextlib import AbstractContextManager
from dataclasses import dataclass

import uvicorn

from muster.console.app import Options, build
from muster.console.request_guard import Access
from muster.console.store import Store
from muster.errors import BadInput

CLOSE_S = 1


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where the console listens: port 0 = a free one; without files in PEM, no TLS."""

    host: str = "127.0.0.1"
    port: int = 8090
    certificate: str | None = None
    key: str | None = None


def listen(listen_on: ListenAddress) -> socket.socket:
    """Bind the socket, so that a port in use is an error before anything else starts.

    Raises:
        BadInput: the address or the port cannot be used.
    """
    family = socket.AF_INET6 if ":" in listen_on.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((listen_on.host, listen_on.port))
    except (OSError, OverflowError) as error:
        bound.close()
        why = getattr(error, "strerror", "expected 0 to 65535")
        raise BadInput(f"--port {listen_on.port} at --host {listen_on.host}: {why}") from None
    return bound


def check_certificate(listen_on: ListenAddress) -> None:
    """Check that the certificate and its key are a usable pair.

    Raises:
        BadInput: a file cannot be read, is not PEM, has a passphrase, or the key is of another
            certificate.
    """
    if listen_on.certificate is None or listen_on.key is None:
        return
    for option, path in (("--tls-cert", listen_on.certificate), ("--tls-key", listen_on.key)):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise BadInput(f"{option} {path}: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    asked: list[bool] = []

    def passphrase() -> str:
        asked.append(True)  # without this function, OpenSSL would wait for the terminal
        return ""

    try:
        context.load_cert_chain(listen_on.certificate, listen_on.key, passphrase)
    except ssl.SSLError as error:
        if asked:
            why = "expected a key without a passphrase"
        elif error.reason == "KEY_VALUES_MISMATCH":
            why = f"expected the key of the certificate {listen_on.certificate}"
        else:
            why = f"expected PEM files of a key and its certificate, {listen_on.certificate}"
        raise BadInput(f"--tls-key {listen_on.key}: {why}") from None


def address(listen_on: ListenAddress, bound: socket.socket) -> str:
    """The URL to open."""
    host, port = bound.getsockname()[:2]
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)  # noqa: S104
    name = f"[{name}]" if ":" in name else name
    return f"{'http' if listen_on.certificate is None else 'https'}://{name}:{port}/"


class _Server(uvicorn.Server):
    """A server that ends the pages' streams when it stops, instead of waiting in vain for them."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then the server."""
        self.config.app.state.hub.end()  # type: ignore[union-attr]  # `build` made the app
        await super().shutdown(sockets)


class Console:
    """A console that is ready to run at its `url`; `reader` fills the store while it is entered.

    Raises:
        BadInput: it cannot listen there, or its certificate cannot be used.
    """

    def __init__(
        self,
        store: Store,
        reader: AbstractContextManager[object],
        options: Options,
        access: Access,
        listen_on: ListenAddress,
    ) -> None:
        check_certificate(listen_on)
        self._socket = listen(listen_on)
        self.url = address(listen_on, self._socket)
        self._reader = reader
        self._server = _Server(
            uvicorn.Config(
                build(store, options, access),
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                ws="none",
                h11_max_incomplete_event_size=32 * 1024,
                timeout_graceful_shutdown=CLOSE_S,
                ssl_certfile=listen_on.certificate,
                ssl_keyfile=listen_on.key,
            )
        )

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C."""
        with self._reader:
            self._server.run(sockets=[self._socket])
