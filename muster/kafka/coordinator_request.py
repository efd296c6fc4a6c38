"""A request to the coordinator of a Kafka group, sent again until one is answered.

librdkafka 2.16 looks for the coordinator three times within 0.3 s. If Kafka answers
COORDINATOR_NOT_AVAILABLE each time, as it does while it creates ``__consumer_offsets`` or elects a
leader for it, librdkafka forgets the request: its future never ends, also not at its timeout.

Each try has a client of its own. A client that has forgotten one request and answered a later one
never ends, if its broker is away when it is destroyed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

AGAIN_S = 2.0
"""The second try follows after this long; each later one waits twice as long as the one before."""
LOOK_S = 0.02

Answer = TypeVar("Answer")


class CoordinatorRequest(Generic[Answer]):
    """One request.

    Args:
        config: librdkafka's settings.
        send: sends the request with a client, and returns the future of its answer.
    """

    def __init__(
        self, config: Mapping[str, Any], send: Callable[[AdminClient], Future[Answer]]
    ) -> None:
        self._config = dict(config)
        self._send = send
        self._tries: list[tuple[AdminClient, Future[Answer]]] = []
        self._pause_s = AGAIN_S
        self._next_s = 0.0

    def answered(self) -> bool:
        """Whether an answer, or an error, is there; sends the request (again) when it is time."""
        if any(future.done() for _, future in self._tries):
            return True
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + self._pause_s
            self._pause_s *= 2
            client = AdminClient(self._config)
            self._tries.append((client, self._send(client)))
        return False

    def result(self, timeout_s: float) -> Answer:
        """Wait for the first answer.

        Raises:
            KafkaException: Kafka refused, or there was no answer in time.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self.answered():
            if time.monotonic() > deadline_s:
                raise KafkaException(
                    KafkaError(KafkaError._TIMED_OUT, f"no answer within {timeout_s:g} s")
                )
            time.sleep(LOOK_S)
        return next(future for _, future in self._tries if future.done()).result()
