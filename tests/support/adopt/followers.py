"""An ordinary consumer in a process of its own, which knows nothing of muster.

It reads its partitions, commits each record after it has printed it, and prints what happens to it,
with the time in epoch milliseconds first:

    1234 assigned orders:0 orders:1
    1240 read orders:0 17
    1300 revoked orders:0          (it gives it up)
    1400 lost orders:1             (Kafka had given it to another already)
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from confluent_kafka import Consumer, KafkaException, TopicPartition


def say(*words: object) -> None:
    """Print a line with the time."""
    print(time.time_ns() // 1_000_000, *words, flush=True)


def printer(word: str) -> Callable[[Consumer, list[TopicPartition]], None]:
    """A callback that prints partitions."""
    return lambda _, parts: say(word, *(f"{p.topic}:{p.partition}" for p in parts))


def main() -> None:
    """Consume until SIGTERM; the only argument is JSON: topics, and the consumer's settings."""
    asked = json.loads(sys.argv[1])
    stopped = threading.Event()

    def on_signal(_: int, __: FrameType | None) -> None:
        stopped.set()

    signal.signal(signal.SIGTERM, on_signal)
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
        on_assign=printer("assigned"),
        on_revoke=printer("revoked"),
        on_lost=printer("lost"),
    )
    while not stopped.is_set():
        message = consumer.poll(0.1)
        if message is None or message.error() is not None:
            continue
        say("read", f"{message.topic()}:{message.partition()}", message.offset())
        try:
            consumer.commit(message, asynchronous=False)
        except KafkaException as error:
            say("refused", error.args[0].name())
    consumer.close()
    say("bye")


if __name__ == "__main__":
    main()
