"""The tools of the chaos tests: gaps between owners, and the proxy that causes faults."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from chaos.report import Played, Report, S, ownerless_s, stopped
from support.kafka.proxy import FROM_BROKER, Proxy
from support.worker.overlap import FOREVER, Tenure

from muster.broker.embedded_kafka import HOST, free_port


def tenure(task: str, start_s: int, stop_s: int | None = None) -> Tenure:
    """The time one owner runs a task."""
    stop_ns = FOREVER if stop_s is None else stop_s * S
    return Tenure(task, "W", 1, 1, 1, start_s * S, stop_ns)


@pytest.mark.parametrize(
    ("tenures", "longest_s"),
    [
        ([tenure("0", 1), tenure("1", 2)], 0),
        ([tenure("0", 1, 12), tenure("0", 15), tenure("1", 1, 13), tenure("1", 14)], 3),
        ([tenure("0", 1, 5), tenure("0", 12)], 2),
        ([tenure("0", 1, 12), tenure("0", 30)], 8),
        ([tenure("0", 1, 13)], 7),
        ([tenure("0", 12, 13), tenure("0", 1, 11), tenure("0", 17)], 4),
    ],
    ids=["none", "the longest", "before it", "beyond it", "for ever", "several owners"],
)
def test_longest_time_without_an_owner(tenures: list[Tenure], longest_s: int) -> None:
    """The longest gap of any task counts, cut to the window (10 to 20 s)."""
    assert ownerless_s(tenures, 10 * S, 20 * S) == longest_s


def test_stops_within_a_window() -> None:
    """Tenures that end in the window count; those that go on do not."""
    tenures = [tenure("0", 1, 9), tenure("0", 9, 10), tenure("0", 11, 19), tenure("0", 20)]
    assert stopped(tenures, 10 * S, 20 * S) == 2


def test_report_as_markdown() -> None:
    """A row per fault: how often it happened, sum of stopped tasks, longest times."""
    plays = [
        Played("worker killed", 1, 15.04, 9.31, 2, 14),
        Played("worker killed", 9, 9, 11, 3, 14),
    ]
    report = Report(7, plays, starts=20, generations=9, elapsed_s=90)
    assert report.markdown().splitlines() == [
        "Seed 7, 2 minutes: 2 faults, 20 starts of a task, 9 generations: 0 overlaps of owners, "
        "0 dead letters.",
        "",
        "| fault | times | tasks stopped | longest ownerless, s | bound, s | settled, s |",
        "| --- | --: | --: | --: | --: | --: |",
        "| worker killed | 2 | 5 | 11.0 | 14 | 15.0 |",
    ]


@pytest.fixture
def echo() -> Iterator[int]:
    """A port that sends back what it receives."""
    with socket.create_server((HOST, 0)) as server:

        def serve(connection: socket.socket) -> None:
            with suppress(OSError), connection:
                while received := connection.recv(100):
                    connection.sendall(received)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def echoed(client: socket.socket, word: bytes, patience_s: float = 10) -> bytes:
    """The answer to a word; empty if the connection is closed or silent."""
    client.settimeout(patience_s)
    try:
        client.sendall(word)
        return client.recv(100)
    except OSError:
        return b""


def test_proxy_passes_stalls_and_cuts(echo: int) -> None:
    """Stalled bytes arrive after `mend`; `cut` ends connections and refuses new ones."""
    port = free_port()
    with Proxy({port: echo}) as proxy, socket.create_connection((HOST, port)) as client:
        assert echoed(client, b"one") == b"one"
        proxy.stall()
        assert echoed(client, b"two", patience_s=0.2) == b""
        proxy.mend()
        client.settimeout(10)
        assert client.recv(100) == b"two"
        proxy.stall(FROM_BROKER)
        assert echoed(client, b"three", patience_s=0.2) == b""
        proxy.mend()
        client.settimeout(10)
        assert client.recv(100) == b"three"
        proxy.cut()
        assert echoed(client, b"four") == b""
        with socket.create_connection((HOST, port)) as refused:
            assert echoed(refused, b"five") == b""
        proxy.mend()
        with socket.create_connection((HOST, port)) as again:
            assert echoed(again, b"six") == b"six"


def test_proxy_delays(echo: int) -> None:
    """Every chunk is delayed in both directions."""
    port = free_port()
    with Proxy({port: echo}) as proxy, socket.create_connection((HOST, port)) as client:
        proxy.delay(0.1)
        before = time.monotonic()
        assert echoed(client, b"slow") == b"slow"
        assert time.monotonic() - before >= 0.2
