"""Reads a Connect cluster's config topic, as its workers do, and posts its connectors.

A connector exists from its ``connector-NAME`` record until a tombstone of that key. The newest
``commit-NAME`` says how many tasks it has. Workers compare the offsets that they have read to, so
the offset counts records of every kind.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from muster.adopt.model import AssignableUnits
from muster.kafka.client_settings import ClientSettings
from muster.protocol.tasks import Connector

log = logging.getLogger("muster.adopt.kafka")

POLL_S: Final = 0.25
CLOSE_S: Final = 5.0
CONNECTOR, COMMIT = "connector-", "commit-"


class ConfigTopicState:
    """The connectors of a config topic, from the records read so far. Pure."""

    def __init__(self) -> None:
        self.offset = -1
        self._connectors: set[str] = set()
        self._tasks: dict[str, int] = {}

    def read(self, key: str, value: bytes | None, offset: int) -> None:
        """Take one record in."""
        self.offset = offset + 1
        if key.startswith(CONNECTOR):
            name = key.removeprefix(CONNECTOR)
            if value is None:
                self._connectors.discard(name)
                self._tasks.pop(name, None)
            else:
                self._connectors.add(name)
        elif key.startswith(COMMIT):
            self._tasks[key.removeprefix(COMMIT)] = _count(value)

    def units(self) -> AssignableUnits:
        """The connectors that exist."""
        connectors = [
            Connector(name, self._tasks.get(name, 0)) for name in sorted(self._connectors)
        ]
        return AssignableUnits(tuple(connectors), self.offset)


def _count(value: bytes | None) -> int:
    try:
        commit = json.loads(value or b"null")
        if isinstance(commit, Mapping) and "payload" in commit:  # a converter that writes schemas
            commit = commit["payload"]
        return max(0, int(commit["tasks"]))
    except (ValueError, TypeError, KeyError):
        return 0


class Connectors:
    """Follows one config topic on a thread; `open` it once, `close` it once."""

    def __init__(
        self, clients: ClientSettings, topic: str, post: Callable[[AssignableUnits], None]
    ) -> None:
        self._topic = topic
        self._post = post
        self._closing = threading.Event()
        self._settings = clients.reader(
            f"muster-governor-{uuid.uuid4().hex}",
            {
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "isolation.level": "read_committed",
                "log_level": 0,
            },
        )
        self._thread = threading.Thread(target=self._run, name="muster-connectors", daemon=True)

    def open(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Stop, and wait this long for a request to end."""
        self._closing.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        consumer = Consumer(self._settings)
        state = ConfigTopicState()
        try:
            consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
            at_end = False
            while not self._closing.is_set():
                message = consumer.poll(POLL_S)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    key = (message.key() or b"").decode(errors="replace")
                    state.read(key, message.value(), message.offset() or 0)
                elif error.code() == KafkaError._PARTITION_EOF:
                    at_end = True
                    state.offset = max(state.offset, message.offset() or 0)
                else:
                    log.info("%s: %s", self._topic, error)
                    continue
                if at_end:
                    self._post(state.units())
        except KafkaException as error:
            log.error("%s cannot be read: %s", self._topic, error)
        finally:
            consumer.close()
