"""Logs, once, why Kafka refuses a worker, or a governor of its groups.

librdkafka retries for ever, whatever the reason, and so does the worker: ACLs may be granted and
certificates replaced while it waits. The worker must neither wait silently nor log the same line a
hundred times. Finding the reason may need a connection to Kafka, so a thread does it.
"""

from __future__ import annotations

import logging
import threading
import time

from confluent_kafka import KafkaError

from muster.kafka import access_check
from muster.kafka.acls import Role
from muster.kafka.client_settings import ClientSettings
from muster.protocol.errors import MusterError

log = logging.getLogger("muster.worker.kafka")

REPEAT_S = 3_600.0
"""A line that is still true is logged again after this long."""
LOOK_EVERY_S = 10.0
"""How often the reason for errors with the same code is looked up."""

SETTLE_S = 2.0
"""Another reason than before is logged if it still holds after this long: rights are granted one
by one, and what a look in between misses is no news."""


class Refusals:
    """Logs what Kafka refuses a login of this role."""

    def __init__(self, clients: ClientSettings, prefix: str, role: Role = Role.WORKER) -> None:
        self._clients = clients
        self._prefix = prefix
        self._role = role
        self._lock = threading.Lock()
        self._looked_s: dict[int, float] = {}
        self._logged_s: dict[str, float] = {}

    def hear(self, error: KafkaError) -> None:
        """Take an error of any kind, from any thread; returns at once."""
        if not access_check.is_refusal(error):
            return
        now = time.monotonic()
        with self._lock:
            looked_s = self._looked_s.get(error.code())
            if looked_s is not None and now - looked_s < LOOK_EVERY_S:
                return
            self._looked_s[error.code()] = now
        threading.Thread(
            target=self._explain, args=(error,), name="muster-refusals", daemon=True
        ).start()

    def _explain(self, error: KafkaError) -> None:
        """Log the reason, unless it was logged within `REPEAT_S`."""
        reason = self._reason(error)
        if reason is None:
            return
        with self._lock:
            is_another = bool(self._logged_s) and reason not in self._logged_s
        if is_another:
            time.sleep(SETTLE_S)
            if self._reason(error) != reason:
                return
        now = time.monotonic()
        with self._lock:
            logged_s = self._logged_s.get(reason)
            if logged_s is not None and now - logged_s < REPEAT_S:
                return
            self._logged_s[reason] = now
        log.error("%s; trying again", reason)

    def _reason(self, error: KafkaError) -> str | None:
        try:
            return access_check.explained(error, self._clients, self._role, self._prefix)
        except MusterError as problem:
            return str(problem)
