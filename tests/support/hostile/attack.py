"""Writes the records of an attack, once or again and again, as fast as allowed or at a rate."""

from __future__ import annotations

import math
import threading
import time
from itertools import cycle

from confluent_kafka import Producer
from support.kafka.brokers import Topics
from support.protocol.bombs import Bomb

STEP_S = 0.005
"""The attacker writes so far ahead of its rate, then rests."""


class Attack(threading.Thread):
    """One attack in a thread of its own.

    Attributes:
        written, bytes: what has been written.
    """

    def __init__(
        self,
        topics: Topics,
        bomb: Bomb,
        *,
        seconds: float,
        rate: float = math.inf,
        bytes_a_second: float = math.inf,
        records: int | None = None,
        is_repeated: bool = False,
    ) -> None:
        """Make the records; nothing is written yet.

        Args:
            topics: where to write.
            bomb: what to write.
            seconds: how long, at most.
            rate: records in a second.
            bytes_a_second: bytes in a second, at most, as a Kafka quota limits them.
            records: how many the bomb makes; None = as many as the rate allows.
            is_repeated: write the same records again and again.
        """
        super().__init__(daemon=True)
        told = topics.clients.producer({"linger.ms": 20, "message.max.bytes": 1_048_588})
        self._producer, self._topics = Producer(told), topics
        self._seconds, self._rate, self._bytes_a_second = seconds, rate, bytes_a_second
        self._is_repeated = is_repeated
        self._records = list(bomb.records(int(rate * seconds) if records is None else records))
        self.written = 0
        self.bytes = 0

    def run(self) -> None:
        """Write until the time is over, or all is written."""
        began_s = time.monotonic()
        for kind, key, value in cycle(self._records) if self._is_repeated else self._records:
            spent_s = time.monotonic() - began_s
            if spent_s > self._seconds:
                break
            self.written += 1
            self.bytes += len(key or b"") + len(value or b"")
            try:
                self._producer.produce(self._topics.name(kind), value, key)
            except BufferError:
                self._producer.poll(1)
            due_s = max(self.written / self._rate, self.bytes / self._bytes_a_second)
            due_s = began_s + min(due_s, self._seconds)
            self._producer.poll(0)
            # In steps: a wait for each record would be a loop without a rest, and take a core that
            # the job needs. A client elsewhere takes none.
            if (left_s := due_s - time.monotonic()) > STEP_S:
                time.sleep(left_s)
        self._producer.flush(60)
