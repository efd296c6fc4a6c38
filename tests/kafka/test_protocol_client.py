"""kafka-python's client: what it says of a port that does not speak as its settings expect."""

from __future__ import annotations

import gc
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.kafka.mock_kafka import mock_kafka
from support.kafka.secured import Authority

from muster.errors import Unreachable
from muster.kafka import protocol_client
from muster.kafka.access_check import Refused
from muster.kafka.client_settings import client_settings

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wait for a second only; and drop the sockets that kafka-python leaves open when it fails."""
    monkeypatch.setattr(protocol_client, "TIMEOUT_MS", 1_000)
    yield
    gc.collect()


@contextmanager
def tls_listener(folder: Path) -> Iterator[str]:
    """A port at which only a TLS handshake is answered; yields its address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(Authority(folder).issue("localhost"))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with suppress(OSError), connection:
                        context.wrap_socket(connection, server_side=True)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_tls_at_a_plaintext_port(tmp_path: Path) -> None:
    """The error says what listens there; before, it said only that the client cannot bootstrap."""
    settings = tmp_path / "client.properties"
    settings.write_text("security.protocol=SSL\n")
    with mock_kafka() as address:
        clients = client_settings(address, str(settings))
        with (
            pytest.raises(Refused, match=r"is it a TLS port, as security\.protocol=SSL expects"),
            protocol_client.connected(clients),
        ):
            pytest.fail("connected")


def test_plaintext_at_a_tls_port(tmp_path: Path) -> None:
    """The other way round it names the setting too."""
    with (
        tls_listener(tmp_path) as address,
        pytest.raises(Unreachable, match=r"security\.protocol"),
        protocol_client.connected(client_settings(address)),
    ):
        pytest.fail("connected")
