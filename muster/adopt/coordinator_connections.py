"""Connections to Kafka's group coordinators: sends kafka-python's requests without waiting.

A broker answers the requests of one connection in order, and it answers a JoinGroup only when all
members have joined. So every group has a connection of its own. All of them share one thread.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final

from kafka.errors import for_code
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import FindCoordinatorRequest

from muster.adopt.model import Done, Message
from muster.kafka.client_settings import ClientSettings
from muster.kafka.protocol_client import config

REQUEST_MS: Final = 5_000
"""How long a broker may take for an ordinary request."""
STARTS_MS: Final = 10_000
"""How long the first connection may take."""
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

    def __init__(self, net: NetworkSelector, settings: dict[str, Any], group: str) -> None:
        self._net = net
        self._settings = settings
        self._group = group
        self._manager: Any = None
        self._node: Any = None

    def ask(self, request: Message, done: Done, timeout_ms: int = REQUEST_MS) -> None:
        """Send a request to the group's coordinator; `done` gets the answer, on another thread.

        If no broker answers, `done` gets an exception, and the next request looks for the
        coordinator again.
        """

        async def send_request() -> None:
            try:
                if self._node is None:
                    await self._find()
                answer = await self._manager.send(
                    request, node_id=self._node, request_timeout_ms=timeout_ms
                )
            except Exception as error:  # of the library, a socket, TLS: no broker has answered
                self._node = None
                done(error)
            else:
                done(answer)

        self._net.call_soon_threadsafe(send_request)

    def ask_aside(self, request: Message, done: Done, timeout_ms: int = REQUEST_MS) -> None:
        """`ask` over a further connection: the request does not wait behind a JoinGroup."""
        aside = CoordinatorConnection(self._net, self._settings, self._group)

        def close_then(answer: Message | Exception) -> None:
            aside.close()
            done(answer)

        aside.ask(request, close_then, timeout_ms)

    def lost(self) -> None:
        """Look for the coordinator again before the next request."""
        self._node = None

    def close(self) -> None:
        """Close the connection."""

        def close_manager() -> None:
            if self._manager is not None:
                self._manager.close()

        self._net.call_soon_threadsafe(close_manager)

    async def _find(self) -> None:
        if self._manager is None:
            self._manager = KafkaConnectionManager(self._net, **self._settings)
        await self._manager.bootstrap_async(STARTS_MS)
        request = FindCoordinatorRequest(
            key=self._group, key_type=0, coordinator_keys=[self._group]
        )
        answer = await self._manager.send(request)
        coordinator = answer.coordinators[0] if answer.coordinators else answer
        error = for_code(coordinator.error_code)
        if coordinator.error_code:
            raise error(f"looking for the coordinator of {self._group}")
        await self._manager.cluster.refresh_metadata(self._manager.least_loaded_node())
        self._node = coordinator.node_id
