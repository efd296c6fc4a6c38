"""Says in words, once, why Kafka refuses a worker.

librdkafka tries again for ever, whatever the reason, and so does the worker: ACLs are granted and
certificates replaced while it waits. What it must not do is wait in silence, or say the same thing
a hundred times. Finding the words may take a connection of its own, hence a thread of its own.
"""

from __future__ import annotations

import logging
import threading
import time

from confluent_kafka import KafkaError

from muster import access
from muster.acls import Role
from muster.clients import ClientSettings
from muster.protocol.errors import MusterError

log = logging.getLogger("muster.worker.kafka")

REPEAT_S = 3_600.0
"""The same words are said again after this long, should they still be true."""
LOOK_EVERY_S = 10.0
"""How often the words for errors of one kind are looked for."""


class Refusals:
    """What Kafka refused, told once.

    Args:
        clients: how to reach Kafka.
        prefix: of muster's topics.
    """

    def __init__(self, clients: ClientSettings, prefix: str) -> None:
        self._clients = clients
        self._prefix = prefix
        self._lock = threading.Lock()
        self._looked_s: dict[int, float] = {}
        self._said_s: dict[str, float] = {}

    def hear(self, error: KafkaError) -> None:
        """An error of any kind, from any thread; returns at once."""
        if not access.is_refusal(error):
            return
        now = time.monotonic()
        with self._lock:
            looked_s = self._looked_s.get(error.code())
            if looked_s is not None and now - looked_s < LOOK_EVERY_S:
                return
            self._looked_s[error.code()] = now
        threading.Thread(
            target=self._tell, args=(error,), name="muster-refusals", daemon=True
        ).start()

    def _tell(self, error: KafkaError) -> None:
        try:
            words = access.told(error, self._clients, Role.WORKER, self._prefix)
        except MusterError as problem:
            words = str(problem)
        if words is not None:
            self.say(words)

    def say(self, words: str) -> None:
        """Log it, unless it was logged lately."""
        now = time.monotonic()
        with self._lock:
            said_s = self._said_s.get(words)
            if said_s is not None and now - said_s < REPEAT_S:
                return
            self._said_s[words] = now
        log.error("%s; trying again", words)
