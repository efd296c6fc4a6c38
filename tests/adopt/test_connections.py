"""The governor's connections, with brokers that a test plays."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from kafka.future import Future
from kafka.protocol.metadata import FindCoordinatorRequest

from muster.adopt import coordinator_connections
from muster.adopt.coordinator_connections import CoordinatorConnection, Network
from muster.kafka.client_settings import client_settings


class Manager:
    """kafka-python's, without a network: says who coordinates, leaves other requests waiting."""

    coordinator = 1
    opened: list[Manager]

    def __init__(self, net, **settings) -> None:
        self.settings, self.closed, self.waiting = settings, False, []
        self.cluster = SimpleNamespace(refresh_metadata=lambda node: Future().success(None))
        Manager.opened.append(self)

    def bootstrap_async(self, timeout_ms: int) -> Future:
        """Brokers are there at once."""
        return Future().success(True)

    def least_loaded_node(self) -> int:
        """Any broker."""
        return 0

    def send(self, request, node_id=None, request_timeout_ms=None) -> Future:
        """Send a request, or look for the coordinator."""
        future = Future()
        if isinstance(request, FindCoordinatorRequest):
            found = SimpleNamespace(node_id=Manager.coordinator, error_code=0)
            return future.success(SimpleNamespace(coordinators=[found]))
        if request == "join":
            self.waiting.append(future)
            return future
        return future.success((request, node_id))

    def close(self) -> None:
        """Tell all who wait."""
        self.closed = True
        for future in self.waiting:
            future.failure(OSError("closed"))


@pytest.fixture
def line(monkeypatch) -> Iterator[CoordinatorConnection]:
    """A connection for one group."""
    monkeypatch.setattr(coordinator_connections, "KafkaConnectionManager", Manager)
    monkeypatch.setattr(Manager, "opened", [], raising=False)
    monkeypatch.setattr(Manager, "coordinator", 1)
    network = Network(client_settings("localhost:1"))
    yield network.line("group")
    network.close(5)


def test_a_connection_is_given_up(line):
    """Who waits is told; the next request goes over the connection that found the coordinator."""
    joined, answers = queue.SimpleQueue(), queue.SimpleQueue()
    line.ask("join", joined.put)
    line.ask_aside("look", answers.put)
    assert answers.get(timeout=10) == ("look", 1)
    assert not line.has_moved()
    Manager.coordinator = 2
    line.ask_aside("look", answers.put)
    assert answers.get(timeout=10) == ("look", 2)
    assert line.has_moved()
    assert joined.empty()
    line.drop()
    assert isinstance(joined.get(timeout=10), OSError)
    line.ask("beat", answers.put)
    assert answers.get(timeout=10) == ("beat", 2)
    assert not line.has_moved()
    assert [each.closed for each in Manager.opened] == [True, False]
    line.ask_aside("look", answers.put)
    answers.get(timeout=10)
    line.close()
    line.ask("beat", answers.put)
    answers.get(timeout=10)
    assert [each.closed for each in Manager.opened] == [True, True, True]


def test_keepalive(line):
    """The system probes a silent connection within seconds; by default it would take hours."""
    answers = queue.SimpleQueue()
    line.ask("beat", answers.put)
    answers.get(timeout=10)
    probe = socket.socket()
    for option in Manager.opened[0].settings["socket_options"]:
        probe.setsockopt(*option)
    assert probe.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
    probe.close()
