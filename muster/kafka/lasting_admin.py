"""An admin client that is replaced after a failed question.

librdkafka's admin client keeps the leader epoch it knows for a quarter of an hour, whatever brokers
answer (2.16). After an election every ListOffsets with it is refused (FENCED_LEADER_EPOCH), and a
client that lives as long as the process gets no end offset. A new client knows no epoch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from confluent_kafka.admin import AdminClient


class LastingAdmin:
    """An admin client; its user calls `replace` after a question that failed. For one thread.

    Args:
        config: librdkafka's settings.
        log: gets librdkafka's lines.
    """

    def __init__(self, config: Mapping[str, Any], log: logging.Logger) -> None:
        self._config, self._log = dict(config), log
        self._client: AdminClient | None = None

    @property
    def client(self) -> AdminClient:
        """The client to ask with; ask for it again before each question.

        Raises:
            KafkaException: librdkafka does not take the settings.
        """
        if self._client is None:
            self._client = AdminClient(self._config, logger=self._log)
        return self._client

    def replace(self) -> None:
        """Have the next question asked by a new client.

        The old one is dropped on another thread, because its threads may take long to end.
        """
        dropped = [self._client]
        self._client = None
        threading.Thread(target=dropped.clear, name="muster-admin-ends", daemon=True).start()
