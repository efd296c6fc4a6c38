"""An ordinary consumer in a process of its own, which knows nothing of muster.

It reads its partitions, commits each record after it has printed it, and prints every assignment:

    assigned ORDERS 0 1     revoked ORDERS 0     lost ORDERS 1     read PARTITION OFFSET     bye
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from types import FrameType
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition


def main() -> None:
    """Consume until SIGTERM; the only argument is JSON: topics, and the consumer's settings."""
    asked = json.loads(sys.argv[1])
    stopped = threading.Event()

    def on_signal(_: int, __: FrameType | None) -> None:
        stopped.set()

    signal.signal(signal.SIGTERM, on_signal)

    def told(word: str) -> Any:
        def say(_: Consumer, parts: list[TopicPartition]) -> None:
            print(word, *(f"{p.topic}:{p.partition}" for p in parts), flush=True)

        return say

    consumer = Consumer(
        {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 500,
            "session.timeout.ms": 6_000,
            "log_level": 0,
            **asked["settings"],
        }
    )
    consumer.subscribe(
        asked["topics"],
        on_assign=told("assigned"),
        on_revoke=told("revoked"),
        on_lost=told("lost"),
    )
    while not stopped.is_set():
        message = consumer.poll(0.1)
        if message is None or message.error() is not None:
            continue
        print("read", message.topic(), message.partition(), message.offset(), flush=True)
        try:
            consumer.commit(message, asynchronous=False)
        except KafkaException as error:
            print("refused", error.args[0].name(), flush=True)
    consumer.close()
    print("bye", flush=True)


if __name__ == "__main__":
    main()
