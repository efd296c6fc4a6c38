"""Connections to Kafka's group coordinators: sends kafka-python's requests without waiting.

A broker answers the requests of one connection in order, and it answers a JoinGroup only when all
members have joined. So every group has a connection of its own. All of them share one thread.
A broker whose machine vanished is noticed by keepalive probes, within `KEEPALIVE`.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from typing import Any, Final, TypeAlias

from kafka.errors import for_code
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import FindCoordinatorRequest

from muster.adopt.model import Done, Message
from muster.kafka.client_settings import ClientSettings
from muster.kafka.protocol_client import config

Manager: TypeAlias = Any
"""A `KafkaConnectionManager`; kafka-python's classes have no types."""

REQUEST_MS: Final = 5_000
"""How long a broker may take for an ordinary request."""
STARTS_MS: Final = 10_000
"""How long the first connection may take."""
KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""Seconds of silence before the first probe, seconds between probes, probes without an answer."""
ASIDE_MS: Final = 3_000
"""How long each step to the coordinator may take in `ask_aside`."""
RARELY_MS: Final = 24 * 3_600_000
"""How often the library refreshes metadata; that request would wait behind a JoinGroup."""


class Network:
    """The thread that serves all connections. `close` it once."""

    def __init__(self, clients: ClientSettings) -> None:
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # errors are answers, reported once
        self._settings = {
            **config(clients),
            "client_id": "muster-governor",
            "request_timeout_ms": REQUEST_MS,
            "metadata_max_age_ms": RARELY_MS,
            "reconnect_backoff_max_ms": 1_000,
            "receive_message_max_bytes": 100_000_000,
            "socket_options": _socket_options(),
        }
        self._settings.pop("bootstrap_timeout_ms", None)
        self._net = NetworkSelector(client_id="muster-governor", slow_task_threshold_secs=0)
        self._net.start()

    def line(self, group: str) -> CoordinatorConnection:
        """A connection for one group."""
        return CoordinatorConnection(self._net, self._settings, group)

    def close(self, wait_s: float) -> None:
        """End every connection; wait this long for what is under way."""
        self._net.stop(wait_s * 1_000)
        with suppress(RuntimeError):  # its thread has not ended in time; it ends with the process
            self._net.close()


class CoordinatorConnection:
    """Requests about one group, to whichever broker coordinates it."""

    def __init__(
        self,
        net: NetworkSelector,
        settings: dict[str, Any],
        group: str,
        starts_ms: int = STARTS_MS,
    ) -> None:
        self._net = net
        self._settings = settings
        self._group = group
        self._starts_ms = starts_ms
        self._manager: Manager | None = None
        self._node: int | None = None
        self._aside: CoordinatorConnection | None = None

    def ask(self, request: Message, done: Done, timeout_ms: int = REQUEST_MS) -> None:
        """Send a request to the group's coordinator; `done` gets the answer, on another thread.

        If no broker answers, `done` gets an exception, and the next request looks for the
        coordinator again.
        """

        async def send_request() -> None:
            manager = self._manager
            try:
                if manager is None:
                    manager = KafkaConnectionManager(self._net, **self._settings)
                    self._manager = manager
                node = self._node
                if node is None:
                    node = self._node = await self._find(manager)
                answer = await manager.send(request, node_id=node, request_timeout_ms=timeout_ms)
            except Exception as error:  # of the library, a socket, TLS: no broker has answered
                if manager is self._manager:
                    self._node = None
                done(error)
            else:
                done(answer)

        self._net.call_soon_threadsafe(send_request)

    def ask_aside(self, request: Message, done: Done, timeout_ms: int = REQUEST_MS) -> None:
        """`ask` over a further connection: the request does not wait behind a JoinGroup.

        It looks for the coordinator anew, but keeps that connection: each one leaves a timer
        behind in the library.
        """
        if self._aside is None:
            limits = ("request_timeout_ms", "socket_connection_setup_timeout_ms")
            settings = self._settings | dict.fromkeys(limits, ASIDE_MS)
            self._aside = CoordinatorConnection(self._net, settings, self._group, ASIDE_MS)
        self._aside.lost()
        self._aside.ask(request, done, timeout_ms)

    def lost(self) -> None:
        """Look for the coordinator again before the next request."""
        self._node = None

    def has_moved(self) -> bool:
        """Whether the newest `ask_aside` found another coordinator than the one `ask` sends to."""
        found = self._aside._node if self._aside is not None else None
        return None not in (self._node, found) and self._node != found

    def drop(self) -> None:
        """Close the connection; the next request goes over the one that `ask_aside` used."""
        aside, self._aside = self._aside, None

        def change_manager() -> None:
            dropped, self._manager, self._node = self._manager, None, None
            if aside is not None:
                self._manager, self._node = aside._manager, aside._node
            if dropped is not None:
                dropped.close()

        self._net.call_soon_threadsafe(change_manager)

    def close(self) -> None:
        """Close the connection, and that of `ask_aside`."""

        def close_manager() -> None:
            if self._manager is not None:
                self._manager.close()

        self._net.call_soon_threadsafe(close_manager)
        if self._aside is not None:
            self._aside.close()

    async def _find(self, manager: Manager) -> int:
        """The id of the broker that coordinates the group."""
        await manager.bootstrap_async(self._starts_ms)
        request = FindCoordinatorRequest(
            key=self._group, key_type=0, coordinator_keys=[self._group]
        )
        answer = await manager.send(request)
        coordinator = answer.coordinators[0] if answer.coordinators else answer
        error = for_code(coordinator.error_code)
        if coordinator.error_code:
            raise error(f"looking for the coordinator of {self._group}")
        await manager.cluster.refresh_metadata(manager.least_loaded_node())
        node: int = coordinator.node_id
        return node


def _socket_options() -> list[tuple[int, int, int]]:
    """Options of every socket, as far as the system has them."""
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    for name, value in KEEPALIVE.items():
        if (number := getattr(socket, name, None)) is not None:
            options.append((socket.IPPROTO_TCP, number, value))
    return options
