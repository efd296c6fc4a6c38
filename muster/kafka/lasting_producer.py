"""A producer that replaces itself after a fatal error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from muster.kafka import access_check
from muster.protocol.codec import Encoded

SERVE_S: Final = 0.25
"""Longest wait inside librdkafka, during which a close goes unnoticed."""
REPLACED_S: Final = 0.5
"""Pause after a fatal error, before the new producer is served."""
Delivered: TypeAlias = Callable[[KafkaError | None, Message], None]


def produce(
    producer: Producer,
    topic: str,
    record: Encoded,
    on_delivery: Delivered | None = None,
    partition: int | None = None,
) -> None:
    """Give a record to a client, which calls `on_delivery` with the outcome when it is polled.

    Without a partition it goes to the key's.

    Raises:
        KafkaException, BufferError: it is not taken; `on_delivery` is not called.
    """
    producer.produce(
        topic,
        partition=-1 if partition is None else partition,
        key=record.key,
        value=record.value,
        headers=list(record.headers),
        on_delivery=on_delivery,
    )


class LastingProducer:
    """An idempotent producer; after a fatal error, which it cannot survive, a new one replaces it.

    `on_fatal` is called with the error when that happens. If a new one cannot be made, the next
    `serve` tries again.

    Raises:
        KafkaException: librdkafka does not take the settings.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        log: logging.Logger,
        on_fatal: Callable[[KafkaException], None],
    ) -> None:
        self._config, self._log, self._on_fatal = dict(config), log, on_fatal
        self._replacing = threading.Lock()
        self._producer = self._new()

    def _new(self) -> Producer:
        return Producer(self._config, logger=self._log)

    def produce(
        self,
        topic: str,
        record: Encoded,
        on_delivery: Delivered | None = None,
        partition: int | None = None,
    ) -> None:
        """Write a record, as the function `produce` does; `serve` calls `on_delivery`."""
        produce(self._producer, topic, record, on_delivery, partition)

    def serve(self, wait_s: float) -> bool:
        """Run the callbacks that are due; False when the producer had to be replaced."""
        producer = self._producer
        try:
            with access_check.fatal_named():
                producer.poll(wait_s)
        except KafkaException as error:
            self._on_fatal(error)
            self._replace(producer)
            return False
        return True

    def serve_until(self, closing: threading.Event) -> None:
        """Run due callbacks until `closing` is set; the body of a thread."""
        while not closing.is_set():
            if not self.serve(SERVE_S):
                closing.wait(REPLACED_S)

    def flush(self, wait_s: float) -> int:
        """Wait until every record is written; return how many are not."""
        with suppress(KafkaException), access_check.fatal_named():
            return int(self._producer.flush(wait_s))
        return 1

    def close(self, wait_s: float = 0.0) -> None:
        """Write what can be written in this time, and drop the rest."""
        self.flush(wait_s)
        with suppress(KafkaException), access_check.fatal_named():
            self._producer.purge()
            self._producer.poll(0)

    def _replace(self, broken: Producer) -> None:
        with self._replacing, suppress(KafkaException):  # a certificate that is being replaced
            if self._producer is broken:
                self._producer = self._new()
        with suppress(KafkaException), access_check.fatal_named():
            broken.purge()
            broken.poll(0)
