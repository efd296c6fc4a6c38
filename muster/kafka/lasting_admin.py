"""An admin client that is replaced after a failed question, and questions about offsets.

librdkafka's admin client keeps the leader epoch it knows for a quarter of an hour, so after an
election every ListOffsets with it is refused (FENCED_LEADER_EPOCH). A new client knows no epoch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import wait
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

TIMEOUT_S = 15
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # of the client


class LastingAdmin:
    """An admin client; its user calls `replace` after a question that failed. For one thread."""

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


def answered(
    admin: AdminClient,
    places: Iterable[tuple[str, int]],
    spec: OffsetSpec,
    timeout_s: float = TIMEOUT_S,
) -> tuple[dict[tuple[str, int], int], KafkaException | None]:
    """An offset of each partition that answers, and the failure of one that does not.

    A partition does not answer while it has no leader, or if the client knows an older epoch of its
    leader.
    """
    asked = {TopicPartition(*place): spec for place in places}
    if not asked:
        return {}, None
    offset_of: dict[tuple[str, int], int] = {}
    failure: KafkaException | None = None
    answers = admin.list_offsets(asked, request_timeout=timeout_s)
    wait(answers.values(), timeout_s + 1)
    for part, answer in answers.items():
        try:
            if not answer.done():
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            offset_of[part.topic, part.partition] = answer.result().offset
        except KafkaException as error:
            failure = error
    return offset_of, failure
